"""What was taught, for other programs: a table, sidecars beside the photos, an ONNX model."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import UserError
from ..core.remote import is_url
from ..core.words import counted
from ..data.xmp import BadSidecar
from ..data.xmp_writing import write_tags
from ..serving.predicting import Outcome
from ..serving.prediction_files import write_csv
from ..serving.predictions import Prediction, Tag
from ..serving.tagger import Tagger
from .workbench import Workbench

NAMED = 10  # sidecars that could not be written


def tags_now(bench: Workbench) -> Iterator[Prediction]:
    """The tags of all photos looked at so far, by path; what is marked counts and not the score."""
    with bench.lock:
        found = [(label, scores) for label in bench.book.labels.values() if (scores := bench.scorer.of(label))]
        told = {label.name: bench.told(label) for label, _ in found}
        rows = [row for row in bench.photos.by_path().tolist() if all(row < len(one.scores) for _, one in found)]
    for row in rows:
        tags = []
        for label, scores in found:
            score = float(scores.probabilities[row])
            mark = int(told[label.name][row]) if bench.photos.id(row) in label.marks else -1
            if mark == 1 or (mark == -1 and score > scores.threshold):
                tags.append(Tag(label.name, score, score, scores.threshold))
        tags.sort(key=lambda tag: -tag.probability)
        yield Prediction(bench.photos.path(row), tuple(tags))


def tags_csv(bench: Workbench) -> bytes:
    """A row for each tag of each photo, as `mlcil predict --out tags.csv` writes them."""
    stream = io.StringIO(newline="")
    write_csv(stream, (Outcome(one) for one in tags_now(bench)))
    return stream.getvalue().encode(errors="backslashreplace")


def write_sidecars_of(bench: Workbench, version: str | None) -> list[str]:
    """Write the tags as they are now into XMP sidecars beside the photos; returns what there is to say."""
    changed, problems = 0, []
    for one in tags_now(bench):
        try:
            if is_url(one.image):
                raise UserError("sidecars are written beside local photos only")
            changed += write_tags(Path(one.image), one.names)
        except (BadSidecar, UserError) as error:
            problems.append(f"left out: the sidecar of {Path(one.image).name}: {error}")
    more = [f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else []
    return [f"{counted(changed, 'sidecar')} changed", *problems[:NAMED], *more]


def export_onnx_of(bench: Workbench, version: str | None) -> list[str]:
    """Write an ONNX model of a saved version beside it; returns what there is to say.

    Raises:
        UserError: there is no such version, or it cannot be exported.
    """
    from ..serving.export import export_onnx

    if version is None:
        raise UserError("an ONNX model is made of a saved version: save first")
    folder = bench.folder.version(version)
    made = export_onnx(Tagger.load(folder), folder.with_name(f"{folder.name}.onnx"))
    size = f"{made.size / 1e6:.1f} MB"
    return [
        f"wrote {made.path.name} ({size}), at most {made.difference:.0e} from the tagger's own",
        f"wrote {made.script.name}",
    ]
