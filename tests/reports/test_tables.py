import csv
import io
import json
import re
from statistics import fmean, stdev

import pytest

from mlcil.core.files import write_json
from mlcil.reports import tables
from mlcil.reports.cells import Spread, cell_text, to_csv
from mlcil.reports.collect import collect

from .made import EPOCHS, IMAGES, NAMES, SECONDS, launch, made_run

SETTING = "digits B0-C2"
PRESET = "coco-b0-c10/krt-r-20"  # averages 76.5, last 70.2, and eight sessions
PRESET_SESSIONS = (92.25, 81.30, 77.26, 74.69, 73.22, 72.80, 70.61, 70.17)


def edit(folder, **changes):
    file = folder / "results.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_sessions(folder, change):
    sessions = json.loads((folder / "results.json").read_text())["sessions"]
    for session in sessions:
        change(session)
    edit(folder, sessions=sessions)


def texts(table):
    return [[cell_text(cell) for cell in row.cells] for row in table.rows]


def column(table, heading):
    return [row.cells[table.headings.index(heading)] for row in table.rows]


@pytest.fixture
def collection(tmp_path):
    """Two seeds of krt, two of er of which one is still at work, joint, and oewc that is not done."""
    for seed in (0, 1):
        made_run(tmp_path, f"krt-{seed}", "krt", seed)
    made_run(tmp_path, "er-0", "er", 0, buffer="20")
    made_run(tmp_path, "er-1", "er", 1, buffer="20", done=1)
    made_run(tmp_path, "joint", "joint", 0, (6,))
    made_run(tmp_path, "oewc", "oewc", 0, done=2)
    return collect([tmp_path / name for name in ("krt-0", "krt-1", "er-0", "er-1", "joint", "oewc")])


def group_named(collection, name):
    return next(group for group in collection.groups if group.name == name)


def test_the_summary_averages_finished_runs_only(collection):
    table = tables.summary(collection)
    assert column(table, "method") == ["krt", "er", "joint", "oewc (unfinished)"]
    assert [cell_text(cell) for cell in column(table, "seeds")] == ["2", "1 of 2", "1", "0 of 1"]
    assert column(table, "buffer") == [0, 20, 0, 0]
    krt, er = group_named(collection, "krt"), group_named(collection, "er")
    maps = [run.results["last_map"] for run in krt.runs]
    assert column(table, "last mAP")[0] == Spread(fmean(maps), stdev(maps), 2)
    assert column(table, "average mAP")[1] == Spread(er.finished[0].results["average_map"], None, 1)
    last = er.finished[0].sessions[-1]
    heads = {"CF1@0.8": last["f1"]["cf1@0.8"], "OF1@0.8": last["f1"]["of1@0.8"], "BWT": last["bwt"]}
    for heading, value in (heads | {"forgetting": last["forgetting"]}).items():
        assert column(table, heading)[1].mean == value


def test_figures_of_calibration_stand_in_the_summary_only_if_a_finished_run_has_thresholds(collection, tmp_path):
    plain = tables.summary(collection)
    assert plain.headings[4:] == ["average mAP", "last mAP", "CF1@0.8", "OF1@0.8", "forgetting", "BWT"]
    stored = {"cf1@stored": 61.0, "of1@stored": 62.0}
    edit_sessions(tmp_path / "oewc", lambda session: session["f1"].update(stored))  # not done
    assert tables.summary(collect([tmp_path])).headings == plain.headings
    edit_sessions(tmp_path / "krt-0", lambda session: session["f1"].update(stored))
    table = tables.summary(collect([tmp_path]))
    place = table.headings.index("OF1@0.8") + 1
    assert table.headings[place:] == ["CF1@stored", "OF1@stored", "ECE", "forgetting", "BWT"]
    assert "ECE is the expected calibration error" in table.note
    row = next(row for row in table.rows if row.cells[1] == "krt")
    assert row.cells[place : place + 2] == [Spread(61.0, None, 1), Spread(62.0, None, 1)]
    krt = group_named(collection, "krt")
    assert row.cells[place + 2].mean == fmean(run.sessions[-1]["calibration"]["ece"] for run in krt.runs)
    edit_sessions(tmp_path / "krt-0", lambda session: session["calibration"].update(ece_calibrated=3.0))
    assert column(tables.summary(collect([tmp_path])), "ECE calibrated").count(Spread(3.0, None, 1)) == 1


def test_joint_has_no_average_and_forgets_nothing_and_an_unfinished_group_has_no_figures(collection):
    table = tables.summary(collection)
    joint, unfinished = texts(table)[2:]
    assert [joint[table.headings.index(name)] for name in ("average mAP", "forgetting", "BWT")] == ["-"] * 3
    assert cell_text(column(table, "last mAP")[2]) != "-"
    assert unfinished[4:] == ["-"] * 6


def test_rows_carry_what_a_reader_may_filter_by(collection):
    assert [(row.method, row.setting) for row in tables.summary(collection).rows] == [
        (method, SETTING) for method in ("krt", "er", "joint", "oewc")
    ]


def test_groups_of_one_setting_stand_together(tmp_path):
    for name, protocol in (("a", "B0-C2"), ("b", "B2-C2"), ("c", "B0-C2")):
        made_run(tmp_path, name, "ft", epochs=ord(name), protocol=protocol)
    assert column(tables.summary(collect([tmp_path])), "setting") == [SETTING, SETTING, "digits B2-C2"]


def test_figures_that_another_version_did_not_write_are_dashes(tmp_path):
    folder = made_run(tmp_path, "a")
    edit_sessions(folder, lambda session: session.update(f1={}, bwt=None, train_seconds=None, forgetting_per_class={}))
    edit(folder, average_map=None)
    lines = ['{"session": 1, "epoch": 1, "losses": {}}', '{"map": 1}', '{"pseudo_labels": {}}']
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    write_json(folder / "environment.json", {"launches": [{}]})
    collection = collect([folder])
    row = texts(tables.summary(collection))[0]
    assert [row[4], *row[6:8], row[9]] == ["-"] * 4
    assert tables.forgetting(collection, SETTING) is None
    assert tables.pseudo_labels(collection) is None
    assert tables.cost(collection).headings == ["setting", "method"]
    assert texts(tables.environment(collection)) == [["-"] * 7 + ["1", "krt seed 0"]]
    for key in ("bwt", "f1", "train_seconds", "forgetting"):
        del collection.groups[0].runs[0].results["sessions"][-1][key]
    assert texts(tables.summary(collection))[0][6:] == ["-"] * 4


def test_without_a_preset_nothing_is_published(collection):
    assert tables.published(collection) is None


def with_preset(tmp_path, sessions=8, **changes):
    values = {"preset": PRESET, "data": "coco:/x/coco", "protocol": "B0-C10", "buffer": "20"} | changes
    names = [f"class {index}" for index in range(80)]
    counts = [*range(10, 81, 10)]
    for seed in (0, 1):
        made_run(tmp_path, f"p{seed}", "krt", seed, counts[:sessions], None, names, **values)
    return collect([tmp_path])


def test_measured_and_published_figures_stand_side_by_side_with_what_was_changed(tmp_path):
    collection = with_preset(tmp_path)
    table = tables.published(collection)
    (row,) = table.rows
    last = collection.groups[0].runs
    mean = fmean(run.results["last_map"] for run in last)
    assert row.cells[:3] == ["coco B0-C10", "krt", PRESET]
    assert column(table, "last mAP")[0].mean == mean
    assert column(table, "last mAP published") == [70.2]
    assert column(table, "last mAP difference")[0] == pytest.approx(mean - 70.2)
    assert column(table, "average mAP published") == [76.5]
    assert column(table, "CF1 published") == [63.9]
    assert column(table, "OF1 published") == [64.7]
    changed = len(collection.groups[0].changes)
    assert changed > 3
    assert row.cells[3] == f"test images, backbone, weights and {changed - 3} more"


def test_a_figure_that_no_compared_row_publishes_has_no_columns(tmp_path):
    made_run(tmp_path, "a", preset="coco-b0-c10/krt-lambda-10")  # drawn, not printed
    table = tables.published(collect([tmp_path]))
    assert table.headings == ["setting", "method", "preset", "changed"]


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
    maps = [run.sessions[1]["map"] for run in group_named(collection, "krt").runs]
    assert krt.cells[2] == Spread(fmean(maps), stdev(maps), 2)
    assert [cell.count for cell in er.cells[1:]] == [1, 1, 1]
    assert joint.cells[1:3] == [None, None]
    assert joint.cells[3].mean == group_named(collection, "joint").runs[0].results["last_map"]
    assert oewc.cells[0] == "oewc (unfinished)"
    assert [cell is None for cell in oewc.cells[1:]] == [False, False, True]


def test_published_sessions_follow_the_runs_of_their_preset(tmp_path):
    table = tables.sessions(with_preset(tmp_path), "coco B0-C10")
    measured, paper = table.rows
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
    assert column(table, "class") == list(NAMES[:6])
    assert column(table, "session") == [1, 1, 2, 2, 3, 3]  # not those of joint, which sees all in its first
    values = [run.sessions[-1]["ap"]["cat"] for run in group_named(collection, "krt").runs]
    assert column(table, "krt")[2] == Spread(fmean(values), stdev(values), 2)
    assert column(table, "krt")[1] is None  # no test image shows it
    assert column(table, "oewc (unfinished)")[4:] == [None, None]


def test_forgetting_is_of_old_classes_and_of_methods_that_can_forget(collection):
    table = tables.forgetting(collection, SETTING)
    assert table.headings == ["class", "session", "krt", "er", "oewc (unfinished)"]
    assert column(table, "class") == ["ant", "cat", "dog"]
    values = [run.sessions[-1]["forgetting_per_class"]["dog"] for run in group_named(collection, "krt").runs]
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
    ap = json.loads((longer / "results.json").read_text())["sessions"][-1]["ap"]
    assert column(table, "krt (unfinished)")[0] == Spread(ap["ant"], None, 1)


def test_pseudo_labels_are_told_by_session_over_seeds(collection):
    table = tables.pseudo_labels(collection)
    assert "recall" not in table.headings  # no run has any
    krt = [row for row in texts(table) if row[1] == "krt"]
    # per image 1.5 and 2.5, precision 80 and 82 of the two seeds
    figures = ["0.700 ± 0.000", "2.50 ± 0.00", "2.00 ± 0.71", "2.00 ± 0.00", "81.0 ± 1.4"]
    assert krt == [[SETTING, "krt", session, *figures] for session in ("2", "3")]
    assert [row[1:3] for row in texts(table)[2:]] == [["er", "2"], ["er", "3"], ["oewc (unfinished)", "2"]]


def test_the_cost_of_a_run(collection):
    table = tables.cost(collection)
    krt, _, joint, oewc = texts(table)
    rate = f"{IMAGES * EPOCHS / SECONDS:.1f}"
    assert table.headings[2:6] == ["training s", "images/s", "wall clock s", "peak memory MB"]
    assert krt[2:] == ["9 ± 0", f"{rate} ± 0.0", "12 ± 0", "503", "cpu", "1", "1"]
    assert joint[2:6] == ["3", rate, "4", "501"]
    assert oewc[1:4] == ["oewc (unfinished)", "6", rate]


def test_what_a_method_keeps_is_shown_where_it_is_known(tmp_path):
    folder = made_run(tmp_path, "a")
    results = json.loads((folder / "results.json").read_text())
    results["sessions"][-1]["bytes_kept"] = 12_340_000
    write_json(folder / "results.json", results)
    table = tables.cost(collect([folder]))
    assert [one.mean for one in column(table, "kept MB")] == [12.34]
    assert table.headings.index("device") in table.is_text


def test_wall_clock_is_unknown_if_a_session_did_not_tell_and_gpu_memory_is_shown_if_there_is_any(tmp_path):
    folder = made_run(tmp_path, "a")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del lines[-1]["session_seconds"]
    lines[-1]["gpu_memory_mb"] = 812.6
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = tables.cost(collect([folder]))
    assert "wall clock s" not in table.headings
    assert column(table, "peak GPU MB") == [813]


def test_runs_of_the_same_environment_share_a_row_and_a_continued_run_may_stand_in_two(tmp_path):
    made_run(tmp_path, "a")
    other = made_run(tmp_path, "b", seed=1)
    weights = {"file": "/x.pt", "sha256": "0123456789abcdef" * 4}
    moved = launch("krt", 1, device="cuda:0", weights=weights, git_revision="f" * 40 + "-dirty")
    write_json(other / "environment.json", {"launches": [launch("krt", 1), launch("krt", 1), moved]})
    first, second = texts(tables.environment(collect([tmp_path])))
    common = ["Linux-6.1-x86_64", "3.11.7", "2.6.0", "0.1.0"]
    assert first == [
        *common,
        "0123456789ab",
        "-",
        "cpu",
        "2",
        "krt (weights None) seed 0, krt (weights 01234567) seed 1",
    ]
    assert second == [*common, "ffffffffffff-dirty", "0123456789ab", "cuda:0", "1", "krt (weights 01234567) seed 1"]


def test_all_tables_in_reading_order_with_keys_fit_for_files(tmp_path):
    made_run(tmp_path, "a")
    made_run(tmp_path, "b", data="coco:/x/日本")
    made_run(tmp_path, "c", data="coco:/x/中国", preset=PRESET)
    collection = collect([tmp_path])
    keys = [table.key for table in tables.all_tables(collection)]
    assert keys[:5] == [
        "summary",
        "published",
        "sessions-digits-b0-c2",
        "classes-digits-b0-c2",
        "forgetting-digits-b0-c2",
    ]
    assert keys[-3:] == ["pseudo-labels", "cost", "environment"]
    assert len(set(keys)) == len(keys) == 14
    assert all(re.fullmatch(r"[a-z0-9-]+", key) for key in keys)


def test_every_row_of_every_table_fills_its_columns(collection):
    for table in tables.all_tables(collection):
        assert table.rows, table.key
        assert {len(row.cells) for row in table.rows} == {len(table.headings)}
        assert all(0 <= index < len(table.headings) for index in table.is_text)


def test_csv_of_every_table_has_rows_as_long_as_its_head_and_numbers_that_can_be_read(collection):
    for table in tables.all_tables(collection):
        head, *rows = csv.reader(io.StringIO(to_csv(table)))
        assert {len(row) for row in rows} == {len(head)}
        assert len(rows) == len(table.rows)
    head, *rows = csv.reader(io.StringIO(to_csv(tables.summary(collection))))
    assert float(rows[0][head.index("last mAP deviation")]) == pytest.approx(
        column(tables.summary(collection), "last mAP")[0].deviation, abs=1e-4
    )
