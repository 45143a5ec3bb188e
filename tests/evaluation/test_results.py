import json

import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.core.files import write_json
from mlcil.evaluation.calibration import Calibration
from mlcil.evaluation.results import evaluate, load_results, session_from_dict, summarise

HEADER = {"method": "krt", "data": "digits", "protocol": "B0-C1", "seed": 0, "backbone": "tiny"}
# After session 1 class "a" is ranked perfectly, after session 2 it is not.
FIRST = (np.array([[0.9], [0.1]]), np.array([[1], [0]], np.int8))
SECOND = (
    np.array([[0.1, 0.2, 0.3], [0.7, 0.9, 0.3], [0.6, 0.95, 0.3]]),
    np.array([[1, 0, 0], [0, 1, 0], [0, 1, 0]], np.int8),
)


def two_sessions(notes=None):
    one = evaluate(*FIRST, 1, ["a"], 0, [], 10, 1.5, notes or {})
    two = evaluate(*SECOND, 2, ["a", "b", "never"], 1, [one], 12, 2.5, {"threshold": 0.7})
    return [one, two]


def test_a_session_in_percent():
    one, two = two_sessions()
    assert (one.map, one.forgetting, one.bwt, one.forgetting_per_class) == (100, 0, 0, {})
    assert (two.new_classes, two.classes) == (["b", "never"], ["a", "b", "never"])
    assert (two.images, two.test_images) == (12, 3)
    assert two.ap == {"a": pytest.approx(100 / 3), "b": 100, "never": None}
    assert two.classes_without_positives == ["never"]
    assert two.map == pytest.approx((100 / 3 + 100) / 2)
    assert two.forgetting == two.bwt == two.forgetting_per_class["a"] == pytest.approx(-200 / 3)
    assert list(two.forgetting_per_class) == ["a"]
    assert two.f1["cf1@0.8"] == pytest.approx(50)
    assert two.f1["of1@0.5"] == pytest.approx(400 / 7)
    names = {f"{name}@{t}" for name in ("cf1", "cf1_of_means", "of1") for t in (0.5, 0.8)}
    assert set(two.f1) == names


def test_the_calibration_error_stands_in_every_session():
    one, two = two_sessions()
    assert one.calibration == {"ece": pytest.approx(10)}
    assert two.calibration.keys() == {"ece"}
    assert one.bytes_kept is None


def test_stored_thresholds_and_temperatures_stand_beside_the_fixed_ones():
    calibration = Calibration(np.array([0.05, 0.8, 0.5]), np.array([2.0, 4.0, 4.0]), np.array([0.0, 1.0, 1.0]))
    found = evaluate(
        *SECOND, 1, ["a", "b", "never"], 0, [], 12, 2.5, {}, calibration.thresholds, calibration, bytes_kept=7
    )
    assert found.calibration["thresholds"] == {"a": 0.05, "b": 0.8, "never": 0.5}
    assert (found.calibration["temperature"], found.calibration["shift"]) == (4, 1)
    plain = evaluate(*SECOND, 1, ["a", "b", "never"], 0, [], 12, 2.5, {})
    assert found.calibration["ece"] == plain.calibration["ece"] != found.calibration["ece_calibrated"]
    # "a": all three claimed, one rightly, F1 1/2; "b": both found.
    assert found.f1["cf1@stored"] == pytest.approx(75)
    assert found.f1["of1@stored"] == pytest.approx(100 * 2 * 3 / (5 + 3))
    assert {key: value for key, value in found.f1.items() if "stored" not in key} == plain.f1
    assert found.f1["cf1_of_means@stored"] > 0
    assert found.bytes_kept == 7
    assert json.loads(json.dumps(summarise(HEADER, [found], True)))["sessions"][0]["calibration"] == found.calibration


def test_a_methods_own_thresholds_need_no_calibration():
    found = evaluate(*FIRST, 1, ["a"], 0, [], 10, 1.5, {}, np.array([0.95]))
    assert found.calibration == {"ece": pytest.approx(10), "thresholds": {"a": 0.95}}
    assert found.f1["of1@stored"] == 0


def test_scores_that_are_no_probabilities_have_no_calibration_error():
    scores, labels = FIRST
    assert evaluate(3 * scores, labels, 1, ["a"], 0, [], 10, 1.5, {}).calibration == {"ece": None}
    rounded = np.array([[1 + 1e-7], [-1e-7]])
    assert evaluate(rounded, labels, 1, ["a"], 0, [], 10, 1.5, {}).calibration["ece"] == pytest.approx(0, abs=1e-4)


def test_older_results_are_read(tmp_path):
    record = summarise(HEADER, two_sessions(), True)
    for session in record["sessions"]:
        del session["calibration"], session["bytes_kept"]
    write_json(tmp_path / "results.json", record)
    found = session_from_dict(load_results(tmp_path)["sessions"][1])
    assert (found.calibration, found.bytes_kept) == ({}, None)
    assert found.map == two_sessions()[1].map


def test_the_summary():
    summary = summarise(HEADER, two_sessions(), True)
    assert summary["method"] == "krt"
    assert summary["finished"] is True
    assert summary["last_map"] == pytest.approx(200 / 3)
    assert summary["average_map"] == pytest.approx((100 + 200 / 3) / 2)
    assert summary["ap_matrix"]["classes"] == ["a", "b", "never"]
    assert summary["ap_matrix"]["sessions"] == [1, 2]
    assert summary["ap_matrix"]["ap"] == [[100, pytest.approx(100 / 3)], [None, 100], [None, None]]


def test_a_joint_run_has_one_session():
    joint = evaluate(*SECOND, 1, ["a", "b", "never"], 0, [], 12, 2.5, {})
    summary = summarise(HEADER, [joint], True)
    assert joint.new_classes == joint.classes
    assert joint.forgetting == 0
    assert summary["average_map"] == summary["last_map"] == joint.map


def test_resuming_from_the_file_changes_no_bit(tmp_path):
    one, two = two_sessions({"losses": [0.1, 1 / 3]})
    write_json(tmp_path / "results.json", summarise(HEADER, [one], False))
    restored = session_from_dict(load_results(tmp_path)["sessions"][0])
    assert restored == one
    again = evaluate(*SECOND, 2, ["a", "b", "never"], 1, [restored], 12, 2.5, {"threshold": 0.7})
    assert summarise(HEADER, [restored, again], True) == summarise(HEADER, [one, two], True)


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
    text = json.dumps(summarise({**HEADER, "lr": np.float32(0.5)}, two_sessions(notes), False), allow_nan=False)
    found = json.loads(text)["sessions"][0]["notes"]
    assert found["loss"] is None
    assert found["per_epoch"] == [1.0, None]
    assert (found["count"], found["pair"], found["kept"]) == (3, [1, 2], ["a", "b"])
    assert (found["where"], found["7"]) == (str(tmp_path), None)


def test_a_run_before_its_first_session():
    summary = summarise(HEADER, [], False)
    assert summary["average_map"] is summary["last_map"] is None
    assert summary["ap_matrix"] == {"classes": [], "sessions": [], "ap": []}


def test_nothing_to_measure_is_the_users_mistake():
    with pytest.raises(UserError, match="no test image shows any of the 1 seen classes"):
        evaluate(np.zeros((2, 1)), np.zeros((2, 1), np.int8), 1, ["a"], 0, [], 1, 1.0, {})


def test_names_must_match_the_columns():
    with pytest.raises(ValueError, match="for 2 classes"):
        evaluate(*FIRST, 1, ["a", "b"], 0, [], 1, 1.0, {})


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"sessions": [1]}', '{"sessions": [{"session": 1}]}', "\xff"])
def test_a_broken_file_is_the_users_mistake(tmp_path, text):
    path = tmp_path / "results.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"results\.json"):
        load_results(path)


def test_a_missing_file_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_results(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_results(tmp_path / "none.json")
