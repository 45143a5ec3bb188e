import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mlcil.core import files
from mlcil.core.errors import UserError
from mlcil.core.files import (
    read_json,
    sha256_of,
    write_atomically,
    write_bytes,
    write_folder,
    write_json,
    write_text,
)
from mlcil.training.states import load_state, save_state

# Replaces the checkpoint argv[1] by a larger one, on a system that writes no file beyond 20 kB.
FULL_DISK = """
import resource, sys
from pathlib import Path
import torch
from mlcil.core.errors import UserError
from mlcil.training.states import save_state
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    save_state(Path(sys.argv[1]), {"weight": torch.zeros(100_000)}, {"step": 2})
except UserError as error:
    print(error)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "new" / "deeper" / "file.txt"
    for text in ("first", "zweites, länger"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert names(path.parent) == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "private"
    path.write_text("old")
    path.chmod(0o600)
    write_bytes(path, b"\0new")
    assert path.read_bytes() == b"\0new"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), OSError("odd")])
def test_a_failing_write_leaves_the_old_file_and_no_other(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write(partial: Path) -> None:
        partial.write_text("half of the n")
        raise error

    with pytest.raises(UserError) as caught:
        write_atomically(path, write)
    assert str(caught.value) == (
        f"cannot write {path}: {error.strerror or error}. What was saved before is intact; "
        "make room and repeat the command to continue"
    )
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_file_of_a_folder_that_fails_has_its_later_name(tmp_path):
    def fill(partial: Path) -> None:
        (partial / "file").write_text("a file where a folder should be")
        write_text(partial / "file" / "model", "text")

    with pytest.raises(UserError, match=f"^cannot write {tmp_path}/tagger/file/model: "):
        write_folder(tmp_path / "tagger", fill)
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_bug_or_an_interrupt_passes_through_and_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write(partial: Path) -> None:
        partial.write_text("half of the n")
        raise error

    with pytest.raises(error):
        write_atomically(path, write)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    seen = []

    def write(partial: Path) -> None:
        partial.write_text("new")
        seen.append((path.read_text(), partial.parent.parent))

    write_atomically(path, write)
    assert seen == [("old", tmp_path)]  # the same folder, for a rename between disks is none
    assert path.read_text() == "new"


def test_a_full_disk_found_only_when_flushing(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_json(path, [1])

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_json(path, [1, 2])
    assert read_json(path) == [1]
    assert names(tmp_path) == ["file.json"]


ORPHANS = """
import os, signal, sys
from pathlib import Path
from mlcil.core.files import write_atomically, write_folder
def die(partial):
    (partial / "file" if partial.is_dir() else partial).write_text("half of the f")
    os.kill(os.getpid(), signal.SIGKILL)
(write_folder if sys.argv[2] == "folder" else write_atomically)(Path(sys.argv[1], sys.argv[2]), die)
"""


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_killed_process_was_writing_is_removed_by_the_next(tmp_path, kind):
    assert subprocess.run([sys.executable, "-c", ORPHANS, str(tmp_path), kind], check=False).returncode == -9
    (orphan,) = tmp_path.iterdir()
    (tmp_path / ".mine.partial").touch()
    write_text(tmp_path / "another.txt", "text")
    assert names(tmp_path) == [".mine.partial", "another.txt"], orphan


@pytest.mark.parametrize(("hours", "stays"), [(1, True), (25, False)])
def test_what_another_machine_was_writing_stays_for_a_day(tmp_path, monkeypatch, hours, stays):
    with monkeypatch.context() as patch:
        patch.setattr(files, "_HERE", "abcdef")
        patch.setattr(shutil, "rmtree", lambda *given, **options: None)  # it was killed
        write_text(tmp_path / "theirs.txt", "text")
    (orphan,) = tmp_path.glob(".*")
    then = time.time() - 3600 * hours
    os.utime(orphan, (then, then))
    monkeypatch.setattr(files, "_tidied", set())  # as in another process
    write_text(tmp_path / "ours.txt", "text")
    assert orphan.exists() == stays
    assert names(tmp_path)[-2:] == ["ours.txt", "theirs.txt"]


def test_the_names_of_new_folders_are_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "flush_folder", flushed.append)
    write_text(tmp_path / "a" / "b" / "c.txt", "text")
    assert flushed == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_what_another_process_is_writing_stays(tmp_path, monkeypatch):
    def write(partial: Path) -> None:
        monkeypatch.setattr(files, "_tidied", set())  # as in another process
        write_text(tmp_path / "inner.txt", "text")
        partial.write_text("text")

    write_atomically(tmp_path / "outer.txt", write)
    write_folder(tmp_path / "folder", lambda partial: write(partial / "file"))
    assert names(tmp_path) == ["folder", "inner.txt", "outer.txt"]


def test_a_file_and_then_its_name_are_flushed(tmp_path, monkeypatch):
    path, flushed, real = tmp_path / "file.json", [], os.fsync

    def fsync(handle: int) -> None:
        flushed.append((Path(os.readlink(f"/proc/self/fd/{handle}")), path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(path, [1])
    assert flushed[0][0].parent.name.endswith(".partial")
    assert flushed[-1] == (tmp_path, True)  # after the move


def test_a_folder_that_cannot_be_flushed_is_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_json(tmp_path / "file.json", [1])
    assert read_json(tmp_path / "file.json") == [1]


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write .*taken/file\.txt: "):
        write_text(tmp_path / "taken" / "file.txt", "text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*folder: Is a directory"):
        write_text(tmp_path / "folder", "text")
    assert names(tmp_path) == ["folder", "taken"]


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    path, weight = tmp_path / "state.safetensors", torch.arange(100.0)
    save_state(path, {"weight": weight}, {"step": 1})
    before = path.read_bytes()
    ended = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    (line,) = ended.stdout.splitlines()
    assert line.startswith(f"cannot write {path}: ")
    assert "File too large" in line
    assert path.read_bytes() == before
    tensors, values = load_state(path)
    assert torch.equal(tensors["weight"], weight)
    assert values == {"step": 1}
    assert names(tmp_path) == ["state.safetensors"]


def test_json_round_trip(tmp_path):
    value = {"ä": [1, 2.5, None, True], "b": {"c": "text"}}
    write_json(tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value
    assert (tmp_path / "file.json").read_text().endswith("}\n")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path, number):
    write_json(tmp_path / "file.json", 1)
    with pytest.raises(ValueError):
        write_json(tmp_path / "file.json", {"loss": number})
    assert read_json(tmp_path / "file.json") == 1
    assert names(tmp_path) == ["file.json"]


def test_reading_json_says_what_is_wrong(tmp_path):
    path = tmp_path / "file.json"
    with pytest.raises(UserError) as caught:
        read_json(path)
    assert str(caught.value) == f"{path} does not exist"
    for content in (b"{", b"", b"\xff\xfe", b'{"a": 1} x'):
        path.write_bytes(content)
        with pytest.raises(UserError) as caught:
            read_json(path)
        assert str(caught.value).startswith(f"{path} is not valid JSON: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError) as caught:
        read_json(tmp_path)
    assert str(caught.value) == f"cannot read {tmp_path}: Is a directory"


def test_sha256_is_of_the_content(tmp_path):
    (tmp_path / "file").write_bytes(b"content" * 10**5)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"content" * 10**5).hexdigest()
