"""The command `mlcil check`: what a data set holds, and what to mend before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.progress import progress_line
from ..core.words import counted, listed
from ..data.contents import Contents, FileFacts, index_file
from ..data.images import PRESENT, Level
from ..data.pixels import default_cache
from ..data.protocol import Protocol, Session
from ..data.review import Review, count_labels, review
from .console import say

CLASSES_SHOWN = 100
HEADINGS = {Level.FIX_FIRST: "fix first", Level.LOOK: "look at", Level.NOTE: "good to know"}


def check_data(
    spec: str,
    images: str | None,
    protocol: str | None,
    order: str | None,
    negatives: str,
    decode: bool,
    console: Console,
) -> bool:
    """Print what there is to know about a data set; returns whether nothing has to be fixed first.

    Arguments:
        decode: decode every image, and not only look at its header.

    Raises:
        UserError: the data set cannot be read, or the protocol does not fit it.
    """
    tell = partial(say, console)
    tell(f"reading {spec}")
    contents = Contents(index_file(default_cache()), on_progress=progress_line(tell, "looking into image files"))
    found = review(spec, contents, images, protocol, order, negatives, decode)
    show_review(found, console)
    return not any(level == Level.FIX_FIRST for level, _ in found.findings)


def show_review(review: Review, console: Console) -> None:
    """Print all of it."""
    for line in _overview(review):
        say(console, line)
    console.print(_class_table(review))
    if review.protocol is not None:
        console.print(_session_table(review.protocol, review.sessions))
    for level, heading in HEADINGS.items():
        texts = [text for at, text in review.findings if at == level]
        if texts:
            console.print(Text(heading, style="bold red" if level == Level.FIX_FIRST else "bold"))
        for text in texts:
            say(console, f"  - {text}")
    if not any(level < Level.NOTE for level, _ in review.findings):
        console.print("nothing to fix")


def _overview(review: Review) -> Iterator[str]:
    train, test = review.data.train, review.data.test
    total = len(train) + len(test)
    classes = counted(len(train.classes), "class", "classes")
    yield f"{total} images ({len(train)} to train, {len(test)} to test), {classes}"
    empty = sum(int((~(part.labels == PRESENT).any(axis=1)).sum()) for part in (train, test))
    labels = sum(int((part.labels == PRESENT).sum()) for part in (train, test))
    yield f"{labels / max(total - empty, 1):.1f} labels per labelled image; {empty} images have no label"
    readable = [one for one in review.files if one.problem is None]
    if readable:
        yield f"files: {_formats(readable)}; {_sizes(readable)}"


def _formats(files: list[FileFacts]) -> str:
    return listed(f"{count} {name}" for name, count in Counter(one.format for one in files).most_common())


def _sizes(files: list[FileFacts]) -> str:
    by_area = sorted(files, key=lambda one: one.width * one.height)
    least, most = (f"{one.width} x {one.height}" for one in (by_area[0], by_area[-1]))
    if least == most:
        return f"all {least} pixels"
    side = median(max(one.width, one.height) for one in files)
    return f"{least} to {most} pixels, {side:.0f} on the longer side (median)"


def _class_table(review: Review) -> Table:
    train, test = (count_labels(part.labels) for part in (review.data.train, review.data.test))
    table = Table("class", title="images that show a class, that are known not to, and unknown")
    for heading in ("shown", "not shown", "unknown", "test: shown", "not shown", "unknown"):
        table.add_column(heading, justify="right")
    names = review.data.train.classes
    for row, name in enumerate(names[:CLASSES_SHOWN]):
        table.add_row(Text(name), *(str(column[row]) for column in (*train, *test)))
    if len(names) > CLASSES_SHOWN:
        table.caption = f"and {len(names) - CLASSES_SHOWN} more classes"
    return table


def _session_table(protocol: Protocol, sessions: tuple[Session, ...]) -> Table:
    kind = "with the images that show none of its classes" if protocol.has_negatives else "as published"
    table = Table("session", "new classes", title=f"what the protocol makes of it, {kind}")
    for heading in ("images", "of them without a new class", "test images"):
        table.add_column(heading, justify="right")
    for session in sessions:
        new = session.labels[:, session.first :]
        without = int((~(new == PRESENT).any(axis=1)).sum())
        counts = (len(session.indices), without, len(protocol.test_rows(session.stop)))
        table.add_row(str(session.number), Text(listed(session.new_classes)), *map(str, counts))
    return table
