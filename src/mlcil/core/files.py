"""Writing files so that a crash, a kill or a full disk never leaves a broken one behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import UserError
from .remote import check_local

PARTIAL = ".partial"  # how the name of a file ends while it is being written


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary neighbour of `path`, then move it into place in one step.

    A file that stood there before passes its permissions on.

    Raises:
        UserError: the file system refused (full, read-only, ...). Whatever stood at `path` is untouched.
    """
    check_local(path)
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
        partial = Path(name)
        os.close(handle)
        write(partial)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.chmod(stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644)
        partial.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}. What was saved before is intact; "
            "make room and repeat the command to continue"
        ) from error
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink()


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write files into a temporary neighbour of a new folder, then move it into place in one step.

    Raises:
        UserError: something is at `path` already, or the file system refused; nothing is left behind then.
    """
    check_local(path)
    if path.exists() or path.is_symlink():
        raise UserError(f"{path} exists already; choose another place, nothing is ever overwritten")
    partial = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL))
        fill(partial)
        partial.chmod(0o755)
        partial.rename(path)  # fails unless the place is free, or an empty folder that somebody just made
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically."""
    write_atomically(path, lambda partial: _put(partial, data))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON to `path` atomically. NaN is refused: it is not JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Read a JSON file; `object_hook` may change each mapping while it is read.

    Raises:
        UserError: the file is missing, cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=object_hook)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
