"""Locks on file systems that have none; what the system's own do is tested where they are used."""

import errno
import fcntl
import os
import socket
import subprocess
import sys

import pytest

from mlcil.core import locks
from mlcil.core.errors import UserError
from mlcil.core.locks import FileLock, file_lock


@pytest.fixture(params=[errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def no_locks(request, monkeypatch):
    """A file system without locks."""

    def refuse(handle, kind):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)


def claimed(path):
    lock = FileLock(path)
    return lock, lock.try_to_claim()


def leave(path, owner):
    """Leave the file of an owner."""
    path.with_name(f"{path.name}.owner").write_text(owner)


def ended_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_holds_it_and_lets_go(tmp_path, no_locks):
    first, is_ours = claimed(tmp_path / ".lock")
    assert is_ours
    second, is_ours = claimed(tmp_path / ".lock")
    assert not is_ours
    second.close()  # which does not hold it
    assert not claimed(tmp_path / ".lock")[1]
    first.close()
    first.close()
    third, is_ours = claimed(tmp_path / ".lock")
    assert is_ours
    third.close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_whoever_waits_gets_it(tmp_path, no_locks, monkeypatch):
    monkeypatch.setattr(locks, "POLL_SECONDS", 0)
    first, _ = claimed(tmp_path / ".lock")
    said = []

    def on_wait():
        said.append("waiting")
        first.close()

    with file_lock(tmp_path / ".lock", on_wait):
        assert not claimed(tmp_path / ".lock")[1]
    assert said == ["waiting"]
    assert claimed(tmp_path / ".lock")[1]


@pytest.mark.parametrize("start", ["1", "-"])
def test_an_owner_that_died_is_replaced(tmp_path, no_locks, start):
    leave(tmp_path / ".lock", f"{socket.gethostname()} {ended_process()} {start}")
    assert claimed(tmp_path / ".lock")[1]
    assert not claimed(tmp_path / ".lock")[1]


def test_a_process_that_got_the_number_of_a_dead_owner_is_not_the_owner(tmp_path, no_locks):
    leave(tmp_path / ".lock", f"{socket.gethostname()} {os.getpid()} 1")
    assert claimed(tmp_path / ".lock")[1]


def test_a_removal_that_was_killed_is_done_again(tmp_path, no_locks):
    dead = f"{socket.gethostname()} {ended_process()} 1"
    leave(tmp_path / ".lock", dead)
    (tmp_path / ".lock.owner.removal").write_text(dead)
    lock, is_ours = claimed(tmp_path / ".lock")
    assert is_ours
    lock.close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("owner", "who"), [("elsewhere 17 5", "process 17 on elsewhere"), ("", "a process that it does not name")]
)
def test_an_owner_on_another_machine_is_named_with_its_file(tmp_path, no_locks, owner, who):
    leave(tmp_path / ".lock", owner)
    lock = FileLock(tmp_path / ".lock")
    with pytest.raises(UserError) as caught:
        lock.try_to_claim()
    assert str(caught.value) == (
        f"{tmp_path / '.lock.owner'} belongs to {who}; wait for it, or delete this file if that process has ended"
    )


def test_other_errors_are_one_line(tmp_path, monkeypatch):
    def broken(handle, kind):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(UserError, match=r"^cannot lock .*/\.lock: Input/output error$"):
        claimed(tmp_path / ".lock")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^cannot use folder .*/file: File exists$"):
        FileLock(tmp_path / "file" / ".lock")


@pytest.fixture
def nfs(monkeypatch):
    """Locks as on NFS, which locks only what may be written."""
    real = fcntl.flock

    def flock(handle, kind):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(handle, kind)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("nfs")
def test_a_lock_on_nfs(tmp_path):
    lock, is_ours = claimed(tmp_path / ".lock")
    assert is_ours
    assert not claimed(tmp_path / ".lock")[1]
    lock.close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.usefixtures("nfs")
def test_a_lock_file_on_nfs_that_may_only_be_read_is_held_by_nobody_else(tmp_path, monkeypatch):
    lock, is_ours = claimed(tmp_path / ".lock")
    assert is_ours
    real = os.open

    def opened_by_another_user(path, flags, *mode):
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", opened_by_another_user)
    with pytest.raises(UserError, match=r"cannot lock .*\.lock: this file system locks only files that you may write"):
        claimed(tmp_path / ".lock")
    lock.close()


CONTEND = """
import errno, fcntl, os, sys
from pathlib import Path
from mlcil.core import locks
def refuse(handle, kind):
    raise OSError(errno.ENOLCK, "no locks")
fcntl.flock, locks.POLL_SECONDS = refuse, 0
count = Path(sys.argv[1], "count")
for _ in range(100):
    with locks.file_lock(Path(sys.argv[1], ".lock"), lambda: None):
        count.write_text(str(int(count.read_text()) + 1))
"""


def test_processes_that_contend_for_an_owner_file_never_hold_it_together(tmp_path):
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", CONTEND, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "300"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "count"]


def test_an_owner_file_that_cannot_be_written_whole_is_not_left(tmp_path, no_locks, monkeypatch):
    def full(self, text):
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(UserError, match="cannot lock .*No space left on device"):
        claimed(tmp_path / ".lock")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
