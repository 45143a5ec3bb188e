"""The page of mistakes: which ones it shows, that it needs nothing else, and that it shows names as they are."""

import base64
import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlcil.core.errors import UserError
from mlcil.reports.mistakes import LONGEST, PICTURES, embedded, most_shown, page_of, remarks, write_evaluation
from mlcil.serving.evaluating import Evaluation, label_results, overall_figures

EVIL = "<img src=x onerror=alert(1)>"
VOID = {"meta", "img"}


def evaluation_of(scores, labels, names, pictures, **more) -> Evaluation:
    scores, labels = np.array(scores, np.float32), np.array(labels, np.int8)
    thresholds = np.full(len(names), 0.5)
    results = label_results(names, scores, labels, thresholds)
    overall = overall_figures(scores, labels, thresholds, scores.astype(np.float64))
    photos = tuple(one if isinstance(one, str) else f"image {k}" for k, one in enumerate(pictures))
    return Evaluation("some/tagger", "t.csv", photos, pictures, scores, labels, results, overall, **more)


@pytest.fixture
def photos(tmp_path):
    """Six photos of other colours and shapes, with names that are no HTML."""
    files = [tmp_path / f"{number} <b>&.jpg" for number in range(6)]
    for number, file in enumerate(files):
        Image.new("RGB", (640, 200 + 20 * number), (40 * number, 90, 200)).save(file, comment=b"private")
    return [str(file) for file in files]


@pytest.fixture
def found(photos):
    scores = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.6], [0.7, 0.1], [0.2, 0.2]]
    labels = [[0, 0], [0, 0], [1, 1], [1, 1], [1, 1], [0, 0]]
    return evaluation_of(scores, labels, [EVIL, "cat"], photos, bad=(f"cannot read image {EVIL}: missing",), seen=2)


class Page(HTMLParser):
    """Collects tags, addresses and texts, and checks that what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.alternatives, self.texts, self.open, self.ids = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.addresses += [value for key, value in attrs if key in ("src", "href")]
        self.alternatives += [value for key, value in attrs if key == "alt"]
        self.ids += [value for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data.strip())

    def pictures(self):
        return [one for tag, one in self.tags if tag == "img"]


def picture_in(address):
    kind, content = address.split(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_the_worst_mistakes_are_shown_with_the_most_confident_first(found, photos):
    page = Page(page_of(found))
    names = [f"{number} <b>&.jpg" for number in range(6)]
    assert page.alternatives == [
        f"{names[0]}, wrongly tagged {EVIL}",
        f"{names[1]}, wrongly tagged {EVIL}",
        f"{names[2]}, not tagged {EVIL}",
        f"{names[3]}, not tagged {EVIL}",
        f"{names[4]}, not tagged cat",
    ]
    for picture, source in zip(page.pictures(), [0, 1, 2, 3, 4], strict=True):
        assert picture["loading"] == "lazy"
        shown, original = picture_in(picture["src"]), Image.open(photos[source])
        assert max(shown.size) == LONGEST
        assert shown.size == (int(picture["width"]), int(picture["height"]))
        assert shown.height == pytest.approx(original.height * LONGEST / original.width, abs=1)
        assert np.abs(np.array(shown)[50, 50].astype(int) - np.array(original)[50, 50]).max() < 12
    scores = re.findall(r"score <b>([\d.]+)</b>, threshold ([\d.]+)", page_of(found))
    assert scores == [(one, "0.50") for one in ("0.90", "0.80", "0.10", "0.30", "0.10")]
    assert f"Tagged {EVIL}, but the table says no" in page.texts
    assert "The table says cat, but it was not tagged" in page.texts


def test_names_are_shown_as_they_are_and_nothing_is_loaded_from_elsewhere(found):
    text = page_of(found)
    page = Page(text)
    assert EVIL not in text
    assert "<b>&" not in text
    assert page.texts.count(EVIL) >= 3
    assert f"cannot read image {EVIL}: missing" in page.texts
    assert not [one for one in page.pictures() if "onerror" in one]
    assert all(one.startswith(("data:image/jpeg;base64,", "#")) for one in page.addresses)
    assert {one[1:] for one in page.addresses if one.startswith("#")} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "base"})
    assert "url(" not in text
    assert "@import" not in text


def test_what_else_a_file_holds_stays_out_of_the_page(photos):
    assert b"private" in Path(photos[1]).read_bytes()
    assert b"private" not in base64.b64decode(embedded(photos[1]).source.split(",")[1])


def test_the_page_has_the_figures_of_every_label(found):
    texts = [one for one in Page(page_of(found)).texts if one]
    for name in ("mAP", "precision", "recall", "F1", "ECE"):
        assert f"{found.overall[name]:.1f}\N{THIN SPACE}%" in texts
    cells = texts[texts.index("missed") + 1 :]
    rows = [cells[:9], cells[9:18]]
    for row, one in zip(rows, found.results, strict=True):
        assert row == [one.name, "3", "3", "0.50", *(f"{value:.1f}" for value in one[4:7]), *map(str, one[7:])]
    assert any("2 of the 6 photos are among those that the tagger learned from" in one for one in texts)


def test_a_page_stays_small_however_many_mistakes_there_are():
    random = np.random.default_rng(0)
    pixels = list(random.integers(0, 255, (200, 8, 12, 3), np.uint8))
    labels = random.integers(0, 2, (200, 40))
    found = evaluation_of(1 - labels, labels, [f"label {k}" for k in range(40)], pixels)
    page = Page(page_of(found))
    assert 100 < len(page.pictures()) <= PICTURES
    assert len({one for one in page.ids if one.startswith("label-")}) == 20
    shelves = found.mistakes()
    assert most_shown(shelves[:5]) == 8
    assert most_shown(shelves[:20]) == 4
    hidden = "".join(one for one in page.texts if one.startswith("Labels with fewer mistakes"))
    assert hidden.count("label ") == 20


def test_a_photo_that_is_gone_by_now_says_so(found, photos):
    Path(photos[0]).unlink()
    page = Page(page_of(found))
    assert len(page.pictures()) == 4
    assert "The file is gone." in page.texts


def test_without_mistakes_the_page_says_so():
    found = evaluation_of([[0.9], [0.1]], [[1], [0]], ["cat"], list(np.zeros((2, 8, 8, 3), np.uint8)))
    page = Page(page_of(found))
    assert "It made no mistake on these photos." in page.texts
    assert page.pictures() == []


def test_the_folder_has_the_figures_for_other_programs(found, tmp_path):
    page = write_evaluation(found, tmp_path / "out")
    assert page == tmp_path / "out" / "index.html"
    assert {one.name for one in page.parent.iterdir()} == {"index.html", "metrics.json", "labels.csv"}
    metrics = json.loads((page.parent / "metrics.json").read_text())
    assert metrics["overall"] == found.overall
    assert metrics["labels"] == found.rows()
    assert (metrics["photos"], metrics["seen_before"], len(metrics["left_out"])) == (6, 2, 1)
    with (page.parent / "labels.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows] == [EVIL, "cat"]
    for row, result in zip(rows, found.rows(), strict=True):
        for name in ("positives", "negatives", "threshold", "ap", "precision", "recall", "wrong", "missed"):
            assert float(row[name]) == pytest.approx(result[name], rel=1e-5)
    with pytest.raises(UserError, match="exists already"):
        write_evaluation(found, tmp_path / "out")


def test_a_figure_of_which_nothing_can_be_said_is_empty_in_files(tmp_path):
    found = evaluation_of([[0.1]], [[0]], ["cat"], [np.zeros((8, 8, 3), np.uint8)])
    folder = write_evaluation(found, tmp_path / "out").parent
    assert (folder / "labels.csv").read_text().splitlines()[1] == "cat,0,1,0.5,,,,0,0"
    assert json.loads((folder / "metrics.json").read_text())["overall"]["mAP"] is None


def test_labels_that_were_not_measured_are_named_in_one_line_each():
    pixels = list(np.zeros((2, 8, 8, 3), np.uint8))
    found = evaluation_of([[0.9], [0.1]], [[1], [0]], ["cat"], pixels, unknown_labels=("owl",), other_labels=("dog",))
    assert list(remarks(found)) == [
        "not measured, as the tagger does not know them: owl",
        "not measured, as t.csv does not mention them: dog",
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser_it_fits_loads_its_pictures_and_runs_nothing_of_a_name(found, tmp_path, width, scheme):
    playwright = pytest.importorskip("playwright.sync_api")
    if (chromium := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("there is no Chromium on this machine to open the page with")
    address, complaints = write_evaluation(found, tmp_path / "out").as_uri(), []
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for picture in page.locator("img").all():
            picture.scroll_into_view_if_needed()
            picture.evaluate("(one) => one.decode()")
            assert picture.evaluate("(one) => one.naturalWidth") == LONGEST
        heading = page.locator("th").filter(has_text="missed")
        heading.locator("button").click()
        missed = page.locator("tbody td:last-child").all_inner_texts()
        assert missed == ["2", "1"]
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour[4:-1].split(","))) > 600) == (scheme == "light")
        browser.close()
    assert complaints == []
