import json
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from mlcil.core.files import write_json
from mlcil.evaluation import metrics
from mlcil.evaluation.results import load_results
from mlcil.reports import tables
from mlcil.reports.collect import collect
from mlcil.reports.table import KNOWN, KNOWN_NOTE, Spread, cell_text, to_terminal

from .made import EPOCHS, IMAGES, NAMES, SECONDS, change_result, launch, made_run

SETTING = "digits B0-C2"
PRESET = "coco-b0-c10/krt-r-20"  # average 76.5, last 70.2, and eight sessions
PRESET_SESSIONS = (92.25, 81.30, 77.26, 74.69, 73.22, 72.80, 70.61, 70.17)
METRICS = ["average mAP", "last mAP", "CF1@0.8", "OF1@0.8", "ECE", "forgetting", "BWT"]


def texts(table):
    return [[cell_text(cell) for cell in row.cells] for row in table.rows]


def column(table, heading):
    return [row.cells[table.headings.index(heading)] for row in table.rows]


@pytest.fixture
def collection(tmp_path):
    """Two seeds of krt, two of er of which one is unfinished, joint, and oewc, which is unfinished."""
    for seed in (0, 1):
        made_run(tmp_path, f"krt-{seed}", "krt", seed)
    made_run(tmp_path, "er-0", "er", 0, buffer="20")
    made_run(tmp_path, "er-1", "er", 1, buffer="20", done=1)
    made_run(tmp_path, "joint", "joint", 0, (6,))
    made_run(tmp_path, "oewc", "oewc", 0, done=2)
    return collect([tmp_path / name for name in ("krt-0", "krt-1", "er-0", "er-1", "joint", "oewc")])


def results_of(collection, name):
    return [run.result for group in collection.groups if group.name == name for run in group.finished]


def test_the_summary_averages_finished_runs_only(collection):
    table = tables.summary(collection)
    assert table.headings == ["method", "buffer", "seeds", "unfinished", *METRICS]
    assert column(table, "method") == ["krt", "er", "joint", "oewc (unfinished)"]
    assert column(table, "seeds") == [2, 1, 1, 0]
    assert column(table, "unfinished") == [None, 1, None, 1]
    assert column(table, "buffer") == [0, 20, 0, 0]
    maps = [result.last_map for result in results_of(collection, "krt")]
    assert column(table, "last mAP")[0] == Spread(fmean(maps), stdev(maps))
    (er,) = results_of(collection, "er")
    assert column(table, "average mAP")[1] == Spread(er.average_map, None)
    for heading in METRICS[2:]:
        assert column(table, heading)[1].mean == er.sessions[-1].metrics[heading]
    assert [(row.method, row.setting) for row in table.rows] == [
        (method, SETTING) for method in ("krt", "er", "joint", "oewc")
    ]


def test_joint_has_no_average_and_forgets_nothing_and_an_unfinished_group_has_no_metrics(collection):
    table = tables.summary(collection)
    joint, unfinished = texts(table)[2:]
    assert [joint[table.headings.index(name)] for name in ("average mAP", "forgetting", "BWT")] == ["-"] * 3
    assert cell_text(column(table, "last mAP")[2]) != "-"
    assert unfinished[4:] == ["-"] * len(METRICS)


def test_metrics_at_stored_thresholds_have_columns_where_a_finished_run_has_them(collection, tmp_path):
    last = load_results(tmp_path / "krt-1").sessions[-1].metrics
    stored = {"CF1@stored": 61.0, "OF1@stored": 62.0}
    change_result(tmp_path / "oewc", {"metrics": last | stored})
    assert tables.summary(collect([tmp_path])).headings[4:] == METRICS
    change_result(tmp_path / "krt-1", {"metrics": last | stored})
    table = tables.summary(collect([tmp_path]))
    assert column(table, "CF1@stored").count(Spread(61.0, None)) == 1
    assert "Stored thresholds are one per class" in table.note


def test_a_new_metric_shows_up_in_the_results_and_the_tables_by_its_name(tmp_path, monkeypatch):
    def images(found):
        yield "images with a label", float((found.labels == 1).any(axis=1).sum())

    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, images))
    folder = made_run(tmp_path, "a")
    value = load_results(folder).sessions[-1].metrics["images with a label"]
    assert 0 < value <= 60
    assert column(tables.summary(collect([folder])), "images with a label") == [Spread(value, None)]
    assert column(tables.session_table(load_results(folder)), "images with a label")[-1] == value


def test_groups_of_one_setting_stand_together_and_several_settings_have_a_column(tmp_path):
    for name, protocol in (("a", "B0-C2"), ("b", "B2-C2"), ("c", "B0-C2")):
        made_run(tmp_path, name, "ft", epochs=ord(name), protocol=protocol)
    table = tables.summary(collect([tmp_path]))
    assert table.headings[:2] == ["method", "setting"]
    assert column(table, "setting") == [SETTING, SETTING, "digits B2-C2"]
    assert tables.summary(collect([tmp_path / "a"])).title == f"Summary: {SETTING}"


def test_one_run_session_by_session(tmp_path):
    result = load_results(made_run(tmp_path, "a"))
    table = tables.session_table(result)
    assert table.title == (f"krt, digits, B0-C2: average mAP {result.average_map:.1f}, last {result.last_map:.1f}")
    assert table.headings == ["session", "new classes", "seen", "images", "mAP", *METRICS[2:], "seconds"]
    assert table.rows[1].cells[:5] == [2, "cat, dog", 4, IMAGES, result.sessions[1].map]
    assert "(unfinished)" in tables.session_table(replace(result, finished=False)).title


def with_preset(tmp_path, sessions=8, **changes):
    values = {"preset": PRESET, "data": "coco:/x/coco", "protocol": "B0-C10", "buffer": "20"} | changes
    names = [f"class {index}" for index in range(80)]
    counts = [*range(10, 81, 10)]
    for seed in (0, 1):
        made_run(tmp_path, f"p{seed}", "krt", seed, counts[:sessions], None, names, **values)
    return collect([tmp_path])


def test_measured_and_published_values_stand_side_by_side_with_what_was_changed(tmp_path, collection):
    assert tables.published(collection) is None
    found = with_preset(tmp_path / "published")
    table = tables.published(found)
    mean = fmean(run.result.last_map for run in found.groups[0].runs)
    assert column(table, "preset") == [PRESET]
    assert column(table, "last mAP")[0].mean == mean
    assert column(table, "last mAP published") == [70.2]
    assert column(table, "last mAP difference")[0] == pytest.approx(mean - 70.2)
    assert column(table, "average mAP published") == [76.5]
    assert column(table, "CF1@0.8 published") == [63.9]
    assert column(table, "OF1@0.8 published") == [64.7]
    changed = len(found.groups[0].changes)
    assert column(table, "changed") == [f"test images, negatives, backbone and {changed - 3} more"]


def test_what_no_compared_row_publishes_has_no_columns(tmp_path):
    made_run(tmp_path, "a", preset="coco-b0-c10/krt-lambda-10")  # drawn, not printed
    assert tables.published(collect([tmp_path])).headings == ["method", "preset", "changed"]


def test_an_unfinished_run_of_a_preset_has_no_difference(tmp_path):
    made_run(tmp_path, "a", preset=PRESET, done=1)
    table = tables.published(collect([tmp_path]))
    assert column(table, "method") == ["krt (unfinished)"]
    assert column(table, "last mAP") == column(table, "last mAP difference") == [None]
    assert column(table, "last mAP published") == [70.2]


def test_sessions_stand_under_the_number_of_classes_seen(collection):
    table = tables.sessions(collection, SETTING)
    assert table.headings == ["method", "2 classes", "4 classes", "6 classes"]
    krt, er, joint, oewc = table.rows
    maps = [result.sessions[1].map for result in results_of(collection, "krt")]
    assert krt.cells[2] == Spread(fmean(maps), stdev(maps))
    assert [cell.deviation for cell in er.cells[1:]] == [None, None, None]  # of the finished run alone
    assert joint.cells[1:3] == [None, None]
    assert joint.cells[3].mean == results_of(collection, "joint")[0].last_map
    assert oewc.cells[0] == "oewc (unfinished)"
    assert [cell is None for cell in oewc.cells[1:]] == [False, False, True]
    assert tables.comparison_tables(collection) == [tables.summary(collection), table]


def test_published_sessions_follow_the_runs_of_their_preset(tmp_path):
    measured, paper = tables.sessions(with_preset(tmp_path), "coco B0-C10").rows
    assert [type(cell) for cell in measured.cells[1:]] == [Spread] * 8
    assert paper.cells == [f"published: {PRESET}", *PRESET_SESSIONS]


@pytest.mark.parametrize("changes", [{"protocol": "B0-C20"}, {"sessions": 3}])
def test_published_sessions_are_not_shown_beside_other_sessions(tmp_path, changes):
    collection = with_preset(tmp_path, **changes)
    assert len(tables.sessions(collection, collection.settings[0]).rows) == len(collection.groups)


def test_an_unfinished_run_is_shown_the_published_sessions_that_it_has_reached(tmp_path):
    made_run(tmp_path, "a", preset=PRESET, protocol="B0-C10", done=2)
    table = tables.sessions(collect([tmp_path]), "digits B0-C10")
    assert table.rows[1].cells == [f"published: {PRESET}", *PRESET_SESSIONS[:2]]


def test_each_class_has_its_session_and_its_precision_per_group(collection):
    table = tables.per_class(collection, SETTING)
    assert table.headings == ["class", "session", "krt", "er", "joint", "oewc (unfinished)"]
    assert table.methods == {"krt": "krt", "er": "er", "joint": "joint", "oewc (unfinished)": "oewc"}
    assert column(table, "class") == list(NAMES[:6])
    assert column(table, "session") == [1, 1, 2, 2, 3, 3]  # not those of joint, which sees all in its first
    values = [result.sessions[-1].ap["cat"] for result in results_of(collection, "krt")]
    assert column(table, "krt")[2] == Spread(fmean(values), stdev(values))
    assert column(table, "krt")[1] is None  # no test image shows it
    assert column(table, "oewc (unfinished)")[4:] == [None, None]


def test_forgetting_is_of_old_classes_and_of_methods_that_can_forget(collection):
    table = tables.forgetting(collection, SETTING)
    assert table.headings == ["class", "session", "krt", "er", "oewc (unfinished)"]
    assert column(table, "class") == ["ant", "cat", "dog"]
    values = [result.forgetting_per_class()["dog"] for result in results_of(collection, "krt")]
    assert column(table, "krt")[2].mean == fmean(values)


def test_a_class_that_comes_in_other_sessions_in_other_orders_says_so(tmp_path):
    made_run(tmp_path, "a", order=None)
    made_run(tmp_path, "b", order="shuffle:1", names=NAMES[5::-1])
    table = tables.per_class(collect([tmp_path]), SETTING)
    by_class = {row.cells[0]: row.cells[1] for row in table.rows}
    assert by_class == {"ant": "1, 3", "bee": "1, 3", "cat": 2, "dog": 2, "eel": "3, 1", "fox": "3, 1"}


def test_the_runs_that_got_furthest_speak_for_an_unfinished_group(tmp_path):
    made_run(tmp_path, "a", seed=0, done=1)
    longer = made_run(tmp_path, "b", seed=1, done=2)
    table = tables.per_class(collect([tmp_path]), SETTING)
    assert column(table, "krt (unfinished)")[0] == Spread(load_results(longer).sessions[-1].ap["ant"], None)


def test_pseudo_labels_are_shown_by_session_over_seeds(collection):
    table = tables.pseudo_labels(collection)
    assert "recall" not in table.headings  # no run has any
    krt = [row for row in texts(table) if row[0] == "krt"]
    # per image 1.5 and 2.5, precision 80 and 82 of the two seeds
    values = ["0.700 ± 0.000", "2.50 ± 0.00", "2.00 ± 0.71", "2.00 ± 0.00", "81.0 ± 1.4"]
    assert krt == [["krt", session, *values] for session in ("2", "3")]
    assert [row[:2] for row in texts(table)[2:]] == [["er", "2"], ["er", "3"], ["oewc (unfinished)", "2"]]


def test_the_cost_of_a_run(collection):
    table = tables.cost(collection)
    krt, _, joint, oewc = texts(table)
    rate = f"{IMAGES * EPOCHS / SECONDS:.1f}"
    assert table.headings[1:6] == ["training s", "images/s", "wall clock s", "peak memory MB", "kept MB"]
    assert krt[1:] == ["9 ± 0", f"{rate} ± 0.0", "12 ± 0", "503", "12.3 ± 0.0", "cpu", "1", "1"]
    assert joint[1:6] == ["3", rate, "4", "501", "12.3"]
    assert oewc[:3] == ["oewc (unfinished)", "6", rate]


def test_the_memory_of_a_gpu_is_shown_if_there_is_one(tmp_path):
    folder = made_run(tmp_path, "a")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["gpu_memory_mb"] = 812.6
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert column(tables.cost(collect([folder])), "peak GPU MB") == [813]


def test_runs_of_the_same_environment_share_a_row_and_a_continued_run_may_stand_in_two(tmp_path):
    made_run(tmp_path, "a")
    other = made_run(tmp_path, "b", seed=1)
    weights = {"file": "/x.pt", "sha256": "0123456789abcdef" * 4}
    moved = launch("krt", 1, device="cuda:0", weights=weights, git_revision="f" * 40 + "-dirty")
    write_json(other / "environment.json", {"launches": [launch("krt", 1), launch("krt", 1), moved]})
    first, second = texts(tables.environment(collect([tmp_path])))
    common = ["Linux-6.1-x86_64", "3.11.7", "2.6.0", "0.1.0"]
    both = "krt (weights None) seed 0, krt (weights 01234567) seed 1"
    assert first == [*common, "0123456789ab", "-", "cpu", "2", both]
    assert second == [*common, "ffffffffffff-dirty", "0123456789ab", "cuda:0", "1", "krt (weights 01234567) seed 1"]


def test_runs_whose_weights_may_know_the_classes_are_marked_with_a_footnote(tmp_path):
    made_run(tmp_path, "plain", "krt", 0)
    made_run(tmp_path, "leaky", "krt", 0, allow_known_classes=True)
    found = collect([tmp_path / "plain", tmp_path / "leaky"])
    for table in (tables.summary(found), tables.sessions(found, SETTING), tables.cost(found)):
        assert [KNOWN in name for name in column(table, "method")] == [False, True]
        assert table.note.endswith(KNOWN_NOTE)
    assert [KNOWN in one for one in tables.per_class(found, SETTING).headings].count(True) == 1
    alone = tables.session_table(load_results(tmp_path / "leaky"))
    assert alone.title.startswith(f"krt{KNOWN}, ")
    assert to_terminal(alone).caption.plain == KNOWN_NOTE
    assert KNOWN_NOTE not in tables.summary(collect([tmp_path / "plain"])).note


def test_results_of_a_run_before_weights_were_looked_into_can_be_read(tmp_path):
    folder = made_run(tmp_path, "old", "krt", 0)
    record = json.loads((folder / "results.json").read_text())
    assert record.pop("allow_known_classes") is False
    del record["checksum"]
    write_json(folder / "results.json", record)
    assert load_results(folder).allow_known_classes is False
