import json

import pytest
import yaml

from mlcil.core.errors import UserError
from mlcil.core.files import write_json
from mlcil.experiments.presets import all_presets
from mlcil.reports.collect import collect
from mlcil.reports.runs import read_run

from .made import change_result, launch, made_run

PRESET = "coco-b0-c10/krt-r-20"


def names(collection):
    return [group.name for group in collection.groups]


def change_yaml(file, **changes):
    values = yaml.safe_load(file.read_text()) | changes
    file.write_text(yaml.safe_dump(values))


def test_runs_that_differ_in_the_seed_or_the_machine_alone_are_one_group_by_seed(tmp_path):
    made_run(tmp_path, "b", seed=1, threads=2, accelerator="cpu")
    made_run(tmp_path, "a", seed=0, cache_gb=1.0)
    made_run(tmp_path, "c", seed=2, epochs=7)
    collection = collect([tmp_path / name for name in "bac"])
    assert [[run.result.seed for run in group.runs] for group in collection.groups] == [[0, 1], [2]]
    assert names(collection) == ["krt (epochs 2)", "krt (epochs 7)"]
    assert not collection.problems


def test_a_name_says_no_more_than_it_takes_to_tell_the_groups_apart(tmp_path):
    made_run(tmp_path, "a", "krt", buffer="20", lr=0.1)
    made_run(tmp_path, "b", "krt", buffer="5", lr=0.1)
    made_run(tmp_path, "c", "krt", buffer="5", lr=0.2)
    made_run(tmp_path, "d", "ft", lr=0.3)
    assert names(collect([tmp_path])) == ["krt (buffer 20)", "krt (buffer 5, lr 0.1)", "krt (buffer 5, lr 0.2)", "ft"]


def test_an_option_of_a_method_tells_groups_apart(tmp_path):
    made_run(tmp_path, "a", token_weight=3.0)
    made_run(tmp_path, "b", token_weight=4.0)
    assert names(collect([tmp_path])) == ["krt (token_weight 3.0)", "krt (token_weight 4.0)"]


def test_one_method_on_two_protocols_needs_no_longer_name(tmp_path):
    made_run(tmp_path, "a", protocol="B0-C2")
    made_run(tmp_path, "b", protocol="B2-C2")
    made_run(tmp_path, "c", protocol="B0-C2", data="coco:/somewhere/slice,train=9")
    collection = collect([tmp_path])
    assert names(collection) == ["krt"] * 3
    assert collection.settings == ["digits B0-C2", "digits B2-C2", "slice B0-C2"]
    assert [group.setting for group in collection.of_setting("digits B2-C2")] == ["digits B2-C2"]


def test_a_protocol_of_class_lists_is_named_by_their_sizes(tmp_path):
    made_run(tmp_path, "a", protocol="0,1,2|3,4")
    assert collect([tmp_path]).settings == ["digits 3+2 classes"]


@pytest.mark.parametrize(
    ("paths", "shown"),
    [(("/a/x.pt", "/b/y.pt"), ["x.pt", "y.pt"]), (("/a/x.pt", "/b/x.pt"), ["/a/x.pt", "/b/x.pt"])],
)
def test_a_path_in_a_name_is_cut_to_its_last_part_where_that_is_enough(tmp_path, paths, shown):
    for index, path in enumerate(paths):
        made_run(tmp_path, str(index), weights=path)
    assert names(collect([tmp_path])) == [f"krt (weights {text})" for text in shown]


def test_the_same_weights_at_two_places_make_no_second_group(tmp_path):
    for seed, (path, digest) in enumerate([("/a/x.pt", "1f"), ("/b/x.pt", "1f"), ("/a/x.pt", "2e")]):
        folder = made_run(tmp_path, str(seed), seed=seed, weights=path)
        record = launch("krt", seed, weights={"file": path, "sha256": digest})
        write_json(folder / "environment.json", {"launches": [record]})
    assert [len(group.runs) for group in collect([tmp_path]).groups] == [2, 1]


def test_a_method_of_a_package_that_is_not_installed_can_be_shown(tmp_path):
    folder = made_run(tmp_path, "a", "ft")
    change_yaml(folder / "config.yaml", method="theirs", options={"depth": 3})
    change_result(folder, method="theirs")
    (group,) = collect([folder]).groups
    assert group.name == "theirs"
    assert group.runs[0].config["options.depth"] == 3


def test_folders_are_searched_for_runs_and_each_is_read_once(tmp_path):
    one, other = made_run(tmp_path / "grid", "x/one"), made_run(tmp_path / "grid", "other", seed=1)
    paths = [tmp_path / "grid", one / "results.json", one / "config.yaml", other / ".." / "other", tmp_path]
    collection = collect(paths)
    assert [run.path for group in collection.groups for run in group.runs] == [one, other]
    assert not collection.problems


def test_the_same_experiment_and_seed_counts_once_and_the_longer_run_wins(tmp_path):
    short = made_run(tmp_path, "a", done=1)
    long = made_run(tmp_path, "b")
    collection = collect([tmp_path])
    assert [run.path for group in collection.groups for run in group.runs] == [long]
    assert collection.problems == [f"{short} repeats {long} with the same settings and seed, and is left out"]


def test_only_whole_runs_are_finished(tmp_path):
    made_run(tmp_path, "a", done=2)
    made_run(tmp_path, "b", seed=1)
    (group,) = collect([tmp_path]).groups
    assert [run.result.finished for run in group.runs] == [False, True]
    assert [run.result.seed for run in group.finished] == [1]
    assert len(group.runs[0].result.sessions) == 2


def break_results(folder):
    (folder / "results.json").write_text('{"sessions": [')


def break_config(folder):
    (folder / "config.yaml").write_text("a: [")


def break_environment(folder):
    (folder / "environment.json").write_text('{"launches": [')


def not_begun(folder):
    (folder / "results.json").unlink()


def no_session(folder):
    change_result(folder, sessions=[])


def lacks_a_field(folder):
    change_result(folder, sessions=[{"session": 1}])


BROKEN = {
    break_results: "not valid JSON",
    break_config: "not valid YAML",
    break_environment: "environment.json is not valid JSON",
    not_begun: "no session is finished yet",
    no_session: "no session is finished yet",
    lacks_a_field: "missing 12 required",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_a_folder_that_cannot_be_shown_becomes_one_line_that_names_it(tmp_path, damage):
    bad, good = made_run(tmp_path, "bad"), made_run(tmp_path, "good")
    damage(bad)
    collection = collect([tmp_path])
    assert [run.path for group in collection.groups for run in group.runs] == [good]
    (line,) = collection.problems
    assert str(bad) in line
    assert BROKEN[damage] in line
    assert "\n" not in line


def test_paths_that_are_missing_or_empty_become_a_line_each(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.log").touch()
    good = made_run(tmp_path, "good")
    missing, empty, log = tmp_path / "no", tmp_path / "empty", tmp_path / "a.log"
    collection = collect([missing, empty, log, good])
    assert collection.problems == [f"{missing} does not exist", f"{empty} holds no run", f"{log} holds no run"]
    assert names(collection) == ["krt"]


def test_nothing_to_report_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(UserError, match="no run was named"):
        collect([])
    with pytest.raises(UserError, match=r"found no run: .*x does not exist \(and 1 more\)$"):
        collect([tmp_path / "x", tmp_path])


def test_a_torn_last_line_of_the_metrics_is_passed_over(tmp_path):
    folder = made_run(tmp_path, "a")
    whole = read_run(folder).metrics
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"session": 4, "epo')
    assert read_run(folder).metrics == whole
    assert whole[-1]["mAP"] == read_run(folder).result.last_map


def test_a_run_without_metrics_and_environment_can_be_read(tmp_path):
    folder = made_run(tmp_path, "a")
    (folder / "metrics.jsonl").unlink()
    (folder / "environment.json").unlink()
    run = read_run(folder)
    assert (run.metrics, run.launches) == ([], [])


def test_a_failure_in_a_grid_is_one_line(tmp_path):
    made_run(tmp_path / "grid", "good")
    not_begun(made_run(tmp_path / "grid", "bad"))
    runs = [
        {"name": "good", "status": "done", "error": ""},
        {"name": "bad", "status": "failed", "error": "out of memory"},
    ]
    write_json(tmp_path / "grid" / "grid.json", {"runs": runs})
    assert collect([tmp_path]).problems == [f"{tmp_path / 'grid' / 'bad'} failed: out of memory"]
    write_json(tmp_path / "grid" / "grid.json", {"runs": [{}]})
    assert f"{tmp_path / 'grid' / 'grid.json'} is damaged" in collect([tmp_path]).problems


def of_preset(tmp_path, name=PRESET, data="coco:/somewhere/coco", test_images=40126, **changes):
    preset = all_presets()[name]
    values = {key: value for key, value in preset.values.items() if key not in ("options", "method")}
    settings = values | dict(preset.values["options"]) | {"data": data, "preset": name} | changes
    folder = made_run(tmp_path, "run", preset.values["method"], **settings)
    change_result(folder, {"test_images": test_images})
    (group,) = collect([folder]).groups
    return group


def test_a_preset_that_was_run_as_it_is_shows_no_change(tmp_path):
    group = of_preset(tmp_path, threads=1, seed=3, images="/elsewhere")
    assert group.preset is all_presets()[PRESET]
    assert group.changes == []


def test_every_departure_from_a_preset_is_a_change_also_from_a_default_that_it_leaves_alone(tmp_path):
    group = of_preset(tmp_path, backbone="small_conv", weights=None, freeze="2", token_weight=7.0)
    assert group.changes == [
        "backbone: tresnet_m -> small_conv",
        "weights: miil_in21k -> None",
        "freeze: none -> 2",
        "token_weight: 100.0 -> 7.0",
    ]


def test_other_data_and_a_slice_of_the_data_are_changes(tmp_path):
    assert of_preset(tmp_path / "a", data="digits").changes == ["data: coco -> digits"]
    assert of_preset(tmp_path / "b", test_images=442).changes == ["test images: 40137 -> 442"]


def test_a_run_without_a_preset_or_with_an_unknown_one_has_none(tmp_path):
    made_run(tmp_path, "a", "ft")
    made_run(tmp_path, "b", preset="of/another-version")
    assert [(group.preset, group.changes) for group in collect([tmp_path]).groups] == [(None, []), (None, [])]


def test_data_of_the_same_name_are_another_setting(tmp_path):
    made_run(tmp_path, "a", data="digits:train=40")
    made_run(tmp_path, "b", method="ft", data="digits:train=60")
    made_run(tmp_path, "c", method="lwf", data="digits:train=40")
    found = {group.name: group.setting for group in collect([tmp_path]).groups}
    assert found["krt"] == found["lwf"] != found["ft"] == f"{found['krt']} #2"


def test_the_command_of_a_grid_is_kept(tmp_path):
    made_run(tmp_path / "grid", "a")
    write_json(tmp_path / "grid" / "grid.json", {"command": "mlcil grid x.yaml", "runs": []})
    assert collect([tmp_path]).commands == ["mlcil grid x.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"launches": [[]]}',
        '{"launches": [{"command": []}]}',
        '{"launches": [{}]}',
        '{"launches": [{"command": ["a"], "device": []}]}',
    ],
)
def test_launches_of_another_kind_are_named(tmp_path, text):
    folder = made_run(tmp_path, "run")
    (folder / "environment.json").write_text(text)
    with pytest.raises(UserError, match="environment.json does not list the launches of a run"):
        collect([folder])


@pytest.mark.parametrize(
    "line",
    [
        {"session": "1", "epoch": 1},
        {"session": 1, "epoch": 1, "losses": {"a": "b"}, "images": 1, "seconds": 1},
        {"session": 1, "epoch": 1, "mAP": 1.0, "session_seconds": None},
        {"session": 1, "epoch": 1, "pseudo_labels": []},
    ],
)
def test_metrics_of_another_kind_are_named(tmp_path, line):
    folder = made_run(tmp_path, "run")
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match="metrics.jsonl has a line that is not about an epoch or a session"):
        collect([folder])
