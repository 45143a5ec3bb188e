"""The folder in which a tagger is taught, and the versions of the tagger that come out of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ..core.errors import UserError
from ..core.files import read_json, write_json
from ..core.locks import FileLock
from ..serving.tagger import Tagger
from ..serving.tagger_files import CONFIG

SHOWN = 100  # versions that are listed


class Version(NamedTuple):
    """A tagger that was saved."""

    name: str
    labels: int  # how many it has
    saved: str  # date and time, as in 2026-11-18T09:30:00+00:00


class TeachingFolder:
    """A folder that one process at a time teaches in.

    Arguments:
        path: made if it is not there.

    Raises:
        UserError: another process has it, it belongs to another tagger, or it cannot be written.
    """

    def __init__(self, path: Path, tagger: Tagger) -> None:
        self.path = path
        self.name = Path(str(tagger.path)).name  # of the tagger
        self.home = tagger.path.resolve().parent if isinstance(tagger.path, Path) else path.resolve().parent
        self._known: dict[Path, Version] = {}
        self._lock = _claimed(path)
        try:
            self._check_same(tagger)
        except UserError:
            self.close()
            raise

    def close(self) -> None:
        """Let others have it."""
        self._lock.close()

    @property
    def journal(self) -> Path:
        """The file of what was said."""
        return self.path / "marks.log"

    @property
    def index(self) -> Path:
        """The file of what is known about photos."""
        return self.path / "photos.sqlite"

    def saved_until(self) -> int:
        """The line of the journal up to which everything was saved."""
        file = self.path / "saved.json"
        if not file.exists():
            return 0
        found = read_json(file)
        if not isinstance(found, dict) or not isinstance(found.get("sequence"), int):
            raise UserError(f"{file} does not say what was saved; delete it, and everything counts as unsaved")
        return int(found["sequence"])

    def note_save(self, sequence: int, name: str) -> None:
        """Remember that everything up to this line of the journal was saved under a name."""
        write_json(self.path / "saved.json", {"sequence": sequence, "name": name})

    def versions(self) -> list[Version]:
        """The versions of the tagger that there are, the oldest first."""
        found = sorted((one for one in self.home.iterdir() if self._is_version(one)), key=_number)[-SHOWN:]
        for path in found:
            if path not in self._known:  # a version is written once and never changed
                names = read_json(path / CONFIG)["label_names"]
                saved = datetime.fromtimestamp(int((path / CONFIG).stat().st_mtime), UTC).isoformat()
                self._known[path] = Version(path.name, len(names), saved)
        return [self._known[path] for path in found]

    def next_version(self) -> Path:
        """A free folder for the next version, as in cats-v2."""
        number = 1 + max((_number(one) for one in self.home.iterdir() if self._is_version(one)), default=0)
        while (path := self.home / f"{self._stem}-v{number}").exists():
            number += 1
        return path

    def version(self, name: str) -> Path:
        """The folder of a version by its name.

        Raises:
            UserError: this is not the name of a folder.
        """
        if Path(name).name != name or not name.strip(". "):
            raise UserError(f"got {name!r} as the name of a tagger, expected the name of a folder")
        return self.home / name

    @property
    def _stem(self) -> str:
        return re.sub(r"-v[1-9]\d*$", "", self.name)

    def _is_version(self, path: Path) -> bool:
        return bool(re.fullmatch(re.escape(self._stem) + r"-v[1-9]\d*", path.name)) and (path / CONFIG).is_file()

    def _check_same(self, tagger: Tagger) -> None:
        file, own = self.path / "tagger.json", _identity(tagger)
        if not file.exists():
            write_json(file, own)
        elif (found := read_json(file)) != own:
            other = found.get("name") if isinstance(found, dict) else "an unknown one"
            raise UserError(f"{self.path} holds marks for another tagger ({other}); give another --work folder")


def _number(version: Path) -> int:
    return int(version.name.rpartition("-v")[2])


def _identity(tagger: Tagger) -> dict[str, object]:
    """What marks refer to."""
    steps = [[step.number, step.learned, step.images] for step in tagger.steps]
    return {"name": Path(str(tagger.path)).name, "labels": list(tagger.classes), "steps": steps}


def _claimed(folder: Path) -> FileLock:
    lock = FileLock(folder / ".lock")
    if not lock.try_to_claim():
        lock.close()
        raise UserError(f"another program is teaching in {folder}; use its page, or give another --work folder")
    return lock
