import json

import numpy as np
import pytest
import yaml
from rich.console import Console

from mlcil.core.errors import UserError
from mlcil.evaluation.paired import ClassDifference, Difference, Interval
from mlcil.evaluation.results import HEADER, RunResult, evaluate, load_results, write_results
from mlcil.evaluation.scores import ScoredImages, save_scores, scores_file
from mlcil.reports.comparison import RunComparison, compare_runs, comparison_view, verdict
from mlcil.training.config import make_config
from mlcil.training.data_record import DataRecord, Row, data_file

NAMES = ["ant", "bee", "cat", "dog"]
LABELS = (np.random.default_rng(0).random((90, 4)) < 0.3).astype(np.int8)


def make_run(folder, method="ft", signal=0.5, counts=(2, 4), seed=0, order=(0, 1, 2, 3), images=None, **options):
    """A run folder with its configuration, its data, its results and the scores after each session.

    Arguments:
        images: the order in which the run has the test images.
    """
    images = np.arange(len(LABELS)) if images is None else images
    place = np.argsort(images)  # of each image
    record = DataRecord((), tuple(Row(f"{image:02d}", 0, "", 1, f"{image}.jpg") for image in images))
    folder.mkdir(parents=True, exist_ok=True)
    data_file(folder).write_text(record.to_text())
    noise = np.random.default_rng([seed, int(10 * signal)]).normal(size=LABELS.shape)
    sessions = []
    for number, count in enumerate(counts, start=1):
        columns = list(order[:count])
        rows = np.flatnonzero(LABELS[:, columns].any(axis=1))
        labels = LABELS[rows][:, columns]
        scores = (signal * LABELS + noise).astype(np.float32)[rows][:, columns]
        names = tuple(NAMES[column] for column in columns)
        scored = ScoredImages(scores, labels, place[rows], names)
        sessions.append(evaluate(scored, sessions, images=40, train_seconds=3.0, bytes_kept=0, notes={}))
        save_scores(scores_file(folder, number), scored)
    values = make_config({"method": method, "seed": seed, "options": options}).to_dict()
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    header = {name: values[name] for name in HEADER}
    write_results(
        folder / "results.json",
        RunResult(**header, negatives="none", data_digest="", bad_images=[], finished=True, sessions=sessions),
    )
    return folder


def compared(first, second, session=None):
    return compare_runs([first], [second], session, resamples=100)


def printed(comparison):
    console = Console(width=400, color_system=None)
    with console.capture() as capture:
        console.print(comparison_view(comparison))
    return capture.get()


def an_outcome(difference, low, high, pairs=1, **changes):
    classes = [
        ClassDifference("ant", 50.0, 48.0, -2.0, Interval(-6.0, 1.0)),
        ClassDifference("[bee]", 40.0, 52.0, 12.0, Interval(4.0, 19.0)),
    ]
    found = Difference(classes, 45.0, 45.0 + difference, difference, Interval(low, high), 0.95, 1000, pairs, 2000, [])
    return RunComparison("ft", "krt", [], [(8, 8)] * pairs, [], found._replace(**changes))


def test_two_runs_are_compared_after_their_last_session(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt", 3.0)
    comparison = compared(first, second)
    assert (comparison.first, comparison.second, comparison.notes) == ("ft", "krt", [])
    assert comparison.sessions == [(2, 2)]
    assert [one.name for one in comparison.difference.classes] == NAMES
    maps = [load_results(run).last_map for run in (first, second)]
    assert comparison.difference.first == pytest.approx(maps[0], abs=1e-9)
    assert comparison.difference.second == pytest.approx(maps[1], abs=1e-9)
    assert comparison.difference.is_more_than_noise


def test_the_last_session_that_both_have_finished_counts(tmp_path):
    comparison = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt", counts=(2,)))
    assert comparison.sessions == [(1, 1)]
    assert len(comparison.difference.classes) == 2


def test_a_session_can_be_asked_for(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt")
    assert compared(first, second, session=1).sessions == [(1, 1)]
    with pytest.raises(UserError, match="session: got 3, but .*a has finished 2 sessions$"):
        compared(first, second, session=3)


def test_joint_is_compared_with_the_end_of_the_others(tmp_path):
    comparison = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b", "joint", 3.0, counts=(4,)))
    assert comparison.sessions == [(2, 1)]
    assert "joint against ft, 4 classes after sessions 2 and 1" in printed(comparison)


def test_another_order_of_the_classes_is_no_obstacle_at_the_end(tmp_path):
    comparison = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt", 3.0, order=(3, 1, 2, 0)))
    assert comparison.sessions == [(2, 2)]
    assert comparison.difference.difference > 0


def test_other_classes_after_the_session_asked_for_are_refused(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt", order=(3, 1, 2, 0))
    with pytest.raises(UserError, match="^cannot compare ft with krt: the classes differ .* ant, only the other dog$"):
        compared(first, second, session=1)


def test_runs_without_common_classes_are_refused(tmp_path):
    first, second = make_run(tmp_path / "a", counts=(2,)), make_run(tmp_path / "b", counts=(3,))
    with pytest.raises(UserError, match="no session after which all of these runs know the same classes: .*a, .*b$"):
        compared(first, second)


def test_folders_of_runs_are_paired_by_seed(tmp_path):
    for seed in (0, 1, 2, 10):
        make_run(tmp_path / "ft" / f"run-{seed}", seed=seed)
    for seed in (10, 2, 1, 5):
        make_run(tmp_path / "krt" / f"other-{seed}", "krt", 3.0, seed=seed)
    (tmp_path / "krt" / "notes").mkdir()
    comparison = compared(tmp_path / "ft", tmp_path / "krt")
    assert [(one.path.name, other.path.name) for one, other in comparison.runs] == [
        ("run-1", "other-1"),
        ("run-10", "other-10"),
        ("run-2", "other-2"),
    ]
    assert comparison.difference.pairs == 3
    assert comparison.notes == [
        f"of {tmp_path / 'ft'}, seed 0 left out, because the other side lacks it",
        f"of {tmp_path / 'krt'}, seed 5 left out, because the other side lacks it",
    ]
    text = printed(comparison)
    assert "and 3 seeds): more than noise." in text
    assert "the choice of test images and of seeds; with so few seeds it is likely too narrow." in text
    assert all(f"Note: {note}." in text for note in comparison.notes)


def test_a_folder_of_runs_and_its_runs_named_one_by_one_are_the_same(tmp_path):
    folders = [make_run(tmp_path / "ft" / str(seed), seed=seed) for seed in (0, 1)]
    others = [make_run(tmp_path / "krt" / str(seed), "krt", 2.0, seed=seed) for seed in (0, 1)]
    assert compare_runs(folders, others[::-1], None, 100) == compared(tmp_path / "ft", tmp_path / "krt")


def test_two_single_runs_may_have_different_seeds(tmp_path):
    comparison = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=4))
    assert comparison.notes == ["the runs have different seeds, 0 and 4"]
    assert (comparison.first, comparison.second) == ("ft (seed 0)", "ft (seed 4)")


def test_runs_of_one_method_are_named_by_what_differs(tmp_path):
    first, second = (make_run(tmp_path / name, "krt", token_weight=float(name)) for name in "34")
    comparison = compared(first, second)
    assert (comparison.first, comparison.second) == ("krt (token_weight 3.0)", "krt (token_weight 4.0)")


def test_runs_that_nothing_tells_apart_are_named_by_their_folders(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    comparison = compared(first, second)
    assert (comparison.first, comparison.second) == (str(first), str(second))


def test_sides_that_are_not_one_method_over_seeds_are_refused(tmp_path):
    single = make_run(tmp_path / "single", seed=7)
    for seed in (0, 1):
        make_run(tmp_path / "mixed" / str(seed), ("ft", "krt")[seed], seed=seed)
        make_run(tmp_path / "good" / str(seed), seed=seed)
    with pytest.raises(UserError, match="mixed: expected runs that differ only in the seed, got ft, krt$"):
        compared(single, tmp_path / "mixed")
    with pytest.raises(UserError, match="no seed in common: 7 and 0, 1"):
        compared(single, tmp_path / "good")


def test_folders_that_hold_no_run_are_named(tmp_path):
    run = make_run(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no run"):
        compared(run, tmp_path / "empty")
    with pytest.raises(UserError, match="nowhere does not exist"):
        compared(tmp_path / "nowhere", run)


def test_a_run_that_is_left_out_is_noted(tmp_path):
    for name in ("one", "two"):
        make_run(tmp_path / "twice" / name, seed=3)
    comparison = compared(tmp_path / "twice", make_run(tmp_path / "other", "krt", seed=3))
    assert len(comparison.runs) == 1
    assert "two repeats" in comparison.notes[0]


def test_a_run_without_scores_is_named(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt")
    scores_file(second, 2).unlink()
    with pytest.raises(
        UserError, match=r"b/session-02/scores\.safetensors does not exist; repeat the command of the run"
    ):
        compared(first, second)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((7.31, 5.9, 8.8), "7.3 points above ft (95 % interval 5.9 to 8.8 over 2,000 test images): more than noise."),
        (
            (-7.31, -8.8, -5.9),
            "7.3 points below ft (95 % interval 5.9 to 8.8 over 2,000 test images): more than noise.",
        ),
        (
            (-0.4, -1.3, 0.5),
            "0.4 points below ft (95 % interval -0.5 to 1.3 over 2,000 test images): "
            "the interval includes 0, no more than noise.",
        ),
        (
            (0.2, 0.03, 0.4),
            "0.20 points above ft (95 % interval 0.03 to 0.40 over 2,000 test images): more than noise.",
        ),
        (
            (0.0, 0.0, 0.0),
            "0.0 points above ft (95 % interval 0.0 to 0.0 over 2,000 test images): "
            "the interval includes 0, no more than noise.",
        ),
    ],
)
def test_the_verdict_is_a_plain_sentence(numbers, sentence):
    comparison = an_outcome(*numbers)
    assert verdict(comparison) == f"krt is {sentence}"
    assert verdict(comparison) in printed(comparison)


def test_the_table_is_sorted_by_difference_and_marks_what_excludes_zero():
    lines = [line.split() for line in printed(an_outcome(5.0, 1.0, 9.0)).splitlines()]
    rows = {line[0]: line[1:] for line in lines if line and line[0] in ("ant", "[bee]", "mAP")}
    assert list(rows) == ["[bee]", "ant", "mAP"]
    assert rows["[bee]"] == ["40.0", "52.0", "12.0", "4.0", "19.0", "*"]
    assert rows["ant"] == ["50.0", "48.0", "-2.0", "-6.0", "1.0"]
    assert rows["mAP"] == ["45.0", "50.0", "5.0", "1.0", "9.0", "*"]


def test_the_remarks_say_what_chance_alone_would_do_and_what_the_interval_covers():
    text = printed(an_outcome(5.0, 1.0, 9.0, without_positives=["yak"]))
    assert "1 of 2 classes marked * (the interval excludes 0); about 0.1 would be marked by chance" in text
    assert "One seed: the interval covers the choice of test images, not the luck of the seed." in text
    assert "Left out, as no test image or every one shows it: yak." in text
    many = printed(an_outcome(5.0, 1.0, 9.0, pairs=5))
    assert "the choice of test images and of seeds." in many
    assert "One seed" not in many


def test_the_comparison_as_json_holds_what_is_shown(tmp_path):
    comparison = compared(make_run(tmp_path / "a"), make_run(tmp_path / "b", "krt", 3.0))
    record = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    found = comparison.difference
    assert (record["first"], record["second"]) == ("ft", "krt")
    assert record["runs"][0]["second"] == {"folder": str(tmp_path / "b"), "seed": 0, "session": 2}
    assert record["mAP"]["difference"] == found.difference
    assert record["mAP"]["interval"] == list(found.interval)
    assert record["mAP"]["is_more_than_noise"] is True
    assert [entry["name"] for entry in record["classes"]] == NAMES
    assert record["classes"][0]["interval"] == list(found.classes[0].interval)
    assert (record["resamples"], record["level"], record["test_images"]) == (100, 0.95, found.images)


def test_images_are_paired_by_content_in_whatever_order_a_run_has_them(tmp_path):
    first = make_run(tmp_path / "first", signal=0.5)
    second = make_run(tmp_path / "second", "lwf", signal=1.5)
    turned = make_run(tmp_path / "turned", "lwf", signal=1.5, images=np.arange(len(LABELS))[::-1])
    assert compared(first, turned).difference == compared(first, second).difference
