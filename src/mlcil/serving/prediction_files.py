"""Predictions as files: CSV, JSON Lines or Parquet, one row per tag or one line per photo."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.files import write_atomically, write_text
from .predicting import Outcome, as_record

FORMATS = (".csv", ".jsonl", ".parquet")
COLUMNS = ("image", "tag", "score", "probability", "threshold", "error")


def check_format(file: Path) -> None:
    """Make sure that a file's name ends in a format that can be written.

    Raises:
        UserError: it does not, or what is needed to write it is not installed.
    """
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"cannot write predictions to {file}: its name must end in {', '.join(FORMATS)}")
    if file.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UserError(f"writing {file} needs pyarrow: pip install 'mlcil[parquet]'") from None


def write_predictions(file: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the tags of photos; JSON Lines have a line per photo, the others a row per tag.

    A photo without a tag has one row with an empty tag, and one that cannot be read says why.
    """
    kind = file.suffix.lower()
    if kind == ".jsonl":
        write_text(file, "".join(json.dumps(as_record(one), ensure_ascii=False) + "\n" for one in outcomes))
    elif kind == ".csv":
        write_text(file, to_csv(outcomes))
    else:
        _write_parquet(file, outcomes)


def to_csv(outcomes: Sequence[Outcome]) -> str:
    """The tags of photos as CSV, one row per tag."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows_of(outcomes):
        numbers = {name: "" if row[name] is None else f"{row[name]:.6g}" for name in COLUMNS[2:5]}
        writer.writerow(row | numbers)
    return stream.getvalue()


def rows_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One dictionary per tag, with the keys of `COLUMNS`."""
    rows = []
    for prediction, error in outcomes:
        none = {"image": prediction.image, "tag": "", "score": None, "probability": None, "threshold": None}
        tags = [
            {"image": prediction.image, "tag": tag.name, **{key: getattr(tag, key) for key in COLUMNS[2:5]}}
            for tag in prediction.tags
        ]
        rows += [row | {"error": error or ""} for row in tags or [none]]
    return rows


def _write_parquet(file: Path, outcomes: Sequence[Outcome]) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = rows_of(outcomes)
    kinds = [pyarrow.string(), pyarrow.string(), *[pyarrow.float64()] * 3, pyarrow.string()]
    schema = pyarrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    # Names of files need not be valid text, and Parquet holds nothing else.
    plain = [row | {"image": row["image"].encode(errors="backslashreplace").decode()} for row in rows]
    table = pyarrow.Table.from_pylist(plain, schema)
    write_atomically(file, lambda partial: parquet.write_table(table, partial))
