"""The command `mlcil explain`: the tags of photos, and where in them the evidence is."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.escaping import printable
from ..core.files import write_json
from ..core.remote import path_or_url
from ..reports.attention_maps import Explained, explain_files
from ..serving.explanation import Explanation
from .console import to_stderr

STANDARD_OUTPUT = Path("-")


def explain_photos(
    run: str,
    images: list[str],
    out: Path,
    session: int | None,
    threshold: float | None,
    most: int,
    values: Path | None,
) -> bool:
    """Draw photos and print their tags, a line for each; returns whether every file could be read.

    Arguments:
        values: the file for the numbers as JSON, or `-` to print them instead of the lines; None for neither.

    Raises:
        UserError: the run cannot be read, or something not written.
    """
    done: list[Explained] = []
    for one in explain_files(run, [path_or_url(one) for one in images], out, session, threshold, most):
        if one.explanation is None:
            to_stderr(f"mlcil: {one.problem}")
            continue
        done.append(one)
        if values != STANDARD_OUTPUT:
            print(printable(f"{one.image}: {tag_line(one.explanation)} -> {one.drawing}"), flush=True)
    found = [one.as_dict() for one in done]
    if values == STANDARD_OUTPUT:
        print(json.dumps(found, indent=2, allow_nan=False))
    elif values is not None:
        write_json(values, found)
    return len(done) == len(images)


def tag_line(explanation: Explanation) -> str:
    """The tags with their scores in words."""
    first = explanation.tags[0]
    if not first.is_present:
        return f"no tag (nearest: {first.name} {first.score:.2f}, from {first.threshold:.2f})"
    return ", ".join(f"{tag.name} {tag.score:.2f}" for tag in explanation.tags)
