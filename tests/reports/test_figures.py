import io
import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PathCollection
from matplotlib.text import Text

from mlcil.evaluation import results
from mlcil.reports.collect import collect
from mlcil.reports.figures import forgetting_per_class, forgetting_strips, losses, map_curves
from mlcil.reports.heat_maps import ap_matrix, heat_map
from mlcil.reports.runs import Collection, Group
from mlcil.reports.style import COLOURS, INK, PAPER, WIDTH, cut, numbered_look, save_png, to_inline, to_svg

from .made import made_run

PER_SETTING = (map_curves, forgetting_strips)
PER_GROUP = (heat_map, losses)
MANY = [f"class number {index}" for index in range(80)]


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Two seeds of KRT and an unfinished third, fine-tuning, joint training, and a run half done."""
    root = tmp_path_factory.mktemp("runs")
    for seed, done in ((0, None), (1, None), (2, 1)):
        made_run(root, f"krt-{seed}", "krt", seed, done=done)
    made_run(root, "ft", "ft")
    made_run(root, "joint", "joint", counts=(6,))
    made_run(root, "lwf", "lwf", done=2)
    return collect([root])


def group_of(collection: Collection, name: str) -> Group:
    return next(group for group in collection.groups if group.name == name)


def rewrite_metrics(folder: Path, change) -> None:
    file = folder / "metrics.jsonl"
    lines = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def texts(figure):
    return [one.get_text() for one in figure.findobj(Text) if one.get_visible() and one.get_text()]


def ticks_out_of_view(figure):
    """The labels that matplotlib holds ready but does not draw."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        yield from (tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high)


def assert_nothing_is_cut_off(figure):
    figure.savefig(io.BytesIO(), format="png", dpi=72)
    width, height = 72 * figure.get_size_inches()
    hidden = set(ticks_out_of_view(figure))
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            box = text.get_window_extent(dpi=72)
            inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
            assert inside, (text.get_text(), box, width, height)


@pytest.mark.parametrize("draw", PER_SETTING)
def test_figures_of_a_setting_are_as_wide_as_the_page(collection, draw):
    figure = draw(collection, collection.settings[0])
    assert 72 * figure.get_size_inches()[0] == pytest.approx(WIDTH)
    assert_nothing_is_cut_off(figure)
    assert min(text.get_size() for text in figure.findobj(Text)) >= 11


@pytest.mark.parametrize("draw", PER_GROUP)
def test_figures_of_a_group_fit_a_phone(collection, draw):
    figure = draw(group_of(collection, "krt"))
    assert 72 * figure.get_size_inches()[0] <= 330
    assert_nothing_is_cut_off(figure)


def test_joint_training_is_a_level_line_and_half_a_run_is_named_so(collection):
    axes = map_curves(collection, collection.settings[0]).axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    joint = group_of(collection, "joint").runs[0].result.last_map
    assert set(lines) == {"krt", "ft", "joint", "lwf (unfinished)"}
    np.testing.assert_allclose(lines["joint"].get_ydata(), [joint, joint])
    assert len(lines["lwf (unfinished)"].get_xdata()) == 2


def test_published_sessions_are_a_dotted_line_in_the_colour_of_their_group(tmp_path):
    counts = range(10, 90, 10)
    made_run(tmp_path, "ft", "ft", counts=counts, names=MANY, protocol="B0-C10", preset="coco-b0-c10/ft")
    found = collect([tmp_path])
    axes = map_curves(found, found.settings[0]).axes[0]
    measured, paper = axes.lines[:2]
    assert paper.get_linestyle() == ":"
    assert paper.get_color() == measured.get_color()
    assert paper.get_markerfacecolor() == "none"
    assert list(paper.get_xdata()) == list(counts)
    assert tuple(paper.get_ydata()) == found.groups[0].preset.published.sessions


def test_published_sessions_of_another_protocol_are_not_drawn(tmp_path):
    made_run(tmp_path, "ft", "ft", preset="coco-b0-c10/ft")
    found = collect([tmp_path])
    assert "published" not in texts(map_curves(found, found.settings[0]))


def test_one_session_makes_no_curve_no_heat_map_and_no_forgetting(tmp_path):
    made_run(tmp_path, "joint", "joint", counts=(6,))
    found = collect([tmp_path])
    assert map_curves(found, found.settings[0]) is None
    assert forgetting_strips(found, found.settings[0]) is None
    assert heat_map(found.groups[0]) is None


def test_one_class_per_session_draws(tmp_path):
    made_run(tmp_path, "ft", "ft", counts=(2, 3), protocol="B2-C1")
    found = collect([tmp_path])
    for draw in PER_SETTING:
        assert_nothing_is_cut_off(draw(found, found.settings[0]))
    assert_nothing_is_cut_off(heat_map(found.groups[0]))


def test_the_heat_map_averages_seeds_by_class(collection):
    group = group_of(collection, "krt")
    names, ap = ap_matrix(group)
    assert names == group.runs[0].result.classes
    both = [results.ap_matrix(names, [one.ap for one in run.result.sessions]) for run in group.runs[:2]]
    np.testing.assert_allclose(ap, np.mean(both, axis=0))
    assert np.isnan(ap[1]).all()  # it has no positive
    assert np.isnan(ap[2, 0])  # not seen yet


def test_eighty_classes_stay_readable(tmp_path):
    made_run(tmp_path, "ft", "ft", counts=range(10, 90, 10), names=MANY)
    found = collect([tmp_path])
    figure = heat_map(found.groups[0])
    assert_nothing_is_cut_off(figure)
    labels = figure.axes[0].get_yticklabels()
    assert len(labels) == 80
    boxes = [label.get_window_extent(dpi=72) for label in labels]
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
    assert_nothing_is_cut_off(forgetting_strips(found, found.settings[0]))


def test_a_strip_has_a_dot_per_old_class(collection):
    figure = forgetting_strips(collection, collection.settings[0])
    dots = [one for one in figure.axes[0].collections if isinstance(one, PathCollection)]
    groups = [group for group in collection.groups if forgetting_per_class(group)]
    assert [len(one.get_offsets()) for one in dots] == [len(forgetting_per_class(group)) for group in groups]
    assert "joint" not in texts(figure)
    lost = forgetting_per_class(group_of(collection, "ft"))
    np.testing.assert_allclose(
        dots[[group.name for group in groups].index("ft")].get_offsets()[:, 0], sorted(lost.values())
    )


@pytest.mark.parametrize(("factor", "scale"), [(1.0, "linear"), (1e-4, "log")])
def test_losses_that_span_decades_have_a_logarithmic_scale(tmp_path, factor, scale):
    def change(line):
        return line | {"losses": line["losses"] | {"token": factor}} if "losses" in line else line

    rewrite_metrics(made_run(tmp_path, "krt"), change)
    figure = losses(collect([tmp_path]).groups[0])
    assert figure.axes[0].get_yscale() == scale
    assert_nothing_is_cut_off(figure)


def test_losses_break_between_sessions_and_show_every_seed(collection):
    lines = losses(group_of(collection, "krt")).axes[0].lines
    terms = [line for line in lines if len(line.get_xdata()) > 2]
    assert len(terms) == 4  # two terms of two seeds
    assert all(np.isnan(line.get_ydata()).sum() == 3 for line in terms)
    assert sorted(line.get_linewidth() for line in terms) == [0.7, 0.7, 1.8, 1.8]


def test_a_run_without_metrics_has_no_losses(tmp_path):
    folder = made_run(tmp_path, "ft", "ft")
    (folder / "metrics.jsonl").unlink()
    assert losses(collect([tmp_path]).groups[0]) is None


def test_colour_is_never_the_only_thing_to_tell_lines_apart():
    looks = [numbered_look(index) for index in range(28)]
    assert len(set(looks)) == 28
    assert all(one.marker != two.marker or one.dash != two.dash for one in looks for two in looks if one is not two)


@pytest.mark.parametrize("draw", PER_SETTING)
def test_the_same_runs_give_the_same_bytes(collection, draw, tmp_path):
    first, second = (draw(collection, collection.settings[0]) for _ in range(2))
    assert to_svg(first, "salt") == to_svg(second, "salt")
    for name, figure in (("first", first), ("second", second)):
        save_png(figure, tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_a_stand_alone_svg_is_valid_and_has_real_colours(collection):
    svg = to_svg(map_curves(collection, collection.settings[0]), "salt")
    root = ElementTree.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert "var(--" not in svg
    assert COLOURS[0] in svg
    assert svg.count("<text") > 10  # text stays text


def test_an_inline_svg_takes_the_colours_of_the_page(collection):
    svg = to_svg(map_curves(collection, collection.settings[0]), "salt")
    inline = to_inline(svg, 'say "AP" & <more>')
    assert "currentColor" in inline
    assert "var(--colour-0)" in inline
    assert not re.search(f"{INK}|{PAPER}|{COLOURS[0]}", inline)
    assert 'aria-label="say &#34;AP&#34; &amp; &lt;more&gt;"' in inline
    ElementTree.fromstring(inline)
    for number, group in enumerate(collection.groups):
        assert f'data-group="{number}"' in inline, group.name


def test_names_that_look_like_colours_or_formulas_stay_as_they_are(tmp_path):
    names = [f"a: {INK}", "$5 & $6", "<b>", "日本", "e", "f"]
    made_run(tmp_path, "ft", "ft", names=names)
    inline = to_inline(to_svg(heat_map(collect([tmp_path]).groups[0]), "salt"), "heat")
    shown = [element.text for element in ElementTree.fromstring(inline).iter() if element.tag.endswith("text")]
    assert set(names) <= set(shown)


def test_the_users_matplotlib_style_is_neither_used_nor_changed(collection):
    def drawn():
        return to_svg(map_curves(collection, collection.settings[0]), "salt")

    before = dict(matplotlib.rcParams)
    plain = drawn()
    with matplotlib.rc_context({"svg.fonttype": "path", "axes.facecolor": "red", "font.size": 30}):
        assert drawn() == plain
    assert dict(matplotlib.rcParams) == before


@given(st.text(), st.integers(1, 40))
def test_a_cut_name_is_short_and_begins_like_the_name(name, width):
    short = cut(name, width)
    assert len(short) <= width
    assert name.startswith(short.removesuffix("…")) or short == name
