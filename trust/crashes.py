"""Kill small jobs at chosen and at random moments, repeat the command until it finishes, and compare to the bit.

Chosen moments are before, in the middle of and after each deed to each kind of file: opening, flushing, moving,
removing; in `after_session`; while shards are merged. In further trials the disk is full in the middle of a command or
read-only from its start, the system refuses every such deed from some moment on, or the photos are taken away; then the
command must say so in one line or do without, and go on when all is well again. The disks are small file systems in
memory, which needs root or a kernel that lets users mount what only they see.

    python trust/crashes.py          # some 70 kills, in about three minutes of one core
    python trust/crashes.py --full   # 1,000 kills
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from crash_children import Ending, carry_out, fresh, import_everything
from crash_jobs import JOBS, Job, outcome, prepare
from crash_moments import Moment
from figures import Figure, report, size_asked

PAGE, PLENTY = 4096, 2**28  # bytes
KILLS_A_TRIAL = 3  # at most; the command that goes on after a kill is killed again
FAULTS = {"ENOSPC": "no room for a deed", "EROFS": "a deed refused as read-only"}
FULL, READ_ONLY = "disk full in the middle", "read-only disk"


class Trials:
    """The trials of one job.

    Attributes:
        found: what was counted, under words.
        problems: a line for each trial that did not end well.
    """

    def __init__(self, job: Job, place: Path, draw: random.Random) -> None:
        self.job, self.place, self.draw = job, place, draw
        self.found: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.problems: list[str] = []
        self.deeds: list[Counter[tuple[str, str, str]]] = []  # of each command
        self.seconds: list[float] = []
        self.whole = self._undisturbed("whole")
        again = self._undisturbed("again")
        if different := _differences(self.whole, again):
            raise SystemExit(f"{job.name}: two undisturbed outcomes differ in {', '.join(different)}")

    def _undisturbed(self, name: str) -> dict[str, Any]:
        folder = fresh(self.place / name, partial(prepare, self.job))
        self.deeds, self.seconds = [], []
        for number in range(len(self.job.commands)):
            began = time.monotonic()
            ending = carry_out(self.job, number, folder)
            if ending.code:
                raise SystemExit(f"{self.job.name}: {ending.errors}")
            self.seconds.append(time.monotonic() - began)
            self.deeds.append(Counter(tuple(line[1:]) for line in ending.deeds if line[0] == "deed"))  # type: ignore[misc]
        return outcome(folder)

    def moments(self) -> list[tuple[int, Moment]]:
        """Each moment once, with the command in which it comes."""
        return [(number, Moment(*deed)) for number, deeds in enumerate(self.deeds) for deed in sorted(deeds)]

    def kill(self, chosen: list[tuple[int, Moment | None]]) -> None:
        """One trial: kill at these moments, None for a random one, and finish."""
        folder = fresh(self.place / "trial", partial(prepare, self.job))
        said = []
        for number in range(len(self.job.commands)):
            for moment in self._in_order(number, [moment for one, moment in chosen if one == number]):
                after = self.draw.uniform(0, self.seconds[number]) if moment is None else None
                if moment is not None:
                    among = max(1, self.deeds[number][moment[:3]] // self.job.processes)
                    moment = moment._replace(count=self.draw.randrange(among))
                ending = self._do(number, folder, moment, after)
                said.append("at random" if moment is None else " ".join(moment[:3]))
                # A child of the command may have been killed: then that is done again, or the command says so.
                if ending.code == -9 or any(line[0] == "kill" for line in ending.deeds):
                    self.kills["at a random moment" if moment is None else f"{moment.deed}: {moment.kind}"] += 1
                    if "Traceback" in ending.errors:  # of a command whose child was killed
                        self._problem(said, ending)
                elif ending.code:
                    self._problem(said, ending)
                if ending.left_behind:
                    self._note(f"{self.job.name} [{'; '.join(said)}]: left a process behind")
            if not self._finish(number, folder, said):
                return
        self._compare(folder, said)

    def _in_order(self, number: int, moments: list[Moment | None]) -> list[Moment | None]:
        """Moments of a command as they come in it: what comes early does not come again after a kill that came late."""
        order = list(self.deeds[number])
        return sorted(moments, key=lambda one: -1 if one is None else order.index(one[:3]))

    def fault(self, number: int, moment: Moment, what: str) -> None:
        """One trial: let all writing fail from a moment on, then repair that, and finish."""
        folder = fresh(self.place / "trial", partial(prepare, self.job))
        said = [what, *moment[:3]]
        for one in range(len(self.job.commands)):
            if one == number:
                moment = moment._replace(
                    count=self.draw.randrange(self.deeds[number][moment.deed, moment.kind, "before"])
                )
                ending = self._do(number, folder, moment)
                self._judge_fault(ending, what, said)
            if not self._finish(one, folder, said):
                return
        self._compare(folder, said)

    def on_small_disk(self, number: int, what: str) -> None:
        """One trial: a command meets a disk that is full before it is done, or read-only; then the disk is sound."""
        with small_disk(self.place / "disk") as folder:
            prepare(self.job, folder)
            for one in range(len(self.job.commands)):
                if one == number:
                    # Of what the whole job takes in the end, room for some; a file takes whole pages.
                    files = [path.stat().st_size for path in (self.place / "whole").rglob("*") if path.is_file()]
                    used, whole = _used(folder), sum(PAGE * (2 + size // PAGE) for size in files)
                    room = used + int(self.draw.random() * max(PAGE, whole - used))
                    change_disk(folder, f"size={room}" if what == FULL else "ro")
                    self._judge_fault(self._do(number, folder), what, [what])
                    change_disk(folder, f"size={PLENTY},rw")
                if not self._finish(one, folder, [what]):
                    return
            self._compare(folder, [what])

    def take_photos(self, number: int, what: str) -> None:
        """One trial: the photos are gone when a command is killed; it is repeated without, and then with them."""
        folder = fresh(self.place / "trial", partial(prepare, self.job))
        for one in range(len(self.job.commands)):
            if one == number:
                self._do(number, folder, None, self.draw.uniform(0, self.seconds[number]))
                (folder / "photos").rename(folder / "away")
                self._judge_fault(self._do(number, folder), what, [what])
                (folder / "away").rename(folder / "photos")
            if not self._finish(one, folder, [what]):
                return
        self._compare(folder, [what])

    def _judge_fault(self, ending: Ending, what: str, said: list[str]) -> None:
        self.found[what] += 1
        lines = [line for line in ending.errors.splitlines() if line.startswith("mlcil: ")]
        if ending.code not in (0, 1, 2) or "Traceback" in ending.errors or (ending.code == 2 and len(lines) != 1):
            self._problem(said, ending)

    def _do(self, number: int, folder: Path, moment: Moment | None = None, after: float | None = None) -> Ending:
        ending = carry_out(self.job, number, folder, moment, after)
        self.found["half files read"] += sum(line[0] == "half file read" for line in ending.deeds)
        self.found["left behind"] += ending.left_behind
        return ending

    def _finish(self, number: int, folder: Path, said: list[str]) -> bool:
        """Repeat a command until it succeeds."""
        ending = self._do(number, folder)
        if ending.code:
            self._problem(said, ending)
        return not ending.code

    def _compare(self, folder: Path, said: list[str]) -> None:
        self.found["trials"] += 1
        if different := _differences(self.whole, outcome(folder)):
            self._note(f"{self.job.name} [{'; '.join(said)}]: differs in {', '.join(different)}")
            kept = self.place.parent / "problems" / f"{self.job.name}-{len(self.problems)}"
            shutil.copytree(folder, kept, dirs_exist_ok=True)
        else:
            self.found["equal"] += 1

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        print(problem, flush=True)

    def _problem(self, said: list[str], ending: Ending) -> None:
        last = (ending.errors.strip().splitlines() or [""])[-1]
        self._note(f"{self.job.name} [{'; '.join(said)}]: ended with {ending.code}: {last}")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system in memory at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={PLENTY}", "trial", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def change_disk(folder: Path, options: str) -> None:
    """Give a file system in memory another size, or let it be read-only or not."""
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def _used(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def may_mount() -> bool:
    """Whether this process may mount; one that may not is replaced once by one in a name space of its own."""
    if os.geteuid() == 0:
        return subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True).returncode == 0
    if "MLCIL_UNSHARED" not in os.environ and shutil.which("unshare"):
        os.environ["MLCIL_UNSHARED"] = "1"
        own = ["unshare", "--user", "--map-root-user", "--mount"]
        if subprocess.run([*own, "true"], check=False, capture_output=True).returncode == 0:
            os.execvp(own[0], [*own, sys.executable, *sys.argv])
    return False


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _plan(trials: Trials, kills: int, seen: Counter[str], draw: random.Random) -> list[list[tuple[int, Moment | None]]]:
    """Which moments each trial has: those of kinds that were seen least come first, and a random one now and then.

    Arguments:
        seen: how often each kind of file was chosen, by all jobs so far; it is counted on.
    """
    chosen: list[tuple[int, Moment | None]] = []
    left: list[tuple[int, Moment]] = []
    while len(chosen) < kills:
        if len(chosen) % 7 == 0:
            chosen.append((draw.randrange(len(trials.job.commands)), None))
            continue
        left = left or draw.sample(every := trials.moments(), len(every))
        number, moment = min(left, key=lambda one: seen[one[1].kind])
        left.remove((number, moment))
        seen[moment.kind] += 1
        chosen.append((number, moment))
    return [chosen[start : start + KILLS_A_TRIAL] for start in range(0, kills, KILLS_A_TRIAL)]


def main() -> None:
    """Try every job."""
    size = size_asked(__doc__)
    has_disks = may_mount()
    import_everything()
    place, draw = Path(tempfile.mkdtemp(prefix="mlcil-crashes-")), random.Random(size.seed)
    shares = {"run KRT-R": (21, 400), "run analytic": (15, 220), "learn twice and predict": (15, 250)}
    shares |= {"teach": (12, 150), "learn and predict by two processes": (12, 150), "grid": (12, 200)}
    found, kills, problems, figures = (
        Counter[str](),
        defaultdict[str, Counter[str]](Counter),
        list[str](),
        list[Figure](),
    )
    seen = Counter[str]()
    for job in JOBS:
        trials = Trials(job, place / job.name.replace(" ", "-"), draw)
        for chosen in _plan(trials, size.of(*shares[job.name]), seen, draw):
            trials.kill(chosen)
        for name, what in FAULTS.items():
            places = [(number, one) for number, one in trials.moments() if one.how == "before" and one.deed != "call"]
            for number, moment in draw.sample(places, min(len(places), size.of(1, 12))):
                trials.fault(number, moment._replace(how=name), what)
        for what in (FULL, READ_ONLY) if has_disks else ():
            for _ in range(size.of(1, 12) if what == FULL else 1):
                trials.on_small_disk(draw.randrange(len(job.commands)), what)
        for number in range(len(job.commands)) if job.needs_photos else ():
            trials.take_photos(number, "photos gone")
        found += trials.found
        problems += trials.problems
        figures.append(Figure(f"kills: {job.name}", sum(trials.kills.values())))
        kills[job.name] += trials.kills
    total = sum(sum(one.values()) for one in kills.values())
    wanted = size.of(60, 1000)
    faults = (FULL, READ_ONLY, *FAULTS.values(), "photos gone")
    figures = [
        Figure("kills", total, f"at least {wanted}", total >= wanted),
        *figures,
        Figure("kinds of moments", len({moment for one in kills.values() for moment in one})),
        *(Figure(f"trials: {what}", found[what], "some", found[what] > 0) for what in faults),
        Figure(
            "trials with an equal outcome",
            f"{found['equal']} of {found['trials']}",
            "all",
            found["equal"] == found["trials"],
        ),
        Figure("half files read", found["half files read"], "0", not found["half files read"]),
        Figure("processes left behind", found["left behind"], "0", not found["left behind"]),
        Figure("commands that did not end as they should", len(problems), "0", not problems),
    ]
    if not problems:
        shutil.rmtree(place)
    report("Crashes", figures, size, kills=kills, problems=problems)


if __name__ == "__main__":
    main()
