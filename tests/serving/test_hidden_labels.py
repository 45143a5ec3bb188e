"""What a tagger may not see cannot change it: noise in place of it leaves the same bits."""

import csv
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mlcil.core import cached_rows
from mlcil.models import sums
from mlcil.serving.tagger import Tagger
from mlcil.teaching.workbench import Workbench
from mlcil.training import learner, prepare

from .conftest import write_rows
from .lessons import KRT, SMALL, TRAINED, start, teach

OTHERS = ("digit 1", "digit 2", "digit 3")
SIDECAR = """<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:subject><rdf:Bag><rdf:li>{}</rdf:li></rdf:Bag>
</dc:subject></rdf:Description></rdf:RDF></x:xmpmeta>"""


@pytest.fixture
def tables(digit_tables, tmp_path):
    """Two tables of the same pictures; the second has noise for labels other than digit 0, and for the test part."""
    rng, rows, noisy = np.random.default_rng(0), [], []
    with (digit_tables / "c.csv").open() as stream:
        told = [(row["path"], row["labels"].split(";")) for row in csv.DictReader(stream)]
    for place, (path, labels) in enumerate(told):
        split = "test" if place % 4 == 0 else "train"
        made = [name for name in OTHERS if rng.random() < 0.5]
        is_zero = "digit 0" in labels if split == "train" else rng.random() < 0.5
        noise = [*(["digit 0"] if is_zero else []), *made]
        rows.append((digit_tables / path, ";".join(labels), split))
        noisy.append((digit_tables / path, ";".join(noise), split))
    names = ("path", "labels", "split")
    return write_rows(tmp_path / "true.csv", rows, names), write_rows(tmp_path / "noisy.csv", noisy, names)


def assert_same_bits(one, other):
    states = one.method.state(), other.method.state()
    assert states[0].tensors.keys() == states[1].tensors.keys()
    assert all(torch.equal(value, states[1].tensors[name]) for name, value in states[0].tensors.items())
    assert np.array_equal(one.thresholds, other.thresholds)


def test_a_new_tagger_sees_the_labels_that_it_is_to_learn_alone(tables):
    assert_same_bits(*(start(table, labels=("digit 0",)) for table in tables))
    with pytest.raises(AssertionError):  # of which noise is noticed
        assert_same_bits(*(start(table, labels=("digit 1",)) for table in tables))


def test_other_labels_do_not_decide_which_photos_are_set_aside(tables):
    plain = []
    for table in map(Path, tables):
        with table.open() as stream:
            rows = [(row["path"], row["labels"]) for row in csv.DictReader(stream) if row["split"] == "train"]
        plain.append(write_rows(table.with_suffix(".plain.csv"), rows))
    settings = TRAINED | {"epochs": 1}
    assert_same_bits(*(start(table, labels=("digit 0",), method="ft", settings=settings) for table in plain))


@pytest.mark.parametrize("method", ["ft", "krt"])
def test_one_that_trains_does_as_well(tables, method):
    settings = TRAINED | (KRT if method == "krt" else {}) | {"epochs": 1, "validation": 0.2}
    assert_same_bits(*(start(table, labels=("digit 0",), method=method, settings=settings) for table in tables))


def test_a_tagger_that_learns_more_does_as_well(tables, digit_tagger):
    tagger = Tagger.load(digit_tagger)
    assert_same_bits(*(teach(tagger, table, labels=("digit 0",)) for table in tables))


class Here:
    """A pool whose work is done in this process, from what would be sent to another one."""

    def map(self, make, items):
        work = pickle.loads(pickle.dumps(make))()
        for place, item in enumerate(items):
            yield place, work(pickle.loads(pickle.dumps(item)))


def test_shards_that_other_processes_sum_do_as_well(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(cached_rows, "BLOCK", 16)
    monkeypatch.setattr(sums, "SHARD", 16)
    by_one = start(tables[0], labels=("digit 0",))
    for module in (prepare, learner):
        monkeypatch.setattr(module, "make_pool", lambda *_: Here())
    spread = start(tables[1], labels=("digit 0",), settings=SMALL | {"cache": str(tmp_path / "cache")})
    assert len(list(tmp_path.glob("cache/sums-*/*/*"))) > 1
    assert_same_bits(by_one, spread)


def test_teaching_by_marks_sees_no_label_that_stands_beside_the_photos(digit_tables, digit_tagger, tmp_path):
    saved = []
    for name in ("plain", "labelled"):
        shutil.copytree(digit_tagger, tmp_path / name / "digits")
        photos = [tmp_path / name / f"{number}.png" for number in range(140, 170)]
        for number, photo in enumerate(photos):
            shutil.copy(digit_tables / photo.name, photo)
            if name == "labelled":
                photo.with_suffix(".xmp").write_text(SIDECAR.format(f"digit {number % 4}"))
        if name == "labelled":
            write_rows(tmp_path / name / "metadata.csv", [(one.name, "digit 2") for one in photos])
        bench = Workbench(
            Tagger.load(tmp_path / name / "digits"), [str(one) for one in photos], tmp_path / name / "t", "pictures"
        )
        try:
            bench.indexer.wait()
            ids = [bench.photos.id(row) for row in range(len(bench.photos))]
            order = sorted(ids)
            bench.mark("digit 2", order[:6], order[6:12], [])
            saved.append(bench.save("taught")[0].path)
        finally:
            bench.close()
    for file in ("model.safetensors", "tagger.safetensors"):
        one, other = (load_file(folder / file) for folder in saved)
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[key]) for key, value in one.items())
