import pytest

from mlcil.core.errors import UserError
from mlcil.experiments.plan import file_runs, method_runs, preset_runs
from mlcil.experiments.presets import find_preset, preset_group

GRID = """
settings: {data: digits, epochs: 3}
runs:
  ft: {method: ft}
  krt-r: {method: krt, buffer: 5, options: {width: 64}}
"""


def test_methods_by_protocols_by_seeds():
    runs = method_runs(["ft", "er:20", "prs:total:100"], ["B0-C2", "B4-C2"], [0, 7], {"data": "digits"})
    assert len(runs) == 12
    assert [one.name for one in runs[:4]] == [
        "B0-C2/ft/seed-0",
        "B0-C2/ft/seed-7",
        "B0-C2/er-20/seed-0",
        "B0-C2/er-20/seed-7",
    ]
    last = runs[-1].config.settings
    assert (last.method, last.protocol, last.buffer, last.seed) == ("prs", "B4-C2", "total:100", 7)


def test_a_file_of_runs(tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID)
    runs = file_runs(tmp_path / "grid.yaml", [0, 1], {})
    assert [one.name for one in runs] == ["ft/seed-0", "ft/seed-1", "krt-r/seed-0", "krt-r/seed-1"]
    assert all(one.config.settings.epochs == 3 for one in runs)
    assert runs[2].config.options.width == 64
    assert runs[2].config.settings.buffer == "5"


def test_some_runs_of_a_file(tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID)
    assert [one.name for one in file_runs(tmp_path / "grid.yaml", [1], {}, ["krt-r"])] == ["krt-r/seed-1"]
    with pytest.raises(UserError, match=r"unknown run in .*grid.yaml 'krtr'.* krt-r"):
        file_runs(tmp_path / "grid.yaml", [0], {}, ["ft", "krtr"])


def test_published_rows():
    group = preset_group("table1")
    runs = preset_runs(group, [3], {"data": "coco:x", "epochs": 1})
    assert len(runs) == len(group)
    assert {one.config.settings.preset for one in runs} == {preset.name for preset in group}
    assert {(one.config.settings.seed, one.config.settings.epochs) for one in runs} == {(3, 1)}


def test_an_option_goes_to_the_methods_that_have_it():
    ft, krt = method_runs(["ft", "krt"], ["B0-C2"], [0], {"token_weight": "7", "epochs": "2"})
    assert krt.config.options.token_weight == 7
    assert (ft.config.settings.epochs, krt.config.settings.epochs) == (2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: method_runs(["ft"], ["B0-C2"], [0], {"token_weight": "7"}), "token_weight"),
        (lambda: method_runs(["nft"], ["B0-C2"], [0], {}), "unknown method 'nft'"),
        (lambda: method_runs(["er"], ["B0-C2"], [0], {}), "needs a buffer"),
        (lambda: method_runs(["ft"], ["B0-C2"], [0], {"seed": "3"}), "given by --seeds"),
        (lambda: preset_runs([find_preset("coco-b0-c10/ft")], [0], {}), "needs --data"),
    ],
)
def test_mistakes_are_one_line(make, message):
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("settings: {}\n", "lists no runs"),
        ("runs: {ft: {method: ft}}\nmethods: x\n", "unknown key"),
        ("runs: {ft: 3}\n", "must map names"),
        ("runs: {ft: {method: ft, options: 3}}\n", "ft: options must map names to values, got 3"),
        ("runs: {ft: {method: ft, eopchs: 3}}\n", "eopchs"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        file_runs(tmp_path / "grid.yaml", [0], {})
    assert "\n" not in str(caught.value)
