"""Predictions as files: CSV, JSON Lines or Parquet, one row per tag or one line per photo."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from ..core.errors import UserError
from ..core.escaping import csv_line
from ..core.files import write_atomically
from ..core.remote import check_local
from .predicting import Outcome, as_record

FORMATS = (".csv", ".jsonl", ".parquet")
ROWS = 10_000  # of a group in a Parquet file
COLUMNS = ("image", "tag", "score", "probability", "threshold", "error")


def check_format(file: Path) -> None:
    """Make sure that a file is local, and that its name ends in a format that can be written.

    Raises:
        UserError: it does not, or what is needed to write it is not installed.
    """
    check_local(file)
    if file.suffix.lower() not in FORMATS:
        raise UserError(f"cannot write predictions to {file}: its name must end in {', '.join(FORMATS)}")
    if file.suffix.lower() == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UserError(f"writing {file} needs pyarrow: pip install 'mlcil[parquet]'") from None


def write_predictions(file: Path, outcomes: Iterable[Outcome]) -> None:
    """Write the tags of photos; JSON Lines have a line per photo, the others a row per tag.

    A photo without a tag has one row with an empty tag, and one that cannot be read says why. However many photos
    there are, few of them are in memory at a time.
    """
    write = {".jsonl": _write_jsonl, ".csv": _write_csv, ".parquet": _write_parquet}[file.suffix.lower()]
    write_atomically(file, lambda partial: write(partial, outcomes))


def _write_jsonl(file: Path, outcomes: Iterable[Outcome]) -> None:
    with _opened(file) as stream:
        stream.writelines(json.dumps(as_record(one), ensure_ascii=False) + "\n" for one in outcomes)


def _write_csv(file: Path, outcomes: Iterable[Outcome]) -> None:
    with _opened(file) as stream:
        write_csv(stream, outcomes)


def write_csv(stream: TextIO, outcomes: Iterable[Outcome]) -> None:
    """Write the tags of photos as CSV, a row per tag."""
    stream.write(csv_line(COLUMNS))
    stream.writelines(csv_line(row[name] for name in COLUMNS) for row in rows_of(outcomes))


def _write_parquet(file: Path, outcomes: Iterable[Outcome]) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = [pyarrow.string(), pyarrow.string(), *[pyarrow.float64()] * 3, pyarrow.string()]
    schema = pyarrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    rows = rows_of(outcomes)
    with parquet.ParquetWriter(file, schema) as writer:
        while part := list(itertools.islice(rows, ROWS)):
            # Names of files need not be valid text, and Parquet holds nothing else.
            plain = [row | {"image": row["image"].encode(errors="backslashreplace").decode()} for row in part]
            writer.write_table(pyarrow.Table.from_pylist(plain, schema))


def rows_of(outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
    """One dictionary per tag, with the keys of `COLUMNS`."""
    for prediction, error in outcomes:
        none = {"image": prediction.image, "tag": "", "score": None, "probability": None, "threshold": None}
        tags = [
            {"image": prediction.image, "tag": tag.name, **{key: getattr(tag, key) for key in COLUMNS[2:5]}}
            for tag in prediction.tags
        ]
        yield from (row | {"error": error or ""} for row in tags or [none])


def _opened(file: Path) -> TextIO:
    return file.open("w", encoding="utf-8", errors="backslashreplace", newline="")
