"""Damage to files: bytes that flip, blocks of zeros, files that are cut, grown or swapped, in every kind of file.

Each trial damages one file of a sound example and reads it as mlcil does. The damage must be noticed in one line that
names the file, or be repaired with the same outcome to the bit; or what is read is the same, as the damage hit what
nobody reads. Anything else counts as wrong. Of a journal, a last line that is cut short is left out, as after a crash.

    python trust/damage.py            # some thousand trials, one or two minutes
    python trust/damage.py --full     # more than a hundred thousand
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from damaged_kinds import Kind, make_kinds
from figures import Figure, report, size_asked

from mlcil import UserError

NOTICED, REPAIRED, SAME, CUT, WRONG = "noticed", "repaired", "without effect", "cut short", "WRONG"


def main() -> None:
    """Try every kind."""
    size = size_asked(__doc__)
    choice, figures, wrong = random.Random(size.seed), list[Figure](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for kind in make_kinds(Path(folder)):
            began = time.monotonic()
            found = try_kind(kind, size.of(*kind.trials), choice, wrong)
            words = ", ".join(f"{found[name]:,} {name}" for name in (NOTICED, REPAIRED, SAME, CUT) if found[name])
            figures += [
                Figure(f"{kind.name}: {found.total():,} trials", words),
                Figure(f"{kind.name}: wrong", found[WRONG], "0", not found[WRONG]),
            ]
            print(f"{kind.name}: {dict(found)}, {time.monotonic() - began:.1f} s", flush=True)
    total = sum(int(one.value) for one in figures if one.wanted)
    report("Damage to files", [*figures, Figure("wrong in all", total, "0", not total)], size, wrong=wrong[:50])


def try_kind(kind: Kind, trials: int, choice: random.Random, wrong: list[str]) -> Counter[str]:
    """How often each outcome came; adds a line for each wrong one."""
    sound = {path: path.read_bytes() for path in kind.folder.rglob("*") if path.is_file()}
    expected = kind.read()
    restore(kind, sound)
    outcomes: Counter[str] = Counter()
    for _ in range(trials):
        file = choice.choice(kind.files)
        how = damage(file, kind, choice)
        if file.read_bytes() == sound[file]:  # as it may be by chance
            continue
        outcome, words = judge(kind, file, how, expected)
        outcomes[outcome] += 1
        if outcome == WRONG:
            wrong.append(f"{kind.name}, {file.name}, {how}: {words}")
            print(wrong[-1], flush=True)
        restore(kind, sound)
    return outcomes


def damage(file: Path, kind: Kind, choice: random.Random) -> str:
    """Damage a file; returns how."""
    data = bytearray(file.read_bytes())
    at, how = choice.randrange(len(data)), choice.choice(["bit", "bit", "bytes", "zeros", "cut", "grown", "swapped"])
    length = min(choice.choice([1, 2, 8, 64, 512]), len(data) - at)
    twins = [one for one in kind.files if one != file and one.stat().st_size == len(data)]
    if how == "swapped" and twins:
        twin = choice.choice(twins)
        other = twin.read_bytes()
        twin.write_bytes(data)
        data = bytearray(other)
    elif how == "bytes":
        data[at : at + length] = choice.randbytes(length)
    elif how == "zeros":
        data[at : at + length] = bytes(length)
    elif how == "cut":
        del data[at:]
    elif how == "grown":
        data += choice.randbytes(length)
    else:
        data[at] ^= 1 << choice.randrange(8)
    file.write_bytes(data)
    return f"{how} at {at}"


def judge(kind: Kind, file: Path, how: str, expected: Any) -> tuple[str, str]:
    """The outcome of reading a damaged file, and in words what came if it is wrong."""
    damaged = file.read_bytes()
    try:
        found = kind.read()
    except UserError as error:
        is_named = file.name in str(error) and "\n" not in str(error)
        return (NOTICED, "") if is_named else (WRONG, f"the file is not named in one line: {error}")
    except Exception as error:
        return WRONG, f"{type(error).__name__}: {error}"
    if found == expected:
        return (SAME if file.exists() and file.read_bytes() == damaged else REPAIRED), ""
    if kind.name == "journal" and found == expected[: len(found)] and how.startswith("cut"):
        return CUT, ""
    return WRONG, "something else was read"


def restore(kind: Kind, sound: dict[Path, bytes]) -> None:
    """Put the files of a kind back as they were."""
    for path in [one for one in kind.folder.rglob("*") if one not in sound and one.is_file()]:
        path.unlink()
    for path, data in sound.items():
        if not path.exists() or path.read_bytes() != data:
            if path.is_dir():
                shutil.rmtree(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
