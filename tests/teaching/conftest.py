"""A tagger of tiny pictures that is taught by marks, without a server."""

import csv

import pytest

from mlcil.serving.tagger import Tagger
from mlcil.teaching.workbench import Workbench

from ..serving.conftest import digit_tables, digit_tagger, own_cache, write_rows  # noqa: F401 - fixtures


@pytest.fixture
def truth(digit_tables) -> dict[str, set[str]]:  # noqa: F811
    """The labels of each picture by its name: digits 0 to 3 of 140 to 199, which no tagger has seen."""
    with (digit_tables / "c.csv").open() as stream:
        return {row["path"]: set(filter(None, row["labels"].split(";"))) for row in csv.DictReader(stream)}


@pytest.fixture
def open_bench(digit_tables, digit_tagger, truth, tmp_path):  # noqa: F811
    """Opens a workbench on the pictures that no tagger has seen and closes it at the end; the folder may be given."""
    opened = []

    def open_one(folder=tmp_path / "digits.teach", names=tuple(truth), tagger=digit_tagger, wait=True):
        bench = Workbench(Tagger.load(tagger), [str(digit_tables / name) for name in names], folder, "pictures")
        opened.append(bench)
        if wait:
            bench.indexer.wait()
        return bench

    yield open_one
    for bench in opened:
        bench.close()


@pytest.fixture
def bench(open_bench) -> Workbench:
    return open_bench()


def ids(bench, truth, label, shown=True):
    """The ids of pictures that show a label, or do not."""
    rows = range(len(bench.photos))
    return [bench.photos.id(row) for row in rows if (label in truth[bench.photos.name(row)]) == shown]
