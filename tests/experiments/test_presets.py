"""The presets carry the paper's figures and settings; the figures are written out here a second time."""

from __future__ import annotations

import io
import re
import shutil
from collections import Counter
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest
from rich.console import Console

from mlcil.cli.listings import preset_page, preset_table
from mlcil.core.errors import UserError
from mlcil.data.protocol import parse_protocol
from mlcil.experiments import presets
from mlcil.experiments.presets import (
    all_presets,
    find_preset,
    group_names,
    preset_group,
    preset_values,
    read_presets,
)
from mlcil.memory.buffer import Budget
from mlcil.methods.krt import KRT
from mlcil.methods.registry import method_class
from mlcil.training.config import make_config

ROOT = Path(__file__).resolve().parents[2]
PRESETS = all_presets()
CLASSES = {"coco": 80, "voc": 20}

# The appendix: mAP after each session and, last, the average.
APPENDIX = {
    "coco-b0-c20": """
        ft        86.50 54.60 26.53 27.88 51.38
        icarl-20  86.50 70.72 66.56 52.41 69.05
        bic-20    86.50 75.16 68.08 51.51 70.31
        er-20     86.50 69.48 60.74 58.04 68.69
        tpcil-20  86.50 75.13 67.81 63.41 73.21
        podnet-20 86.50 75.71 70.52 66.96 74.92
        derpp-20  86.50 75.84 73.28 68.17 75.95
        krt-r-20  86.63 78.84 77.29 75.25 79.47""",
    "coco-b0-c10": """
        ft        92.51 59.68 41.23 31.86 22.03 23.07 19.27 16.93 38.33
        icarl-20  92.51 73.62 67.38 60.20 52.19 43.63 44.25 43.84 59.72
        bic-20    92.51 79.53 73.97 64.16 57.17 49.79 50.63 50.95 64.96
        er-20     92.51 75.14 61.34 56.83 48.55 51.44 49.28 47.19 60.28
        tpcil-20  92.51 77.86 69.12 67.34 62.85 63.25 62.12 60.57 69.45
        podnet-20 92.51 79.95 73.45 68.22 63.17 62.98 60.36 58.82 69.93
        derpp-20  92.51 79.23 76.27 70.68 68.88 67.12 64.16 63.11 72.74
        krt-r-20  92.25 81.30 77.26 74.69 73.22 72.80 70.61 70.17 76.54""",
    "coco-b40-c10": """
        ft        82.88 28.55 28.06 18.78 16.99 35.05
        icarl-20  82.41 67.87 63.40 58.27 55.74 65.61
        bic-20    82.41 71.51 61.76 55.52 55.91 65.55
        er-20     82.41 70.79 66.58 63.34 61.59 68.94
        tpcil-20  82.41 72.62 71.65 68.62 66.54 72.37
        podnet-20 82.41 71.40 70.76 65.90 64.22 70.96
        derpp-20  82.41 77.07 73.92 68.11 66.31 73.56
        krt-r-20  82.37 79.54 78.27 75.95 75.18 78.26""",
    "coco-b40-c5": """
        ft        82.41 45.74 16.43 17.59 13.60 12.51 10.99 10.44 10.66 24.49
        icarl-20  82.41 74.10 62.80 60.40 61.60 56.40 54.90 54.80 53.90 62.37
        bic-20    82.41 75.50 61.35 56.13 57.37 52.94 52.17 51.97 51.72 60.17
        er-20     82.41 74.24 66.58 62.92 63.88 61.03 60.30 59.96 58.12 65.49
        tpcil-20  82.41 74.91 70.21 69.04 68.35 66.25 66.01 64.79 64.24 69.58
        podnet-20 82.41 76.18 68.21 66.31 66.45 61.45 61.50 59.98 58.89 66.82
        derpp-20  82.41 78.20 74.15 70.09 67.03 61.90 61.91 62.97 62.14 68.98
        krt-r-20  82.37 80.63 78.15 76.46 76.43 74.34 73.62 72.82 72.43 76.36""",
    "voc-b0-c4": """
        ft        99.25 94.16 85.51 68.67 62.88 82.09
        icarl-2   99.25 95.03 88.31 81.16 72.38 87.23
        bic-2     99.25 94.48 86.29 81.83 72.24 86.82
        er-2      99.25 95.05 89.22 75.60 71.49 86.12
        tpcil-2   99.25 95.10 88.04 78.15 77.35 87.58
        podnet-2  99.25 95.64 88.71 80.28 76.60 88.09
        derpp-2   99.25 95.35 89.02 80.13 76.05 87.96
        krt-r-2   99.77 96.06 89.06 85.43 83.43 90.73""",
    "voc-b10-c2": """
        ft        97.09 86.97 82.49 61.65 49.54 43.01 70.12
        icarl-2   97.09 89.32 84.37 69.74 66.63 66.70 78.98
        bic-2     97.09 89.94 85.33 76.03 72.04 69.71 81.69
        er-2      97.09 89.33 87.74 76.86 69.26 68.58 81.48
        tpcil-2   97.09 88.19 82.79 74.44 70.69 70.77 80.66
        podnet-2  97.09 89.89 85.59 72.13 71.18 71.35 81.21
        derpp-2   97.09 89.44 87.72 76.36 72.97 70.64 82.37
        krt-r-2   97.64 93.52 88.42 85.10 81.28 80.46 87.73""",
}
# Table 1: average mAP, CF1, OF1 and last mAP of B0-C10, then of B40-C10.
TABLE_1 = """
    joint      -    76.4 79.4 81.8  -    76.4 79.4 81.8
    ft         38.3  6.1 13.4 16.9  35.1  6.0 13.6 17.0
    podnet     43.7  7.2 14.1 25.6  44.3  6.8 13.9 24.7
    oewc       46.9  6.7 13.4 24.3  44.8 11.1 16.5 27.3
    lwf        47.9  9.0 15.1 28.9  48.6  9.5 15.8 29.9
    krt        74.6 55.6 56.5 65.9  77.8 64.4 63.4 74.0
    tpcil-5    63.8 20.1 21.6 50.8  63.1 25.3 25.1 53.1
    podnet-5   65.7 13.6 17.3 53.4  65.4 24.2 23.4 57.8
    derpp-5    68.1 33.3 36.7 54.6  69.6 41.9 43.7 59.0
    krt-r-5    75.8 60.0 61.0 68.3  78.0 66.0 65.9 74.3
    icarl-20   59.7 19.3 22.8 43.8  65.6 22.1 25.5 55.7
    bic-20     65.0 31.0 38.1 51.1  65.5 38.1 40.7 55.9
    er-20      60.3 40.6 43.6 47.2  68.9 58.6 61.1 61.6
    tpcil-20   69.4 51.7 52.8 60.6  72.4 60.4 62.6 66.5
    podnet-20  70.0 45.2 48.7 58.8  71.0 46.6 42.1 64.2
    derpp-20   72.7 45.2 48.7 63.1  73.6 51.5 53.5 66.3
    krt-r-20   76.5 63.9 64.7 70.2  78.3 67.9 68.9 75.2
    prs-1000   48.8  8.5 14.7 27.9  50.8  9.3 15.1 33.2
    ocdm-1000  49.5  8.6 14.9 28.5  51.3  9.5 15.5 34.0
    krt-r-1000 75.7 61.6 63.6 69.3  78.3 67.5 68.5 75.1"""
# Table 2, B40-C10: average and last mAP, and the distance of the last to the upper bound of the same net.
TABLE_2 = """
    joint-vit -     83.16  0
    l2p       73.07 70.42 12.74
    l2p-r     73.64 71.68 11.48
    joint     -     81.80  0
    krt       77.83 74.02  7.78
    krt-r-20  78.34 75.18  6.62"""
# Table 3: average and last mAP of VOC B0-C4, then of B10-C2.
TABLE_3 = """
    joint    -    93.6  -    93.6
    ft       82.1 62.9  70.1 43.0
    icarl-2  87.2 72.4  79.0 66.7
    bic-2    86.8 72.2  81.7 69.7
    er-2     86.1 71.5  81.5 68.6
    tpcil-2  87.6 77.3  80.7 70.8
    podnet-2 88.1 76.6  81.2 71.4
    derpp-2  87.9 76.1  82.3 70.6
    krt-r-2  90.7 83.4  87.7 80.5"""
# Table 4, B40-C10: average and last mAP.
TABLE_4 = """
    kd-20              65.93 58.02
    krt-without-dpl-20 77.06 71.97
    krt-without-ica-20 77.14 73.12
    krt-with-kd-20     78.14 74.77
    krt-r-20           78.34 75.18"""
# Without pretraining, B40-C10: average and last mAP.
SCRATCH = """
    ft    21.37  9.60
    krt   52.09 48.38
    joint -     62.29"""
FIGURE_5B = {"coco-b40-c10/krt": 74.02, "coco-b40-c10/krt-r-50": 76.13}  # last mAP, the others are only drawn
DRAWN = {f"coco-b0-c10/krt-lambda-{one}" for one in (10, 30, 200, 500)} | {
    f"coco-b40-c10/krt-r-{one}" for one in (10, 30, 40)
}

# Where the paper does not agree with itself: two figures that should be one.
INCONSISTENT = {
    ("average", "coco-b0-c20/ft"): (51.38, 48.88),
    ("average", "coco-b0-c20/krt-r-20"): (79.47, 79.50),
    ("average", "coco-b0-c10/icarl-20"): (59.72, 59.70),
    ("average", "coco-b0-c10/bic-20"): (64.96, 64.84),
    ("average", "coco-b40-c10/icarl-20"): (65.61, 65.54),
    ("average", "coco-b40-c10/bic-20"): (65.55, 65.42),
    ("average", "coco-b40-c10/podnet-20"): (70.96, 70.94),
    ("average", "voc-b0-c4/krt-r-2"): (90.73, 90.75),
    ("table average", "coco-b0-c10/podnet-20"): (70.0, 69.93),
    ("table average", "voc-b0-c4/derpp-2"): (87.9, 87.96),
    ("table average", "voc-b10-c2/derpp-2"): (82.3, 82.37),
    ("table average", "coco-b40-c10/krt-r-20"): (78.34, 78.26),
    ("table last", "coco-b0-c10/bic-20"): (51.1, 50.95),
    ("base", "coco-b40-c10/ft"): (82.88, 82.41),
    ("same F1", "coco-b0-c10/podnet-20 and coco-b0-c10/derpp-20"): (45.2, 48.7),
}


def rows(text: str) -> dict[str, list[float | None]]:
    """The lines of a table by their first word."""
    lines = [line.split() for line in text.strip().splitlines()]
    return {name: [None if cell == "-" else float(cell) for cell in cells] for name, *cells in lines}


SESSIONS = {f"{folder}/{row}": cells for folder, text in APPENDIX.items() for row, cells in rows(text).items()}
# By preset and table, (average, last); and by preset (CF1, OF1).
MAPS: dict[str, dict[str, tuple[float | None, float]]] = {"1": {}, "2": {}, "3": {}, "4": {}, "scratch": {}}
F1 = {}
for row, cells in rows(TABLE_1).items():
    for folder, (average, cf1, of1, last) in (("coco-b0-c10", cells[:4]), ("coco-b40-c10", cells[4:])):
        MAPS["1"][f"{folder}/{row}"], F1[f"{folder}/{row}"] = (average, last), (cf1, of1)
for row, cells in rows(TABLE_3).items():
    MAPS["3"][f"voc-b0-c4/{row}"], MAPS["3"][f"voc-b10-c2/{row}"] = tuple(cells[:2]), tuple(cells[2:])
MAPS["2"] = {f"coco-b40-c10/{row}": tuple(cells[:2]) for row, cells in rows(TABLE_2).items()}
MAPS["4"] = {f"coco-b40-c10/{row}": tuple(cells) for row, cells in rows(TABLE_4).items()}
MAPS["scratch"] = {f"coco-b40-c10-scratch/{row}": tuple(cells) for row, cells in rows(SCRATCH).items()}
# What a preset has to print: the first table with it, else the appendix.
PRINTED = {name: (cells[-1], cells[-2]) for name, cells in SESSIONS.items()}
for table in ("4", "2", "3", "1", "scratch"):
    PRINTED |= MAPS[table]
KRT_ROWS = [name for name, one in PRESETS.items() if issubclass(method_class(one.values["method"]), KRT)]


def figures_of(name: str) -> set[float]:
    """All figures that a preset gives, in its fields or in `where`."""
    one = PRESETS[name].published
    fields = {one.average_map, one.last_map, one.cf1, one.of1, *one.sessions} - {None}
    return fields | {float(text) for text in re.findall(r"\d+\.\d+", one.where)}


def config_of(name: str):
    return make_config(dict(PRESETS[name].values) | {"data": "coco:x"})


# The figures --------------------------------------------------------------------------------------


def test_there_is_a_preset_for_every_published_row_and_no_other():
    assert PRESETS.keys() == PRINTED.keys() | FIGURE_5B.keys() | DRAWN
    assert len(PRESETS) == 92


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_a_preset_carries_the_average_and_last_map_of_its_table(name):
    published = PRESETS[name].published
    assert (published.average_map, published.last_map) == PRINTED[name]


def test_f1_is_given_for_the_rows_of_table_1_and_no_others():
    found = {name: (one.published.cf1, one.published.of1) for name, one in PRESETS.items() if one.published.cf1}
    assert found == F1


def test_the_sessions_are_those_of_the_appendix():
    found = {name: list(one.published.sessions) for name, one in PRESETS.items() if one.published.sessions}
    assert found == {name: cells[:-1] for name, cells in SESSIONS.items()}


def test_figures_of_further_tables_stand_in_where():
    further = {(name, cells[-1]) for name, cells in SESSIONS.items()}
    further |= {(name, one) for table in MAPS.values() for name, both in table.items() for one in both if one}
    further |= set(FIGURE_5B.items())
    assert [(name, one) for name, one in sorted(further) if one not in figures_of(name)] == []


def test_a_preset_gives_no_figure_that_is_not_in_the_paper():
    allowed = {name: set(SESSIONS.get(name, ())) | set(F1.get(name, ())) for name in PRESETS}
    for table in (*MAPS.values(), {name: (one,) for name, one in FIGURE_5B.items()}):
        for name, both in table.items():
            allowed[name] |= set(both)
    assert {name: extra for name in PRESETS if (extra := figures_of(name) - allowed[name])} == {}


def test_rows_that_are_only_drawn_have_no_figures_and_say_so():
    assert {name for name in PRESETS if not figures_of(name)} == DRAWN
    assert all("drawn only" in PRESETS[name].published.where for name in DRAWN)


@pytest.mark.parametrize("name", sorted(SESSIONS))
def test_as_many_sessions_are_published_as_the_protocol_has(name):
    preset = PRESETS[name]
    assert len(preset.published.sessions) == len(parse_protocol(preset.values["protocol"], CLASSES[preset.kind]))


# Where the paper does not agree with itself -------------------------------------------------------


def averages_apart() -> dict[tuple[str, str], tuple[float, float]]:
    """Averages of the appendix that its sessions do not give; both sides are rounded to two digits."""
    pairs = {name: (cells[-1], mean(cells[:-1])) for name, cells in SESSIONS.items()}
    return {("average", name): (a, round(b, 2)) for name, (a, b) in pairs.items() if abs(a - b) > 0.01 + 1e-9}


def tables_apart() -> dict[tuple[str, str], tuple[float, float]]:
    """Figures of tables 1 to 4 that are not those of the appendix, rounded to as many digits."""
    found = {}
    for table, half in (("1", 0.05), ("3", 0.05), ("2", 0.005), ("4", 0.005)):
        for name in MAPS[table].keys() & SESSIONS.keys():
            for what, printed, listed in zip(
                ("average", "last"), MAPS[table][name], SESSIONS[name][:-3:-1], strict=True
            ):
                if abs(printed - listed) > half + 0.005 + 1e-9:
                    found["table " + what, name] = (printed, listed)
    return found


def bases_apart() -> dict[tuple[str, str], tuple[float, float]]:
    """First sessions that train the same net on the same classes, and should be equal."""
    alike: dict[tuple[str, bool], list[str]] = {}
    for name in SESSIONS:
        folder = name.split("/")[0].replace("coco-b40-c5", "coco-b40-c10")
        alike.setdefault((folder, "krt" in name), []).append(name)
    found = {}
    for names in alike.values():
        usual = Counter(SESSIONS[name][0] for name in names).most_common(1)[0][0]
        found |= {("base", name): (SESSIONS[name][0], usual) for name in names if SESSIONS[name][0] != usual}
    return found


def same_f1() -> dict[tuple[str, str], tuple[float, float]]:
    """Rows of one protocol with the same CF1 and OF1, in the order of the table."""
    names = list(F1)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if a.split("/")[0] == b.split("/")[0]]
    return {("same F1", f"{a} and {b}"): F1[a] for a, b in pairs if F1[a] == F1[b]}


def test_the_inconsistencies_of_the_paper_are_exactly_those_listed():
    assert averages_apart() | tables_apart() | bases_apart() | same_f1() == INCONSISTENT


@pytest.mark.parametrize("table", ["2", "4"])
def test_the_tables_with_more_digits_round_to_table_1(table):
    both = [name for name in MAPS[table] if name in MAPS["1"] and name != "coco-b40-c10/joint"]
    assert both
    for name in both:
        assert MAPS[table][name] == pytest.approx(MAPS["1"][name], abs=0.05 + 1e-9)


def test_the_distances_of_table_2_are_those_to_the_bound_of_the_same_net():
    table = rows(TABLE_2)
    bounds = {row: "joint-vit" if row in ("joint-vit", "l2p", "l2p-r") else "joint" for row in table}
    assert {row: round(table[bounds[row]][1] - cells[1], 2) for row, cells in table.items()} == {
        row: cells[2] for row, cells in table.items()
    }


@pytest.mark.parametrize(("what", "names"), list(INCONSISTENT))
def test_the_page_mentions_each_inconsistency_with_its_figures(what, names):
    lines = [line for line in (ROOT / "docs" / "presets.md").read_text().splitlines() if line.startswith("| `")]
    one, other = INCONSISTENT[what, names]
    figures = [f"{one:.2f}", f"{other:.2f}"] if what in ("average", "base") else [str(one), str(other)]
    wanted = [f"`{name}`" for name in names.split(" and ")] + figures
    assert any(all(text in line for text in wanted) for line in lines), wanted


# The settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_resolves_to_a_run_with_the_types_of_its_values(name):
    values, made = PRESETS[name].values, config_of(name).to_dict()
    assert {key: made[key] for key in values if key != "options"} == {
        key: value for key, value in values.items() if key != "options"
    }
    assert values["options"].items() <= made["options"].items()
    assert "data" not in values
    assert "preset" not in values


@pytest.mark.parametrize("name", KRT_ROWS)
def test_a_row_of_krt_states_every_hyper_parameter_of_the_paper(name):
    preset = PRESETS[name]
    on_voc, from_nothing = preset.kind == "voc", preset.values["protocol"].startswith("B0-")
    drawn = re.search(r"lambda-(\d+)", name)
    shared = {
        "backbone": "tresnet_m",
        "weights": None if "scratch" in name else "miil_in21k",
        "image_size": 224,
        "epochs": 20,
        "batch_size": 64,
        "base_lr": 4e-5,
        "lr": 4e-5 if on_voc else 1e-4,
        "weight_decay": 1e-4,
        "warmup": 4 / 20,
        "schedule": "one_cycle",
        "augment": "randaugment",
        "order": None,
    }
    assert {key: preset.values[key] for key in shared} == shared
    assert preset.values["options"] == {
        "width": 768 if on_voc else 384,
        "heads": 8,
        "token_weight": float(drawn[1]) if drawn else 100.0 if from_nothing else 300.0,
        "labels_per_image": 1.4 if on_voc else 2.9,
        "threshold": 0.8,
    }


def test_krt_options_go_to_no_other_method():
    others = PRESETS.keys() - set(KRT_ROWS)
    assert {name for name in others if PRESETS[name].values["options"]} == set()
    assert len(KRT_ROWS) == 4 + 4 + 8 + 3 + 2 + 2 + 1  # B0-C10, lambda, B40-C10, parts, appendix only, VOC, scratch


def test_the_buffer_is_the_one_in_the_name():
    found = {name: Budget.parse(PRESETS[name].values["buffer"]) for name in PRESETS if "lambda" not in name}
    numbers = {name: int(match[1]) if (match := re.search(r"-(\d+)$", name)) else 0 for name in found}
    numbers["coco-b40-c10/l2p-r"] = 20
    for name, number in numbers.items():
        assert found[name] == (Budget(total=1000) if number == 1000 else Budget(per_class=number)), name


@pytest.mark.parametrize("name", list(PRESETS))
def test_method_and_protocol_are_those_in_the_name(name):
    folder, row = name.split("/")
    kind, base, step = folder.removesuffix("-scratch").split("-")
    method = re.sub(r"-(r|r-\d+|\d+|lambda-\d+|vit)$", "", row).replace("-", "_")
    values = PRESETS[name].values
    assert (PRESETS[name].kind, values["protocol"]) == (kind, f"{base}-{step}".upper())
    assert values["method"] == method


@pytest.mark.parametrize("name", ["coco-b0-c10/prs-1000", "coco-b40-c10/ocdm-1000", "coco-b40-c10/l2p-r"])
def test_a_method_keeps_the_settings_of_its_own_recipe(name):
    setting_defaults = method_class(PRESETS[name].values["method"]).setting_defaults
    assert setting_defaults.items() <= PRESETS[name].values.items()


def test_the_bound_of_table_2_trains_the_net_that_l2p_uses():
    bound, prompts = (PRESETS[f"coco-b40-c10/{row}"].values for row in ("joint-vit", "l2p"))
    assert (bound["backbone"], bound["weights"]) == (prompts["backbone"], prompts["weights"])


@pytest.mark.parametrize(
    ("file", "tag"),
    [("tresnet", "tresnet_m.miil_in21k"), ("vision_transformer", "vit_base_patch16_224.augreg_in21k")],
)
def test_the_pretrained_nets_are_known_to_timm(file, tag):
    package = Path(find_spec("timm").origin).parent  # read, not imported: that takes seconds
    assert f"'{tag}':" in (package / "models" / f"{file}.py").read_text()
    nets = {(one.values["backbone"], one.values["weights"]) for one in PRESETS.values()}
    assert nets & {tuple(tag.split(".")), (tag, "pretrained")}


# Finding them -------------------------------------------------------------------------------------


def test_presets_come_by_folder_and_then_by_row():
    assert list(PRESETS) == sorted(PRESETS, key=lambda name: name.split("/"))
    assert all(name == one.name and one.groups[-1] == name.split("/")[0] for name, one in PRESETS.items())


def test_a_change_of_the_returned_dictionary_stays_with_the_caller():
    all_presets().clear()
    assert len(all_presets()) == 92


GROUPS = {
    **{"table1": 40, "table2": 6, "table3": 18, "table4": 5, "figure5a": 5, "figure5b": 7, "scratch": 3},
    **{f"appendix-{one}": 8 for one in ("b0-c20", "b0-c10", "b40-c10", "b40-c5", "voc-b0-c4", "voc-b10-c2")},
    **{"coco-b0-c10": 24, "coco-b40-c10": 31, "coco-b0-c20": 8, "coco-b40-c5": 8, "coco-b40-c10-scratch": 3},
    **{"voc-b0-c4": 9, "voc-b10-c2": 9},
}


def test_every_group_has_as_many_rows_as_its_table_or_figure():
    assert group_names() == GROUPS
    assert {name: len(preset_group(name)) for name in GROUPS} == GROUPS


@pytest.mark.parametrize("table", ["1", "2", "3", "4"])
def test_the_group_of_a_table_holds_the_rows_of_the_table(table):
    assert {one.name for one in preset_group(f"table{table}")} == MAPS[table].keys()


def test_a_group_of_the_appendix_holds_the_rows_that_it_lists():
    listed = {one.name for group in GROUPS if group.startswith("appendix-") for one in preset_group(group)}
    assert listed == SESSIONS.keys()


def test_figure_5a_varies_lambda_and_figure_5b_the_buffer_alone():
    lambdas = [one.values for one in preset_group("figure5a")]
    assert {values["options"]["token_weight"] for values in lambdas} == {10, 30, 100, 200, 500}
    assert len({str({**values, "options": {**values["options"], "token_weight": 0}}) for values in lambdas}) == 1
    buffers = [one.values for one in preset_group("figure5b")]
    assert {values["buffer"] for values in buffers} == {"0", "5", "10", "20", "30", "40", "50"}
    assert len({str(values | {"buffer": ""}) for values in buffers}) == 1


def test_the_settings_to_run_a_preset_name_the_data_and_the_preset():
    preset = find_preset("voc-b0-c4/krt-r-2")
    values = preset_values(preset, "table:own.csv")
    assert (values["data"], values["preset"]) == ("table:own.csv", "voc-b0-c4/krt-r-2")
    values["options"]["width"] = 1
    assert preset.values["options"]["width"] == 768
    assert values.keys() - preset.values.keys() == {"data", "preset"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find_preset("coco-b0-c10/krt-r-21"), "unknown preset 'coco-b0-c10/krt-r-21', did you mean"),
        (lambda: find_preset("krt"), "unknown preset 'krt'"),
        (lambda: preset_group("table9"), "unknown group of presets 'table9', did you mean 'table"),
        (lambda: preset_values(PRESETS["voc-b0-c4/ft"], None), "preset voc-b0-c4/ft needs --data voc:PATH"),
    ],
)
def test_a_mistake_is_told_in_one_line(call, words):
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_preset_unknown_in_a_known_folder_lists_that_folder_alone():
    with pytest.raises(UserError) as caught:
        find_preset("voc-b0-c4/krt")
    assert "voc-b0-c4/krt-r-2" in str(caught.value)
    assert "coco" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("paper.yaml", "author: me"),
        ("paper.yaml", "  widht: 384"),  # under krt
        ("voc-b0-c4/_protocol.yaml", "order: none"),
        ("voc-b0-c4/ft.yaml", "epochs: 3"),
        ("voc-b0-c4/ft.yaml", "  map: 3"),  # under published
    ],
)
def test_an_unknown_key_in_a_file_is_refused(file, line, tmp_path):
    copy_of_voc(tmp_path)
    assert "voc-b0-c4/ft" in read_presets(tmp_path)
    with (tmp_path / file).open("a") as text:
        text.write(line + "\n")
    with pytest.raises(ValueError, match="Got the keys"):
        read_presets(tmp_path)


def test_a_setting_that_no_run_takes_is_refused_with_the_name_of_the_preset(tmp_path):
    copy_of_voc(tmp_path)
    file = tmp_path / "voc-b0-c4" / "ft.yaml"
    file.write_text(file.read_text().replace("method: ft", "method: ft\n  epochs: 0"))
    with pytest.raises(ValueError, match="preset voc-b0-c4/ft: .*epochs"):
        read_presets(tmp_path)


def copy_of_voc(folder: Path) -> None:
    """The shared files and two rows."""
    source = Path(str(files(presets.__package__) / "rows"))
    for name in ("paper.yaml", "voc.yaml"):
        shutil.copy(source / name, folder)
    (folder / "voc-b0-c4").mkdir()
    for name in ("_protocol.yaml", "ft.yaml"):
        shutil.copy(source / "voc-b0-c4" / name, folder / "voc-b0-c4")


# Showing them -------------------------------------------------------------------------------------


def shown(what: object) -> str:
    console = Console(width=160, file=io.StringIO())
    console.print(what)
    return console.file.getvalue()


def test_the_table_lists_all_presets_or_those_of_a_group():
    everything, group = shown(preset_table(None)), shown(preset_table("table4"))
    assert all(f" {name} " in everything for name in PRESETS)
    assert {name for name in PRESETS if f" {name} " in group} == MAPS["4"].keys()
    assert re.search(r"coco-b40-c10/kd-20 .* 65\.93 .* 58\.02", group)


def test_the_page_of_a_preset_has_settings_figures_and_command():
    text = shown(preset_page("voc-b10-c2/krt-r-2"))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    for row in (
        ["width", "768", "384"],
        ["lr", "4e-05", "0.0001"],
        ["protocol", "B10-C2", "B0-C2"],
        ["heads", "8", "8"],
    ):
        assert row in cells
    assert ["87.7", "80.5", "-", "-", "97.64", "93.52", "88.42", "85.1", "81.28", "80.46"] in cells
    assert "appendix (average 87.73)" in text
    assert "mlcil run --preset voc-b10-c2/krt-r-2 --data voc:PATH" in text


def test_the_page_of_presets_counts_the_rows_of_every_group():
    text = (ROOT / "docs" / "presets.md").read_text()
    told = {name: int(count) for name, count in re.findall(r"^\| `([\w-]+)` \| (\d+) \|", text, re.MULTILINE)}
    assert told == GROUPS
