"""What people read about a tagger agrees with it, whatever its labels are called."""

import csv
import json

import pytest

from mlcil.serving.tagger import Tagger

from .conftest import write_rows
from .lessons import start

NAMES = ("cat, black", 'the "big" one', "two\nlines", "🐱", "<b>bold</b> & more", "a|b [x](y) *z* `c` ~~d~~", "&lt;")


@pytest.fixture(scope="module")
def odd(digit_tables, tmp_path_factory):
    """A saved tagger with odd names of labels."""
    folder = tmp_path_factory.mktemp("odd")
    rows = [(digit_tables / f"{i}.png", *(int((i + k) % 3 == 0) for k in range(len(NAMES)))) for i in range(20)]
    table = write_rows(folder / "a|b <i>.csv", rows, ("path", *NAMES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLCIL_CACHE", str(folder / "cache"))
        return Tagger.load(start(table).save(folder / "tagger"))


def test_labels_may_have_any_name(odd):
    assert set(odd.classes) == set(NAMES)
    assert json.loads((odd.path / "config.json").read_text())["label_names"] == list(odd.classes)


def test_tags_csv_agrees_with_the_tagger(odd):
    with (odd.path / "tags.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows] == list(odd.classes)
    for row, one, threshold in zip(rows, odd.labels, odd.thresholds, strict=True):
        assert (int(row["step"]), row["learned"], row["measured_on"]) == (1, one.learned, one.measured)
        assert (int(row["positives"]), int(row["images"])) == (one.positives, one.images)
        assert float(row["threshold"]) == pytest.approx(threshold, rel=1e-5)
        for key in ("ap", "precision", "recall"):
            value = getattr(one, key)
            assert (float(row[key]) if row[key] else None) == (None if value is None else round(value, 1))


def test_the_model_card_is_a_table_of_the_same_figures(odd):
    text = (odd.path / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(lines) == len(odd.labels)  # no name breaks a line
    for line, one, threshold in zip(lines, odd.labels, odd.thresholds, strict=True):
        cells = [cell.strip() for cell in line.replace("\\|", "\0").split("|")[1:-1]]
        assert cells[1:4] == [str(one.positives), str(one.images), f"{threshold:.2f}"]
        assert cells[4] == ("" if one.ap is None else f"{one.ap:.1f}")
        assert len(cells) == 8
    assert "<b>" not in text.replace("\\<", "")
    assert "\\&lt;" in text
    assert "\\~\\~d\\~\\~" in text
    assert f"An image tagger for {len(NAMES)} labels" in text
    assert "1. " + odd.steps[0].learned[:10] + ": 20 photos, from a\\|b \\<i\\>.csv" in text
