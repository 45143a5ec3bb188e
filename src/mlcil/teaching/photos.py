"""The photos that are shown and taught with: their names and features in memory, more of them as they are looked at."""

from __future__ import annotations

import os
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from .columns import Floats

FIRST = 1024  # photos for which there is room at first


class Photos:
    """Photos by row; those with the same content are one photo. Rows are only ever added.

    Arguments:
        width: d, the number of features of a photo, the last of which is 1.
        total: files that are to be looked at.

    Attributes:
        problems: files that are no photos: name and reason.
    """

    def __init__(self, width: int, total: int) -> None:
        self.total = total
        self.problems: list[tuple[str, str]] = []
        self._paths: list[str] = []
        self._digests: list[bytes] = []
        self._sizes: list[tuple[int, int]] = []
        self._row_of: dict[str, int] = {}
        self._features = np.empty((FIRST, width), np.float32)
        self._files = 0
        self._mean = self._variance = np.empty(0, np.float32)  # of each feature, for `similar`
        self._lengths: NDArray[np.float32] | None = None  # (N,) of the photos so far, with these
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def looked_at(self) -> int:
        """Files that were looked at so far."""
        return self._files

    @property
    def features(self) -> NDArray[np.float32]:
        """(N, d) of the photos so far."""
        with self._lock:
            return self._features[: len(self._paths)]

    @property
    def fingerprints(self) -> NDArray[np.int64]:
        """(N,) by which a ledger knows photos."""
        return np.frombuffer(b"".join(one[:8] for one in self._digests[: len(self)]), np.int64)

    def row(self, photo: str) -> int | None:
        """The row of a photo by its id, None if there is none (yet)."""
        return self._row_of.get(photo)

    def id(self, row: int) -> str:
        """32 hexadecimal digits that stand for the content of a photo."""
        return self._digests[row].hex()

    def digest(self, row: int) -> bytes:
        """16 bytes that stand for the content of a photo."""
        return self._digests[row]

    def path(self, row: int) -> str:
        """The file of a photo; the first one, if several have the same content."""
        return self._paths[row]

    def name(self, row: int) -> str:
        """The name of its file; what is not valid text is replaced."""
        return _text(os.path.basename(self._paths[row]))

    def size(self, row: int) -> tuple[int, int]:
        """Width and height in pixels, as a person sees the photo."""
        return self._sizes[row]

    def add(self, path: str, digest: bytes, size: tuple[int, int], features: NDArray[np.float32]) -> None:
        """Take in a photo with features (d,), or learn that a file has the content of one that is there."""
        with self._lock:
            self._files += 1
            if digest.hex() in self._row_of:
                return
            row = len(self._paths)
            if row == len(self._features):
                self._features = np.concatenate([self._features, np.empty_like(self._features)])
            self._features[row] = features
            self._digests.append(digest)
            self._sizes.append(size)
            self._paths.append(path)
            self._row_of[digest.hex()] = row

    def add_problem(self, path: str, reason: str) -> None:
        """Note that a file is no photo, and why."""
        with self._lock:
            self._files += 1
            self.problems.append((_text(path), reason))

    def by_path(self) -> NDArray[np.int64]:
        """(N,) rows in the order of their paths."""
        return np.argsort(np.array(self._paths[: len(self)], dtype=object), kind="stable").astype(np.int64)

    def similar(self, row: int) -> Floats:
        """(N,) how similar photos are to one of them, -1 to 1, by their features as they differ among these photos."""
        features = self.features[:, :-1]
        if self._lengths is None or len(self._lengths) != len(features):
            some = features[:: max(1, len(features) // 2000)]
            self._mean, self._variance = some.mean(axis=0), some.var(axis=0) + 1e-9
            inverse = 1 / self._variance
            squares = features**2 @ inverse - 2 * features @ (self._mean * inverse) + self._mean**2 @ inverse
            self._lengths = np.sqrt(np.maximum(squares, 1e-9))
        weights = (features[row] - self._mean) / self._variance
        products = features @ weights - self._mean @ weights
        return np.asarray(products / (self._lengths * self._lengths[row]), np.float64)


def _text(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="replace")
