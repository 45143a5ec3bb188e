"""The moments at which a trial may end a process or let the disk fail: whatever it does to files below a folder.

All of it is installed in the child of a trial; mlcil itself knows nothing of it.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

WRITES = os.O_WRONLY | os.O_RDWR
_HALF_NAME = re.compile(r"^\.(?P<name>.+)\.[^.]+\.partial$")


class Moment(NamedTuple):
    """When something happens to a child.

    Attributes:
        deed: open, flush, move, remove or call.
        kind: of file, or what is called.
        how: before, half or after it; or the name of an error of the system, which it and all later writing get.
        count: how many such deeds pass before it.
    """

    deed: str
    kind: str
    how: str
    count: int = 0  # type: ignore[assignment]


def kind_of(path: str, folder: str) -> str:
    """The kind of a file by its path."""
    parts = [
        one["name"] if (one := _HALF_NAME.match(part)) else part for part in os.path.relpath(path, folder).split("/")
    ]
    if "cache" in parts:
        return "sums of a shard" if any(part.startswith("sums-") for part in parts) else "row of the cache"
    if any(part.endswith(".parts") for part in parts):
        return "part of predictions"
    if parts[0].startswith("tagger") and ".teach" not in parts[0]:
        return "tagger " + (parts[1] if len(parts) > 1 else "folder")
    return re.sub(r"^session-\d+$", "folder of a session", parts[-1])


class Watcher:
    """Sees what this process, and those it forks, do below a folder, and lets something happen at a moment.

    Arguments:
        report: a file outside of the folder that gets a line for each deed, and for each half file that is read.
        moment: None to let nothing happen.
    """

    def __init__(self, folder: Path, report: Path, moment: Moment | None) -> None:
        self.folder, self.moment = str(folder.resolve()), moment
        self._left = moment.count if moment else 0
        self._report = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._made: set[str] = set()
        self._is_failing = False

    def install(self) -> None:
        """Begin to watch."""
        sys.addaudithook(self._on_event)
        os.fsync = self._around(os.fsync, "flush", lambda handle: os.readlink(f"/proc/self/fd/{handle}"))
        for name, deed in (("replace", "move"), ("rename", "move"), ("unlink", "remove"), ("remove", "remove")):
            setattr(os, name, self._around(getattr(os, name), deed, os.fspath))

    def call(self, owner: Any, name: str, kind: str) -> None:
        """Take the calls of a function for deeds as well."""
        real = getattr(owner, name)

        def watched(*given: Any, **more: Any) -> Any:
            self._pass("call", kind, "before", "")
            found = real(*given, **more)
            self._pass("call", kind, "after", "")
            return found

        setattr(owner, name, watched)

    def _around(self, real: Callable[..., Any], deed: str, path_of: Callable[[Any], Any]) -> Callable[..., Any]:
        def watched(first: Any, *given: Any, **more: Any) -> Any:
            path = os.path.abspath(os.fsdecode(path_of(first)))
            if not self._is_ours(path) or more.get("dir_fd") is not None:
                return real(first, *given, **more)
            target = os.path.abspath(os.fsdecode(given[0])) if deed == "move" else path
            kind = kind_of(target, self.folder)
            kind = "folder, after a move" if deed == "flush" and os.path.isdir(path) else kind
            self._pass(deed, kind, "before", path)
            self._pass(deed, kind, "half", path)
            found = real(first, *given, **more)
            self._pass(deed, kind, "after", path)
            return found

        return watched

    def _on_event(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "os.mkdir":
            self._made.add(os.path.abspath(os.fsdecode(given[0])))
        if event != "open" or not isinstance(given[0], str | bytes | os.PathLike) or not isinstance(given[2], int):
            return
        path = os.path.abspath(os.fsdecode(given[0]))
        if not self._is_ours(path):
            return
        if given[2] & WRITES:
            self._made.add(path)
            self._pass("open", kind_of(path, self.folder), "before", path)
            if given[2] & os.O_APPEND:
                self._pass("open", kind_of(path, self.folder), "half", path)
        elif ".partial" in path and not any(path.startswith(one) for one in self._made) and os.path.isfile(path):
            self._note(f"half file read\t{path}")

    def _is_ours(self, path: str) -> bool:
        is_other = path.endswith((".lock", "/answered")) or "/logs/" in path  # locks, our own notes, what runs print
        return path.startswith(self.folder + "/") and not is_other

    def _pass(self, deed: str, kind: str, how: str, path: str) -> None:
        """Let a moment pass, or not."""
        self._note(f"deed\t{deed}\t{kind}\t{how}")
        moment = self.moment
        if self._is_failing and how == "before" and deed != "call":
            self._fail()
        if moment is None or (deed, kind) != moment[:2]:
            return
        is_error = moment.how.startswith("E")
        if how != ("before" if is_error else moment.how):
            return
        self._left -= 1
        if self._left >= 0:
            return
        if is_error:
            self._is_failing = True
            self._note(f"error\t{deed}\t{kind}\t{moment.how}")
            self._fail()
        self.moment = None  # what follows opens files as well
        if how == "half":
            _halve(path, deed)
        self._note(f"kill\t{deed}\t{kind}\t{how}")
        os.kill(os.getpid(), signal.SIGKILL)

    def _fail(self) -> None:
        import errno

        assert self.moment is not None
        number = getattr(errno, self.moment.how)
        raise OSError(number, os.strerror(number))

    def _note(self, line: str) -> None:
        os.write(self._report, f"{line}\n".encode(errors="backslashreplace"))


def _halve(path: str, deed: str) -> None:
    """Leave a file as a kill in the middle of writing it does: without its second half, or with half a line more."""
    if deed == "open":
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, b'{"session": 1, "epo')
        os.close(handle)
    elif os.path.exists(path) and stat.S_ISREG(os.stat(path).st_mode):
        whole = Path(path).read_bytes()
        is_added_to = path.endswith(("marks.log", "metrics.jsonl"))  # and what was there stays
        start = whole.rstrip(b"\n").rfind(b"\n") + 1 if is_added_to else 0
        os.truncate(path, (start + len(whole)) // 2)
