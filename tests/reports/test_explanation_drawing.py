"""Drawings that hold what they should, at the size of the photo."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from mlcil.reports.explanation_drawing import EDGE, OUTLINED, draw
from mlcil.reports.style import COLOURS, save_png
from mlcil.serving.explanation import ExplainedTag, Explanation

from ..serving.made_runs import picture


def tag(name, place=(1, 2), is_present=True, side=5):
    values = np.zeros((side, side), np.float32)
    values[place] = 1.0
    return ExplainedTag(name, 0.93, 0.61, is_present, 1, values)


def explanation_of(names, shape=(240, 360, 3)):
    return Explanation(picture(0, shape), tuple(tag(name, (n % 5, n % 4)) for n, name in enumerate(names)))


def texts(figure):
    return [text.get_text() for text in figure.texts], [text.get_text() for text in figure.axes[0].texts]


def saved(figure, path):
    save_png(figure, path, dpi=figure.dpi)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def test_a_drawing_has_a_chip_an_outline_and_a_label_for_each_tag():
    figure = draw(explanation_of(["cat", "dog"]))
    written, labels = texts(figure)
    assert written[:2] == ["cat 0.93 (from 0.61)", "dog 0.93 (from 0.61)"]
    assert labels == ["cat", "dog"]
    assert len(written) == 3  # and one sentence
    outlines = figure.axes[0].collections[::-1]  # the first tag's lies on top
    assert [tuple(np.round(255 * one.get_edgecolor()[0, :3]).astype(int)) for one in outlines] == [
        tuple(bytes.fromhex(colour[1:])) for colour in COLOURS[:2]
    ]
    line = outlines[1].get_paths()[0].vertices
    assert np.allclose((line.min(axis=0) + line.max(axis=0)) / 2, 0.3, atol=0.01)  # row 1 of 5, column 1


def test_the_photo_shows_through_where_there_is_no_evidence(tmp_path):
    pixels = np.full((700, 500, 3), 128, np.uint8)
    drawn = saved(draw(Explanation(pixels, (tag("cat", (1, 1)),))), tmp_path / "drawing.png")
    assert drawn.shape[1] == 500 + 2 * EDGE
    lower = drawn[-200:-60, EDGE + 5 : -EDGE - 5]  # far from row 1 of 5
    assert (lower == 128).all()
    assert (drawn[:-250] != 128).any()


@pytest.mark.parametrize(
    ("shape", "longest", "expected"),
    [((1500, 3000), 1000, (500, 1000)), ((256, 128), 1000, (640, 320)), ((700, 900), 1000, (700, 900)),
     ((1500, 3000), 720, (360, 720))],
)  # fmt: skip
def test_a_photo_keeps_its_proportions_and_small_ones_are_enlarged(shape, longest, expected):
    figure = draw(explanation_of(["cat"], (*shape, 3)), longest)
    box = figure.axes[0].get_window_extent()
    assert (round(box.height), round(box.width)) == expected
    assert 0 <= figure.axes[0].get_position().x0 < figure.axes[0].get_position().x1 <= 1


def test_only_the_strongest_tags_have_a_place():
    figure = draw(explanation_of([f"class {n}" for n in range(9)]))
    written, labels = texts(figure)
    assert len(written) == 9 + 1
    assert labels == [f"class {n}" for n in range(OUTLINED)]


def test_labels_of_the_same_place_do_not_cover_each_other():
    figure = draw(Explanation(picture(0, (240, 360, 3)), tuple(tag(f"class {n}") for n in range(5))))
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_bbox_patch().get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    chips = [text.get_bbox_patch().get_window_extent() for text in figure.texts[:5]]
    assert not any(one.overlaps(other) for place, one in enumerate(chips) for other in chips[:place])
    assert all(chip.x1 <= figure.bbox.width for chip in chips)


def test_a_photo_without_a_tag_says_so():
    figure = draw(Explanation(picture(0, (240, 360, 3)), (tag("dog", is_present=False),)))
    written, labels = texts(figure)
    assert written == ["nearest, below its threshold: dog 0.93 (from 0.61)", "No tag reaches its threshold."]
    assert labels == ["dog"]


def test_names_in_any_script_and_a_map_of_nothing_can_be_drawn(tmp_path):
    explanation = explanation_of(["$5 & $6", "日本", "a class of a very very long name", " "])
    blank = tuple(tag._replace(map=np.zeros((3, 3), np.float32)) for tag in explanation.tags)
    written, labels = texts(draw(explanation._replace(tags=blank)))
    assert labels == []
    assert "$5 & $6 0.93 (from 0.61)" in written
    assert saved(draw(explanation), tmp_path / "drawing.png").shape[2] == 3
    assert "a class of a very very …" in texts(draw(explanation))[1]
