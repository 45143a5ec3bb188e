import json
from dataclasses import asdict

import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.evaluation.calibration import Calibration
from mlcil.evaluation.results import RunResult, ap_matrix, evaluate, load_results, session_from_dict, write_results
from mlcil.evaluation.scores import ScoredImages

# After session 1 class "a" is ranked perfectly, after session 2 it is not.
FIRST = ([[0.9], [0.1]], [[1], [0]], "a")
SECOND = ([[0.1, 0.2, 0.3], [0.7, 0.9, 0.3], [0.6, 0.95, 0.3]], [[1, 0, 0], [0, 1, 0], [0, 1, 0]], "abn")
FACTS = {"images": 12, "train_seconds": 2.5, "bytes_kept": 7, "notes": {"threshold": 0.7}}


def scored(scores, labels, names):
    return ScoredImages(np.array(scores), np.array(labels, np.int8), np.arange(len(scores)), tuple(names))


def two_sessions(notes=None):
    one = evaluate(scored(*FIRST), [], **FACTS | {"notes": notes or {}})
    return [one, evaluate(scored(*SECOND), [one], **FACTS)]


def a_run(sessions, finished=True):
    return RunResult(
        method="krt",
        data="digits",
        protocol="B0-C1",
        order=None,
        backbone="tiny",
        weights=None,
        image_size=16,
        buffer="0",
        seed=0,
        epochs=2,
        preset=None,
        negatives="none",
        data_digest="d",
        bad_images=[],
        finished=finished,
        sessions=sessions,
    )


def test_a_session_in_percent():
    one, two = two_sessions()
    assert (one.session, one.map, one.metrics["forgetting"], one.metrics["BWT"]) == (1, 100, 0, 0)
    assert (two.session, two.new_classes, two.classes) == (2, ["b", "n"], ["a", "b", "n"])
    assert (two.images, two.test_images, two.train_seconds, two.bytes_kept) == (12, 3, 2.5, 7)
    assert two.ap == {"a": pytest.approx(100 / 3), "b": 100, "n": None}
    assert two.map == two.metrics["mAP"] == pytest.approx((100 / 3 + 100) / 2)
    assert two.metrics["forgetting"] == two.metrics["BWT"] == pytest.approx(-200 / 3)
    assert two.metrics["CF1@0.8"] == pytest.approx(50)
    assert two.metrics["OF1@0.5"] == pytest.approx(400 / 7)
    f1 = [f"{name}@{threshold}" for threshold in (0.5, 0.8) for name in ("CF1", "CF1 of means", "OF1")]
    assert list(two.metrics) == ["mAP", *f1, "ECE", "forgetting", "BWT"]
    assert one.metrics["ECE"] == pytest.approx(10)
    assert (two.thresholds, two.temperature, two.shift) == ({}, None, None)


def test_stored_thresholds_and_calibration_stand_beside_the_fixed_thresholds():
    calibration = Calibration(np.array([0.05, 0.8, 0.5]), np.array([2.0, 4.0, 4.0]), np.array([0.0, 1.0, 1.0]))
    found = evaluate(scored(*SECOND), [], **FACTS, thresholds=calibration.thresholds, calibration=calibration)
    plain = evaluate(scored(*SECOND), [], **FACTS)
    assert found.thresholds == {"a": 0.05, "b": 0.8, "n": 0.5}
    assert (found.temperature, found.shift) == (4, 1)
    assert found.metrics["ECE"] != found.metrics["ECE calibrated"]
    # "a": all three claimed, one rightly, F1 1/2; "b": both found.
    assert found.metrics["CF1@stored"] == pytest.approx(75)
    assert found.metrics["OF1@stored"] == pytest.approx(100 * 2 * 3 / (5 + 3))
    assert found.metrics["CF1 of means@stored"] > 0
    assert plain.metrics.items() <= found.metrics.items()


def test_a_class_that_every_test_image_shows_has_no_ap():
    """Any order of the images would give 100."""
    found = evaluate(scored([[0.9, 0.2], [0.1, 0.7]], [[1, 1], [1, 0]], "ab"), [], **FACTS)
    assert found.ap == {"a": None, "b": 50}
    assert found.map == 50
    alone = evaluate(scored([[0.9], [0.1]], [[1], [1]], "a"), [], **FACTS)
    assert (alone.map, alone.ap) == (None, {"a": None})
    assert (a_run([alone]).last_map, a_run([alone, found]).average_map) == (None, 50)


def test_thresholds_of_a_method_need_no_calibration():
    found = evaluate(scored(*FIRST), [], **FACTS, thresholds=np.array([0.95]))
    assert found.thresholds == {"a": 0.95}
    assert found.metrics["OF1@stored"] == 0
    assert "ECE calibrated" not in found.metrics


def test_scores_that_are_no_probabilities_have_no_calibration_error():
    _, labels, names = FIRST
    assert evaluate(scored([[2.7], [0.3]], labels, names), [], **FACTS).metrics["ECE"] is None
    rounded = evaluate(scored([[1 + 1e-7], [-1e-7]], labels, names), [], **FACTS)
    assert rounded.metrics["ECE"] == pytest.approx(0, abs=1e-4)


def test_a_run_has_averages_and_the_history_of_each_class():
    run = a_run(two_sessions())
    assert run.last_map == pytest.approx(200 / 3)
    assert run.average_map == pytest.approx((100 + 200 / 3) / 2)
    assert run.classes == ["a", "b", "n"]
    nan = float("nan")
    np.testing.assert_allclose(
        ap_matrix(run.classes, [one.ap for one in run.sessions]), [[100, 100 / 3], [nan, 100], [nan, nan]]
    )
    assert run.forgetting_per_class() == {"a": run.sessions[1].metrics["forgetting"]}
    before = a_run([], finished=False)
    assert (before.average_map, before.last_map, before.classes) == (None, None, [])


def test_a_result_comes_back_from_its_file_and_resuming_changes_no_bit(tmp_path):
    one, two = two_sessions({"losses": [0.1, 1 / 3]})
    run = a_run([one, two])
    write_results(tmp_path / "results.json", run)
    restored = load_results(tmp_path)
    assert restored == run
    assert evaluate(scored(*SECOND), restored.sessions[:1], **FACTS) == two
    assert session_from_dict(json.loads(json.dumps(asdict(two)))) == two
    record = json.loads((tmp_path / "results.json").read_text())
    assert (record["average_map"], record["last_map"]) == (run.average_map, run.last_map)


def test_another_digit_in_a_result_is_noticed(tmp_path):
    file = tmp_path / "results.json"
    write_results(file, a_run(two_sessions({"ridge": 0.25})))
    sound = file.read_text()
    for one, other in (
        ('"ridge": 0.25', '"ridge": 0.35'),
        (": 2.5", ": 3.5"),
        ('"test_images": 2', '"test_images": 6'),
    ):
        assert one in sound
        file.write_text(sound.replace(one, other))
        with pytest.raises(UserError, match="results.json is damaged: .*; repeat the command of the run") as error:
            load_results(file)
        assert "\n" not in str(error.value)


def test_whatever_a_method_notes_is_json(tmp_path):
    notes = {
        "loss": float("nan"),
        "per_epoch": np.array([1.0, np.inf]),
        "count": np.int64(3),
        "pair": (1, 2),
        "kept": {"b", "a"},
        "where": tmp_path,
        7: None,
    }
    write_results(tmp_path / "results.json", a_run(two_sessions(notes)))
    found = load_results(tmp_path).sessions[0].notes
    assert found["loss"] is None
    assert found["per_epoch"] == [1.0, None]
    assert (found["count"], found["pair"], found["kept"]) == (3, [1, 2], ["a", "b"])
    assert (found["where"], found["7"]) == (str(tmp_path), None)


def test_nothing_to_measure_is_the_users_mistake():
    with pytest.raises(UserError, match="no test image shows any of the 1 seen classes"):
        evaluate(scored([[0.0]], [[0]], "a"), [], **FACTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("\xff", "not valid JSON"),
        ("[]", "not the result of a run"),
        ("{}", "not the result of a run of this version: 'method'"),
        (json.dumps(asdict(a_run([])) | {"sessions": [1]}), "not the result of a run"),
        (json.dumps(asdict(a_run([])) | {"sessions": [{"session": 1}]}), "a session has other fields .*'classes'"),
    ],
)
def test_a_broken_file_is_the_users_mistake(tmp_path, text, message):
    path = tmp_path / "results.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=rf"results\.json.*{message}"):
        load_results(path)


def test_a_missing_file_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("classes", [1]), ("classes", 3), ("metrics", {}), ("metrics", {"mAP": "high"}), ("ap", []), ("images", 10**30)],
)
def test_a_session_with_a_value_of_another_kind_is_named(key, value):
    names = ["a"]
    record = {"session": 1, "classes": names, "new_classes": names, "images": 1, "test_images": 1, "ap": {"a": 1.0}}
    record |= {"metrics": {"mAP": 1.0}, "thresholds": {}, "temperature": None, "shift": None, "train_seconds": 1}
    record |= {"bytes_kept": 1, "notes": {}}
    session_from_dict(record)
    with pytest.raises(TypeError, match=key):
        session_from_dict(record | {key: value})
