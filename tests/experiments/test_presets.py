"""What holds for every preset: it can be run, is what its name says, and its figures agree where the paper's do."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from rich.console import Console

from mlcil.cli.listings import preset_page
from mlcil.core.errors import UserError
from mlcil.data.protocol import parse_protocol
from mlcil.data.published import BENCHMARKS
from mlcil.experiments.presets import all_presets, find_preset, preset_group, preset_values
from mlcil.memory.buffer import Budget
from mlcil.methods.krt import KRT
from mlcil.methods.registry import method_class
from mlcil.training.config import make_config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "presets.md").read_text()
PRESETS = all_presets()
LISTED = {name: one.published for name, one in PRESETS.items() if one.published.sessions}  # in the appendix


def appendix_average(name: str) -> float:
    found = re.search(r"appendix \(average ([\d.]+)\)", LISTED[name].where)
    return float(found[1]) if found else LISTED[name].average_map


# The figures --------------------------------------------------------------------------------------


def contradictions() -> set[tuple[frozenset[str], str, str]]:
    """Pairs of figures that should be equal but are not, even if both are rounded, with the rows they belong to."""
    found = set()
    for name, one in LISTED.items():
        average, last = appendix_average(name), one.sessions[-1]
        if abs(average - mean(one.sessions)) > 0.01 + 1e-9:
            found.add((frozenset([name]), f"{average:.2f}", f"{mean(one.sessions):.2f}"))
        elsewhere = re.findall(r"\(([\d.]+) / ([\d.]+)\)", one.where)
        for pair in [(str(one.average_map), str(one.last_map)), *elsewhere]:
            for printed, listed in zip(pair, (average, last), strict=True):
                half = 0.5 * 10 ** -len(printed.partition(".")[2])
                if abs(float(printed) - listed) > half + 0.005 + 1e-9:
                    found.add((frozenset([name]), printed, f"{listed:.2f}"))
    return found | unequal_bases() | equal_f1()


def unequal_bases() -> set[tuple[frozenset[str], str, str]]:
    """First sessions that train the same net on the same classes, with another mAP than most of them."""
    alike: dict[tuple[str, bool], list[str]] = {}
    for name in LISTED:
        folder = name.split("/")[0].replace("coco-b40-c5", "coco-b40-c10")
        alike.setdefault((folder, "krt" in name), []).append(name)
    found = set()
    for names in alike.values():
        bases = {name: LISTED[name].sessions[0] for name in names}
        usual = Counter(bases.values()).most_common(1)[0][0]
        found |= {(frozenset([name]), f"{one:.2f}", f"{usual:.2f}") for name, one in bases.items() if one != usual}
    return found


def equal_f1() -> set[tuple[frozenset[str], str, str]]:
    """Rows of one folder with the same CF1 and OF1."""
    rows: dict[tuple[str, float, float], list[str]] = {}
    for name, one in PRESETS.items():
        if one.published.cf1 is not None:
            rows.setdefault((name.split("/")[0], one.published.cf1, one.published.of1), []).append(name)
    return {(frozenset(names), str(cf1), str(of1)) for (_, cf1, of1), names in rows.items() if len(names) > 1}


def test_the_page_lists_exactly_the_contradictions_of_the_paper():
    rows = re.findall(r"^\| (`\S+/.*?) \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    assert {(frozenset(re.findall(r"`(.*?)`", names)), one, other) for names, one, other in rows} == contradictions()


@pytest.mark.parametrize("name", PRESETS)
def test_figures_are_percentages_of_as_many_sessions_as_the_protocol_has(name):
    preset, one = PRESETS[name], PRESETS[name].published
    figures = [figure for figure in (one.average_map, one.last_map, one.cf1, one.of1) if figure is not None]
    assert all(0 < figure < 100 for figure in (*figures, *one.sessions))
    assert bool(figures) != ("drawn only" in one.where)
    classes = BENCHMARKS[preset.kind].classes
    assert len(one.sessions) in (0, len(parse_protocol(preset.values["protocol"], classes)))


@pytest.mark.parametrize("name", PRESETS)
def test_the_groups_of_a_preset_are_the_tables_that_it_is_from(name):
    preset, one = PRESETS[name], PRESETS[name].published
    tables = {f"table{number}" for text in re.findall(r"tables? (\d(?: and \d)?)", one.where) for number in text[::6]}
    assert {group for group in preset.groups if group.startswith("table")} == tables
    assert any(group.startswith("appendix-") for group in preset.groups) == bool(one.sessions)
    assert ("table1" in preset.groups) == (one.cf1 is not None) == (one.of1 is not None)
    assert len(set(preset.groups)) == len(preset.groups)


# The settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_run_with_the_types_of_its_values(name):
    values = dict(PRESETS[name].values)
    made = make_config(preset_values(PRESETS[name], "digits")).to_dict()
    assert values.pop("options").items() <= made["options"].items()
    assert values.items() <= made.items()
    assert {"data", "preset"}.isdisjoint(values)
    assert method_class(values["method"]).setting_defaults.items() <= values.items()
    assert (made["data"], made["preset"]) == ("digits", name)


@pytest.mark.parametrize("name", PRESETS)
def test_data_protocol_method_and_buffer_are_those_in_the_name(name):
    (folder, row), values = name.split("/"), PRESETS[name].values
    kind, base, step = folder.removesuffix("-scratch").split("-")
    assert (PRESETS[name].kind, values["protocol"]) == (kind, f"{base}-{step}".upper())
    assert values["method"] == re.sub(r"-(r|r-\d+|\d+|lambda-\d+|vit)$", "", row).replace("-", "_")
    number = re.search(r"(?<!lambda)-(\d+)$", row)
    expected = Budget(per_class=20 if row == "l2p-r" or "lambda" in row else int(number[1]) if number else 0)
    assert Budget.parse(values["buffer"]) == (Budget(total=1000) if row.endswith("-1000") else expected)
    assert ("scratch" in folder) == (values["weights"] is None)


def test_options_of_krt_are_stated_for_its_rows_and_no_others():
    ours = {name for name, one in PRESETS.items() if issubclass(method_class(one.values["method"]), KRT)}
    assert {name for name in PRESETS if PRESETS[name].values["options"]} == ours
    stated = {"width", "heads", "token_weight", "labels_per_image", "threshold", "first_head"}
    assert all(PRESETS[name].values["options"].keys() == stated for name in ours)


def test_rows_with_cross_attention_start_as_in_the_authors_code():
    for name, one in PRESETS.items():
        options = make_config(preset_values(one, "digits")).options
        if hasattr(options, "ica"):
            assert one.values["options"]["first_head"] == ("normal" if options.ica else "default"), name


def test_figure_5a_varies_lambda_and_figure_5b_the_buffer_alone():
    lambdas, buffers = ([one.values for one in preset_group(name)] for name in ("figure5a", "figure5b"))
    assert len({values["options"]["token_weight"] for values in lambdas}) == len(lambdas) > 1
    assert len({str({**values, "options": {**values["options"], "token_weight": 0}}) for values in lambdas}) == 1
    assert len({values["buffer"] for values in buffers}) == len(buffers) > 1
    assert len({str(values | {"buffer": ""}) for values in buffers}) == 1


# Finding and showing them -------------------------------------------------------------------------


def test_presets_are_sorted_by_folder_and_then_by_row():
    assert list(PRESETS) == sorted(PRESETS, key=lambda name: name.split("/"))
    assert all(name == one.name and one.groups[-1] == name.split("/")[0] for name, one in PRESETS.items())


def test_the_page_names_every_group():
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) == {
        group for one in PRESETS.values() for group in one.groups
    }


def test_an_unknown_preset_lists_those_of_its_folder():
    with pytest.raises(UserError, match="unknown preset 'voc-b0-c4/krt'.* voc-b0-c4/krt-r-2") as caught:
        find_preset("voc-b0-c4/krt")
    assert "coco" not in str(caught.value)


def test_the_page_of_a_preset_has_settings_figures_and_command():
    console = Console(width=160, file=io.StringIO())
    console.print(preset_page("voc-b10-c2/krt-r-2"))
    text = console.file.getvalue()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert ["protocol", "B10-C2", "B0-C2"] in cells
    assert ["87.7", "80.5", "-", "-", "97.64", "93.52", "88.42", "85.1", "81.28", "80.46"] in cells
    assert "mlcil run --preset voc-b10-c2/krt-r-2 --data voc:PATH" in text
