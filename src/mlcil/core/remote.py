"""Files elsewhere: whatever a URL names that fsspec understands, such as s3://bucket/folder or file:///folder.

Each process opens URLs by itself. The package of a protocol finds credentials as it always does: in the environment or
in its own files.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import UserError, one_line, reason_of

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # one letter is a drive of Windows
_MERGED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # what a Path makes of it


class RemoteError(UserError):
    """A URL that cannot be read; `reason` says why without naming it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)  # both, so that it survives pickling
        self.url, self.reason = url, reason

    def __str__(self) -> str:
        return one_line(f"cannot read {self.url}: {self.reason}")


def is_url(name: str) -> bool:
    """Whether this is the name of something elsewhere and not a path."""
    return "://" in name and _URL.match(name) is not None


def path_or_url(name: str | Path) -> Path | str:
    """A path, or a URL as it is: a Path would merge its slashes."""
    return name if isinstance(name, str) and is_url(name) else Path(name)


def check_local(path: Path) -> None:
    """Make sure that what is to be written is named by a path.

    Raises:
        UserError: it was a URL.
    """
    if _MERGED.match(str(path)) and not os.path.exists(path.parts[0]):
        raise UserError(f"cannot write to {path}: expected a local path, as nothing is written to URLs")


def read_bytes(url: str) -> bytes:
    """All bytes of a file.

    Raises:
        RemoteError: it is missing, there is no permission, its protocol needs a package, ...
    """
    with _explained(url):
        system, path = _opened(url)
        return bytes(system.cat_file(path))


def list_files(url: str, pattern: str | None = None) -> list[str]:
    """The URLs of all files in a folder and in those below it, sorted; hidden ones are left out.

    Arguments:
        url: the folder; of a file, it is itself the only one.
        pattern: a URL with wildcards, for the files that match where `url` is neither.

    Raises:
        RemoteError: it does not exist, there is no permission, ...
    """
    with _explained(url):
        system, path = _opened(url)
        try:
            if system.info(path)["type"] != "directory":
                return [url]
            found, folder = system.find(path), path
        except FileNotFoundError:
            if pattern is None:
                raise
            found, folder = system.glob(_opened(pattern)[1]), re.split(r"[*?[]", path)[0]
        start = len(folder.rstrip("/"))
        return sorted(_url_of(name, url.rstrip("/"), system, path) for name in found if "/." not in name[start:])


@contextmanager
def fetched(url: str, names: Sequence[str]) -> Iterator[Path]:
    """A local folder with those of these files that the folder at the URL has; it is removed in the end.

    Raises:
        RemoteError: there is no permission, no room, ...
    """
    with tempfile.TemporaryDirectory(prefix="mlcil-") as folder:
        with _explained(url):
            system, path = _opened(url)
            for name in names:
                with suppress(FileNotFoundError):
                    system.get_file(f"{path.rstrip('/')}/{name}", os.path.join(folder, name))
        yield Path(folder)


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    from fsspec.core import url_to_fs  # only here, as most commands have no URL

    system, path = url_to_fs(url)
    return system, str(path)


def _url_of(name: str, url: str, system: Any, path: str) -> str:
    """The URL of a file that was found at a URL; it has the same host and user."""
    if path.strip("/") and url.endswith(path):
        return url.removesuffix(path) + name
    return str(system.unstrip_protocol(name))


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn whatever goes wrong into one line."""
    try:
        yield
    except FileNotFoundError:
        raise RemoteError(url, "missing") from None
    except IsADirectoryError:
        raise RemoteError(url, "not a file but a folder") from None
    except PermissionError as error:
        raise RemoteError(url, f"no permission ({reason_of(error)})") from None
    except ImportError as error:  # fsspec says which package
        raise RemoteError(url, f"its protocol needs a package ({reason_of(error)})") from None
    except MemoryError:
        raise
    except Exception as error:  # packages of protocols have errors of their own
        raise RemoteError(url, f"unreadable ({reason_of(error)})") from None
