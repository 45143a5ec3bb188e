"""From image files to uint8 pixels of one size, decoded once and kept in a cache shared by every run."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..core.errors import UserError
from ..core.files import write_json
from .images import LabelledImages

FORMAT = 1  # part of every cache key: raise it when decoding changes by one bit
CHUNK = 64  # images between two flushes, all that an interrupted build can lose


class BadImage(UserError):  # noqa: N818 - a noun, as it is also returned and collected
    """An image file that cannot be decoded; `reason` says why without naming the file."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it survives pickling
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"cannot read image {self.path}: {self.reason}"


class PixelStore(Protocol):
    """Images of one size by row number. Every store can be pickled for a loader's worker process."""

    @property
    def size(self) -> int:
        """The side of every image."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]: ...  # (n, size, size, 3)


class OpenedPixels(NamedTuple):
    """The pixels of a data set, and what the user should know about them.

    Attributes:
        store: the pixels, as many rows as there were images.
        bad: row -> one line naming the file and the reason. Such a row must not be read: it is black in a
            cached store and raises `BadImage` in a decoding one.
        note: one line that says why the cache was not used although it was asked for, else None.
    """

    store: PixelStore
    bad: dict[int, str]
    note: str | None = None


class MemoryPixels:
    """Pixels that exist only in memory, uint8 (N, H, W, 3), resized once if needed."""

    def __init__(self, pixels: NDArray[np.uint8], size: int) -> None:
        self.size = size
        fits = pixels.shape[1:3] == (size, size)
        resized = pixels if fits else [_resized(Image.fromarray(image), size) for image in pixels]
        self._pixels = np.asarray(resized, np.uint8).reshape(len(pixels), size, size, 3)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self._pixels[rows]


class DecodedPixels:
    """Pixels decoded from their files at every access: slow, but nothing is stored."""

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self.paths, self.size = tuple(paths), size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        images = [decode(self.paths[row], self.size) for row in rows]
        return np.asarray(images, np.uint8).reshape(len(rows), self.size, self.size, 3)


class CachedPixels:
    """Pixels in a memory-mapped file of raw uint8 (N, size, size, 3)."""

    def __init__(self, path: Path, count: int, size: int) -> None:
        self.path, self.count, self.size = path, count, size
        self._map: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        if len(rows) == 0:  # an empty file cannot be mapped
            return np.empty((0, self.size, self.size, 3), np.uint8)
        if self._map is None:
            self._map = np.memmap(self.path, np.uint8, "r", shape=(self.count, self.size, self.size, 3))
        return np.asarray(self._map[rows])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}  # the other process maps the file itself


def default_cache() -> Path:
    """The cache folder: `$MLCIL_CACHE`, else `$XDG_CACHE_HOME/mlcil`, else `~/.cache/mlcil`."""
    if own := os.environ.get("MLCIL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlcil"


def decode(path: str, size: int) -> NDArray[np.uint8]:
    """Decode one image file to RGB, squashed to a square.

    Returns:
        uint8 (size, size, 3).

    Raises:
        BadImage: the file is missing, truncated, not an image, ...
    """
    return _decoded(path, _read(path), size)


def open_pixels(
    images: LabelledImages,
    size: int,
    *,
    cache: Path | None,
    limit_bytes: int,
    workers: int = 2,
    on_progress: Callable[[int, int], None] | None = None,
) -> OpenedPixels:
    """Make the pixels of all images available at one size, and find the bad files before training does.

    Arguments:
        images: N images, in files or in memory.
        size: the side every image is resized to.
        cache: the folder of the cache; None decodes every image now as a check and again at each access.
        limit_bytes: the cache's limit; the least recently used entries make room.
        workers: decoding threads.
        on_progress: called with (images done, N) while images are decoded.

    Raises:
        UserError: the cache folder cannot be written (full disk, no permission); what was done is kept.
    """
    if images.pixels is not None:
        return OpenedPixels(MemoryPixels(images.pixels, size), {})
    job = _Decoding(images.paths, size, workers, on_progress)
    if cache is None:
        return _open_decoded(job)
    try:
        return _open_cached(job, cache, limit_bytes)
    except _NoRoomError as reason:
        return _open_decoded(job)._replace(note=str(reason))
    except OSError as error:
        raise UserError(
            f"cannot use the pixel cache {cache}: {error.strerror or error}. Make room or choose another "
            "folder; repeating the command continues where it stopped"
        ) from error


@dataclass(frozen=True)
class _Decoding:
    """What is to be decoded, and how."""

    paths: tuple[str, ...]
    size: int
    workers: int
    on_progress: Callable[[int, int], None] | None

    def digests(self) -> list[bytes]:
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(lambda path: _fingerprint(path)[1], self.paths))

    def chunks(self, rows: Sequence[int], digests: Sequence[bytes] | None = None) -> Iterator[_Chunk]:
        """Decode these rows a chunk at a time; a file that no longer has its digest is an error."""

        def attempt(row: int) -> NDArray[np.uint8] | BadImage:
            content, digest = _fingerprint(self.paths[row])
            if digests is not None and digest != digests[row]:
                raise UserError(f"image {self.paths[row]} changed while it was read; repeat the command")
            try:
                return (
                    content
                    if isinstance(content, BadImage)
                    else _decoded(self.paths[row], content, self.size)
                )
            except BadImage as error:
                return error

        skipped = len(self.paths) - len(rows)
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK]
                yield dict(zip(chunk, pool.map(attempt, chunk), strict=True))
                if self.on_progress:
                    self.on_progress(skipped + start + len(chunk), len(self.paths))

    def named(self, reasons: dict[int, str]) -> dict[int, str]:
        return {row: str(BadImage(self.paths[row], reason)) for row, reason in reasons.items()}


_Chunk = dict[int, NDArray[np.uint8] | BadImage]


class _NoRoomError(Exception):
    """The entry does not fit below the cache's limit."""


@dataclass(frozen=True)
class _Entry:
    """The files `<key>.*` of one data set at one size.

    It is finished when `.u8` (the pixels) and `.json` (the manifest) agree. Until then the pixels grow in
    `.partial`, and `.done` has one byte per row, 1 once that row's pixels are safely on the disk. `.lock` is
    locked exclusively by a builder or a remover and shared by whoever uses the pixels; the system releases
    it when its holder dies.
    """

    folder: Path
    key: str
    count: int
    size: int

    @property
    def row_bytes(self) -> int:
        return self.size * self.size * 3

    @property
    def bytes(self) -> int:
        return self.count * self.row_bytes

    def file(self, kind: str) -> Path:
        return self.folder / f"{self.key}.{kind}"

    def bad_rows(self) -> dict[int, str] | None:
        """Row -> reason of a finished entry, None if it is not finished."""
        try:
            manifest = json.loads(self.file("json").read_text())
            found = manifest["format"], manifest["count"], manifest["size"], self.file("u8").stat().st_size
            bad = {int(row): str(reason) for row, reason in manifest["bad"].items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return bad if found == (FORMAT, self.count, self.size, self.bytes) else None


def _open_decoded(job: _Decoding) -> OpenedPixels:
    reasons = {
        row: result.reason
        for chunk in job.chunks(range(len(job.paths)))
        for row, result in chunk.items()
        if isinstance(result, BadImage)
    }
    return OpenedPixels(DecodedPixels(job.paths, job.size), job.named(reasons))


def _open_cached(job: _Decoding, folder: Path, limit: int) -> OpenedPixels:
    needed = len(job.paths) * job.size * job.size * 3
    if needed > limit:
        raise _NoRoomError(_no_room(folder, needed, limit))
    folder.mkdir(parents=True, exist_ok=True)
    digests = job.digests()
    entry = _Entry(folder, _key(digests, job.size), len(job.paths), job.size)
    lock = os.open(entry.file("lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        bad = _finish(entry, lock, lambda: _build(entry, job, digests, limit))
        os.utime(entry.file("u8"))  # most recently used
    except BaseException:
        os.close(lock)
        raise
    store = CachedPixels(entry.file("u8"), entry.count, entry.size)
    weakref.finalize(store, os.close, lock)  # nobody removes the file while the store is alive
    return OpenedPixels(store, job.named(bad))


def _finish(entry: _Entry, lock: int, build: Callable[[], None]) -> dict[int, str]:
    """Return the entry's bad rows with the lock held shared; build it first unless another process did."""
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Looked at again after each change of the lock: changing it lets go of it for a moment.
        if (bad := entry.bad_rows()) is not None:
            return bad
        fcntl.flock(lock, fcntl.LOCK_EX)
        if entry.bad_rows() is None:
            build()


def _build(entry: _Entry, job: _Decoding, digests: Sequence[bytes], limit: int) -> None:
    done = _reserve(entry, limit)
    reasons: dict[int, str] = {}
    with entry.file("partial").open("r+b") as pixels, entry.file("done").open("r+b") as marks:
        for chunk in job.chunks([row for row in range(entry.count) if not done[row]], digests):
            good = {row: image for row, image in chunk.items() if not isinstance(image, BadImage)}
            # A bad row is not marked: a continued build meets it again and learns its reason.
            reasons |= {row: image.reason for row, image in chunk.items() if isinstance(image, BadImage)}
            _put(pixels, {row * entry.row_bytes: image.tobytes() for row, image in good.items()})
            _put(marks, dict.fromkeys(good, b"\1"))  # only now: the pixels are on the disk
    manifest = {"format": FORMAT, "count": entry.count, "size": entry.size}
    write_json(entry.file("json"), manifest | {"bad": {str(row): why for row, why in reasons.items()}})
    entry.file("partial").replace(entry.file("u8"))
    entry.file("done").unlink()


def _put(file: io.BufferedRandom, parts: dict[int, bytes]) -> None:
    """Write each part at its offset. Not through a memory map, where a full disk kills the process."""
    for offset, data in parts.items():
        file.seek(offset)
        file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _reserve(entry: _Entry, limit: int) -> bytes:
    """Make room, give the partial file its full length and return the marks of an earlier attempt."""
    partial, marks = entry.file("partial"), entry.file("done")
    with (entry.folder / "folder.lock").open("w") as folder_lock:
        # One process at a time, or two would count the same free space.
        fcntl.flock(folder_lock, fcntl.LOCK_EX)
        _make_room(entry, limit)
        with contextlib.suppress(FileNotFoundError):
            done = marks.read_bytes()
            if len(done) == entry.count and partial.stat().st_size == entry.bytes:
                return done
        marks.write_bytes(bytes(entry.count))
        with partial.open("wb") as file:
            file.truncate(entry.bytes)
    return bytes(entry.count)


def _make_room(entry: _Entry, limit: int) -> None:
    """Remove the least recently used other entries, finished or abandoned, until this one fits."""
    others = []
    for path in entry.folder.iterdir():
        if path.suffix in {".u8", ".partial"} and path.stem != entry.key:
            with contextlib.suppress(FileNotFoundError):  # renamed by its builder just now
                status = path.stat()
                others.append((status.st_mtime_ns, status.st_size, path))
    used = entry.bytes + sum(size for _, size, _ in others)
    for _, size, path in sorted(others):
        if used > limit and _remove(entry.folder, path.stem):
            used -= size
    if used > limit:
        raise _NoRoomError(_no_room(entry.folder, entry.bytes, limit))


def _remove(folder: Path, key: str) -> bool:
    """Remove an entry unless it is being built or used; its lock file stays, someone may wait on it."""
    with (folder / f"{key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        for kind in ("u8", "json", "done", "partial"):
            (folder / f"{key}.{kind}").unlink(missing_ok=True)
    return True


def _no_room(folder: Path, needed: int, limit: int) -> str:
    return (
        f"the pixels need {needed / 1e9:.3g} GB and the cache {folder} may hold {limit / 1e9:.3g} GB, "
        "part of it perhaps in use; decoding at every access instead, which is slower"
    )


def _key(digests: Sequence[bytes], size: int) -> str:
    whole = blake2b(f"mlcil pixels {FORMAT} {size} ".encode(), digest_size=20)
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def _fingerprint(path: str) -> tuple[bytes | BadImage, bytes]:
    """A file's content, or why it has none, and a digest of either."""
    try:
        content = _read(path)
    except BadImage as error:
        return error, blake2b(error.reason.encode(), digest_size=32, person=b"unreadable").digest()
    return content, blake2b(content, digest_size=32).digest()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise BadImage(path, "missing") from None
    except IsADirectoryError:
        raise BadImage(path, "not an image but a folder") from None
    except OSError as error:
        raise BadImage(path, f"unreadable ({error.strerror})") from None


def _decoded(path: str, content: bytes, size: int) -> NDArray[np.uint8]:
    try:
        with _without_warnings(), Image.open(io.BytesIO(content)) as image:
            return _resized(_rgb(image), size)
    except UnidentifiedImageError:
        raise BadImage(path, "not an image" if content else "empty") from None
    except Image.DecompressionBombError:
        raise BadImage(path, "too many pixels to decode safely") from None
    except MemoryError:
        raise  # the machine's fault, not the file's
    except Exception as error:  # decoders of broken files raise almost anything
        what = " ".join(str(error).split()) or type(error).__name__
        reason = (
            "truncated" if "truncated" in what.lower() or isinstance(error, EOFError) else f"damaged ({what})"
        )
        raise BadImage(path, reason) from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to white
        return Image.fromarray((np.asarray(image) / 257).clip(0, 255).astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _resized(image: Image.Image, size: int) -> NDArray[np.uint8]:
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))


class _Silence:
    """Ignores warnings while any thread decodes: `catch_warnings` alone is not safe in threads."""

    def __init__(self) -> None:
        self._lock, self._depth, self._filters = threading.Lock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._filters.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self._filters.close()


_without_warnings = _Silence()
