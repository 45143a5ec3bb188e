"""Which photos the page lists, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UserError
from ..teaching.book import TaughtLabel
from ..teaching.workbench import Workbench
from .teach_views import tile

SHOW = ("all", "untagged", "tagged", "marked")
MOST = 500  # photos in one answer


@dataclass(frozen=True)
class Wanted:
    """Which photos are wanted; see the interface's description."""

    show: str = "all"
    label: str | None = None
    like: str | None = None
    search: str = ""
    offset: int = 0
    limit: int = 200


def listed_photos(bench: Workbench, wanted: Wanted) -> dict[str, Any]:
    """Some photos of a list, and how many there are in all.

    Raises:
        UserError: there is no such list or photo.
    """
    if wanted.show not in SHOW:
        raise UserError(f"got show={wanted.show!r}, expected {', '.join(SHOW)}")
    with bench.lock:
        label = None if wanted.label is None else bench.book.labels.get(wanted.label, TaughtLabel(wanted.label))
        found = None if label is None else bench.scorer.of(label)
        told = np.empty(0, np.int8) if label is None else bench.told(label)
        order = _order(bench, wanted, None if found is None else found.scores)
        order = order[_is_shown(bench, wanted, label, told)[order]]
        part = order[max(wanted.offset, 0) :][: min(max(wanted.limit, 0), MOST)]
        tiles = [tile(bench, int(row), told, found) for row in part]
        return {"total": len(order), "sequence": bench.journal.sequence, "photos": tiles}


def _order(bench: Workbench, wanted: Wanted, scores: NDArray[np.float32] | None) -> NDArray[np.int64]:
    """(N,) rows: by similarity, else by the score of the label, else by path."""
    if wanted.like is not None:
        row = bench.photos.row(wanted.like)
        if row is None:
            raise UserError(f"there is no photo {wanted.like[:40]!r} here")
        return np.argsort(-bench.photos.similar(row), kind="stable")
    if scores is None:
        return bench.photos.by_path()
    ranked = np.argsort(-scores, kind="stable")
    return np.concatenate([ranked, np.arange(len(scores), len(bench.photos))])


def _is_shown(bench: Workbench, wanted: Wanted, label: TaughtLabel | None, told: NDArray[np.int8]) -> NDArray[np.bool_]:
    """(N,) which photos are in the list."""
    count = len(bench.photos)
    shown, tags = np.ones(count, bool), bench.tags()
    if wanted.show == "untagged":
        for one in tags.values():
            shown[: len(one)] &= ~one
    elif wanted.show == "tagged":
        shown &= _widened(tags.get(label.name) if label else None, count)
    elif wanted.show == "marked":
        marked = {row for photo in (label.marks if label else ()) if (row := bench.photos.row(photo)) is not None}
        shown[:] = False
        shown[sorted(marked)] = True
    if text := wanted.search.strip().casefold():
        by_name = np.array([text in bench.photos.name(row).casefold() for row in range(count)], bool)
        for name, one in tags.items():
            if text in name.casefold():
                by_name |= _widened(one, count)
        shown &= by_name
    return shown


def _widened(tags: NDArray[np.bool_] | None, count: int) -> NDArray[np.bool_]:
    wide = np.zeros(count, bool)
    if tags is not None:
        wide[: len(tags)] = tags
    return wide
