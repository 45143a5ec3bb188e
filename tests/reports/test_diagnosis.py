"""`mlcil diagnose` from end to end: what it measures on a trained run, what it says without data, what it refuses."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

import mlcil
from mlcil.core.errors import UserError
from mlcil.data.sources import load
from mlcil.evaluation.results import load_results
from mlcil.evaluation.scores import load_scores, scores_file
from mlcil.reports.diagnosis import diagnose_run
from mlcil.reports.diagnosis_tables import conclusion, diagnosis_view, write_diagnosis
from mlcil.training.config import make_config
from mlcil.training.prepare import prepare_method
from mlcil.training.run import run

from ..literal_ridge import mean_ap, ridge_scores
from ..tiny import settings
from .test_comparison import make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, values in {"krt": settings("krt"), "joint": settings("joint"), "ft": settings("ft")}.items():
        run(make_config(values | {"cache": None}), folder / name)
    return folder


@pytest.fixture(scope="module")
def found(runs):
    return diagnose_run(runs / "krt", runs / "joint")


def printed(diagnosis):
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(diagnosis_view(diagnosis))
    return capture.get()


def literal_map(folder, method):
    """The mAP of a ridge regression on the pooled features of a model, with all true labels and without the feed."""
    scored, data = load_scores(scores_file(folder, 3)), load(settings("krt")["data"])
    truth = data.train.with_classes(scored.classes).labels
    backbone = method.tagger.eval().backbone
    mean, std = (torch.tensor(one)[:, None, None] for one in (backbone.mean, backbone.std))

    def features(pixels):
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad():
            return method.pooled((images - mean) / std).numpy()

    rows = np.flatnonzero(truth.any(axis=1))
    scores = ridge_scores(features(data.train.pixels[rows]), truth[rows], features(data.test.pixels[scored.rows]))
    return mean_ap(scores, scored.labels)


def test_all_labels_on_the_last_features_are_a_literal_ridge_regression(runs, found):
    assert found.heads.last.all_labels == pytest.approx(literal_map(runs / "krt", mlcil.load(runs / "krt").method))
    assert found.heads.last.restored is not None  # the run made pseudo labels


def test_the_first_features_are_those_that_training_began_with(runs, found):
    method, _ = prepare_method(mlcil.load(runs / "krt").config, 10)
    method.tagger.grow(7)
    assert found.heads.first.all_labels == pytest.approx(literal_map(runs / "krt", method))
    assert found.heads.first.all_labels != pytest.approx(found.heads.last.all_labels)


def test_a_diagnosis_changes_nothing_and_repeats_itself(runs, found):
    files = sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*"))
    before = torch.get_rng_state()
    assert diagnose_run(runs / "krt", runs / "joint").as_dict() == found.as_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert files == sorted((path, path.stat().st_mtime_ns) for path in runs.rglob("*"))


def test_the_stages_lead_from_the_joint_run_to_the_run(runs, found):
    keys = ["joint", "joint_features", "all_labels", "united", "separate", "own_session", "run"]
    assert [one.key for one in found.stages] == keys
    assert found.stages[0].map == pytest.approx(load_results(runs / "joint").last_map)
    assert found.stages[-1].map == load_results(runs / "krt").last_map
    assert found.stages[1].map == diagnose_run(runs / "joint").stages[0].map
    assert sum(one.change or 0.0 for one in found.stages) == pytest.approx(found.stages[-1].map - found.stages[0].map)
    assert [one.key for one in diagnose_run(runs / "krt").stages] == keys[2:]


def test_joint_training_is_its_own_goal(runs):
    found = diagnose_run(runs / "joint", runs / "joint")
    assert found.drift == []
    assert found.new_classes == found.joint_new_classes
    heads = found.heads.last
    assert heads.all_labels == heads.united == heads.separate == heads.own_session
    assert heads.restored is None


def test_everything_is_printed_and_written(runs, found, tmp_path):
    text = printed(found)
    for title in ("Drift of old classes", "New classes", "Pseudo labels", "What the features could give", "points go"):
        assert title in text
    total = found.drift[-1]
    assert total.by_training + total.by_images == pytest.approx(
        load_results(runs / "krt").sessions[-1].metrics["BWT"], abs=1e-9
    )
    written = write_diagnosis(found, tmp_path / "new" / "folder")
    values = json.loads(written.read_text())
    assert values == json.loads(json.dumps(found.as_dict()))
    assert values["closed_form"]["last_trunk"]["all_labels"] == found.heads.last.all_labels
    assert [one["session"] for one in values["pseudo_labels"]] == [2, 3]
    page = written.with_name("diagnosis.md").read_text()
    assert page.count("\n## ") + page.startswith("## ") == 5
    assert conclusion(found) in page


def test_the_quick_way_asks_for_no_model(runs, found):
    quick = mlcil.diagnose(runs / "krt", runs / "joint", quick=True)
    assert (quick.heads, quick.stages, quick.notes) == (None, [], [])
    assert (quick.drift, quick.new_classes) == (found.drift, found.new_classes)
    assert "points go" not in printed(quick)


def test_a_run_that_is_not_finished_is_told_as_far_as_it_got(runs, tmp_path):
    shutil.copytree(runs / "ft", tmp_path / "ft")
    shutil.rmtree(tmp_path / "ft" / "session-03")
    results = json.loads((tmp_path / "ft" / "results.json").read_text())
    del results["checksum"]
    (tmp_path / "ft" / "results.json").write_text(
        json.dumps(results | {"finished": False, "sessions": results["sessions"][:2]})
    )
    found = diagnose_run(tmp_path / "ft", runs / "joint")
    assert [one.session for one in found.drift] == [2, 0]
    assert [one.session for one in found.joint_new_classes] == [1, 2]
    # The features of the joint run know classes that this one does not, so there is no stage of them.
    assert [one.key for one in found.stages][:2] == ["joint", "all_labels"]
    assert "the joint run knows further classes" in printed(found)


def test_without_its_data_a_run_is_told_from_its_folder(runs, tmp_path):
    shutil.copytree(runs / "krt", tmp_path / "krt")
    file = tmp_path / "krt" / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"data": "table:gone.csv"}))
    found = diagnose_run(tmp_path / "krt", runs / "joint")
    assert found.heads is None
    assert len(found.drift) == 3
    (note,) = found.notes
    assert note.startswith("nothing is said about features and labels")
    assert "gone.csv" in note
    assert f"Note: {note}." in printed(found)


def test_a_trunk_that_was_never_trained_is_measured_once(tmp_path):
    values = settings("analytic", options={"expansion": 0, "window": 0.0}, augment="none", cache=None)
    run(make_config(values), tmp_path)
    found = diagnose_run(tmp_path)
    assert found.heads.first is None
    assert "did not train its trunk" in printed(found)
    assert "before the first" not in printed(found)


def test_what_is_no_run_or_does_not_fit_is_refused(tmp_path):
    first = make_run(tmp_path / "a")
    joint = make_run(tmp_path / "joint", "joint", 3.0, counts=(4,))
    assert diagnose_run(first, joint, quick=True).joint_new_classes
    with pytest.raises(UserError, match="nowhere does not exist$"):
        diagnose_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no run$"):
        diagnose_run(tmp_path / "empty")
    with pytest.raises(UserError, match="expected the folder of one run, got .*a, .*joint$"):
        diagnose_run(tmp_path)
    with pytest.raises(
        UserError, match="^joint: .*a learned its classes in 2 sessions, expected a run of one session$"
    ):
        diagnose_run(first, first)
    with pytest.raises(UserError, match="^joint: .* cannot be set beside .*: it does not know the classes cat, dog$"):
        diagnose_run(first, make_run(tmp_path / "few", "joint", counts=(2,)))
    fewer = make_run(tmp_path / "other", "joint", counts=(4,), images=np.arange(90) + 5)
    with pytest.raises(UserError, match="test images are not among its own$|labels of .* test images differ$"):
        diagnose_run(first, fewer)
