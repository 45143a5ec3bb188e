"""The analytic learner: sessions give what all images at once give, and scores come with their meaning."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mlcil.core.errors import UserError
from mlcil.data.images import UNKNOWN
from mlcil.data.poison import with_negatives
from mlcil.evaluation.metrics import average_precision, f1_scores
from mlcil.models.ledger import Ledger
from mlcil.models.merging import merged
from mlcil.models.ridge import choose_ridge
from mlcil.testing import TINY
from mlcil.training.config import make_config
from mlcil.training.prepare import prepare_data, read_data
from mlcil.training.run import run
from mlcil.training.states import load_session

from ..models.images import least_squares

SMALL = {"expansion": 8, "window": 0.5}
REMEMBERING = {"remember": "fingerprints", "ridge": 2.0}


def learn(method, world, sessions, folds=0):
    method.folds = folds
    for session in sessions:
        method.before_session(session, world.infer)
        if method.trains(session):
            world.train(session, 2)
        method.after_session(session, world.infer)
    return method


def learned(world, text="B0-C2", **options):
    return learn(world.make("analytic", **(SMALL | options)), world, world.sessions(text))


def expanded(method, world, rows):
    with torch.no_grad():
        return method.tagger.expand(method.tagger.describe(world.images[rows])).double().numpy()


def literal(method, world, rows, labels, ridge=2.0):
    """Ridge regression on images at once, as float64 tensor (d, K)."""
    return torch.from_numpy(least_squares(expanded(method, world, rows)[:, :-1], labels.astype(float), ridge))


def test_sessions_give_the_solution_of_all_their_images_at_once(world):
    method = learned(world, ridge=2.0)
    rows, labels = [], []
    for session in world.sessions():
        rows += session.indices.tolist()
        labels.append(np.pad(session.labels == 1, ((0, 0), (0, 6 - session.stop))))
    assert len(rows) > len(set(rows))  # some images come back, and count again
    found = method.solution.weights
    torch.testing.assert_close(found, literal(method, world, rows, np.concatenate(labels)), rtol=0, atol=1e-6)
    assert method.ledger.classes == tuple("abcdef")
    torch.testing.assert_close(method.tagger.weights.double(), found, rtol=1e-5, atol=1e-6)


def test_with_fingerprints_sessions_give_the_solution_of_all_labels_at_once(world):
    method = learned(world, **REMEMBERING)
    rows = sorted({row for session in world.sessions() for row in session.indices})
    labels = np.zeros((24, 6))
    for session in world.sessions():
        labels[session.indices, session.first : session.stop] = session.labels[:, session.first :]
    found = method.solution.weights
    torch.testing.assert_close(found, literal(method, world, rows, labels[rows]), rtol=0, atol=1e-6)
    # As published, a session has all images that show one of its classes: nothing is missing then.
    assert np.array_equal(labels[rows], world.labels[rows])
    one, joint = (learned(world, text, **REMEMBERING, expansion=0).solution for text in ("B0-C2", "joint"))
    torch.testing.assert_close(one.weights, joint.weights, rtol=0, atol=1e-6)


def test_it_trains_nothing_and_leaves_the_backbone_alone(world):
    method = world.make("analytic", **SMALL)
    before = {name: value.clone() for name, value in method.tagger.backbone.state_dict().items()}
    assert not any(method.trains(session) for session in world.sessions())
    assert not any(parameter.requires_grad for parameter in method.tagger.parameters())
    method = learned(world)
    assert all(torch.equal(method.tagger.backbone.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("options", [{}, {"remember": "fingerprints"}])
def test_probabilities_rank_images_as_scores_do(world, options):
    method = learned(world, "B0-C2", **options)
    with torch.no_grad():
        scores = method.tagger.eval().scores(world.images)[:, 1].numpy()
        found = method.predict(world.images).numpy()
    labels = world.labels.astype(np.int8)
    assert np.array_equal(average_precision(found, labels), average_precision(scores, labels))


def test_relearning_without_a_session_is_solving_for_the_others(world):
    method = learned(world, remember="fingerprints")
    with torch.no_grad():
        before = method.predict(world.images)
        method.relearn(method.ledger)
        assert torch.equal(method.predict(world.images), before)
        whole, left = method.ledger, method.ledger.without_step(2)
        method.relearn(left)
        found = method.tagger.eval().scores(world.images)[:, 0].double()
    assert left.classes == tuple("abef")
    assert method.predict(world.images).shape == (24, 4)
    assert method.thresholds().shape == (4,)
    first, _, third = world.sessions()
    rows = sorted({*first.indices.tolist(), *third.indices.tolist()})
    ridge = choose_ridge(left.sums(), left.classes).ridge
    expected = literal(method, world, rows, world.labels[rows][:, [0, 1, 4, 5]], ridge)
    np.testing.assert_allclose(found, expanded(method, world, np.arange(24)) @ expected.numpy(), rtol=0, atol=1e-4)
    method.relearn(whole)  # and back, with classes that it no longer knew
    assert torch.isfinite(method.predict(world.images)).all()
    torch.testing.assert_close(method.solution.weights, learned(world, remember="fingerprints").solution.weights)


def test_a_ledger_that_cannot_be_learned_changes_nothing(world):
    method = learned(world, remember="fingerprints")
    before, ledger = method.predict(world.images), method.ledger
    for wrong, match in (
        (replace(ledger, features="other"), "do not have the same features"),
        (ledger.with_classes([]), "no label would be left"),
        (Ledger(ledger.width, ledger.features).with_classes("a"), "no image"),
    ):
        with pytest.raises(UserError, match=match):
            method.relearn(wrong)
        assert method.ledger is ledger
        assert torch.equal(method.predict(world.images), before)
        assert method.thresholds().shape == (6,)
        method.relearn(ledger)  # on the same scale of window scores
        assert torch.equal(method.predict(world.images), before)


def test_learners_that_labelled_the_same_images_merge_into_one(world):
    (everything,) = world.sessions("joint")
    ledgers = []
    for first in (0, 3):
        labels = np.where(np.isin(np.arange(6), range(first, first + 3)), everything.labels, UNKNOWN).astype(np.int8)
        own = learn(world.make("analytic", **SMALL, **REMEMBERING), world, [replace(everything, labels=labels)])
        ledgers.append(own.ledger)
    method = learned(world, "joint", **REMEMBERING)
    expected = method.solution.weights
    method.relearn(merged(*ledgers)[0])
    torch.testing.assert_close(method.solution.weights, expected, rtol=0, atol=1e-9)
    # What comes next has a number after those of both.
    learn(method, world, [replace(everything, number=2)])
    assert method.ledger.numbers == (1, 2, 3)
    torch.testing.assert_close(method.solution.weights, expected, rtol=0, atol=1e-9)


def test_classes_that_are_kept_are_scored_as_before_to_the_bit(world):
    method = learned(world)
    with torch.no_grad():
        method.tagger.eval()
        before, thresholds = method.tagger(world.images).logits, method.thresholds()
        for names in (["b", "f", "a"], ["f"]):
            columns = ["abcdef".index(name) for name in names]
            method.keep_classes(names)
            assert torch.equal(method.tagger(world.images).logits, before[:, columns])
            np.testing.assert_allclose(method.thresholds(), thresholds[columns], rtol=1e-12)
            assert method.ledger.classes == tuple(names)
            assert method.notes() == {}
    with pytest.raises(UserError, match="unknown label 'a'"):
        method.keep_classes(["a"])
    with pytest.raises(UserError, match="no label would be left"):
        method.keep_classes([])
    method.relearn(method.ledger)
    assert method.predict(world.images).shape == (24, 1)


def scored_out_of_fold(world, sessions, folds, remember="fingerprints"):
    """A learner whose `held_out` holds the scores themselves, before they become probabilities."""
    method = world.make("analytic", ridge=2.0, remember=remember, **SMALL)
    method.probabilities = lambda scores: scores.numpy()
    return learn(method, world, sessions, folds)


@pytest.mark.parametrize("remember", ["none", "fingerprints"])
def test_scores_out_of_fold_are_those_of_a_solution_without_the_fold(world, remember):
    (session,) = world.sessions("joint")
    method = scored_out_of_fold(world, [session], 3, remember)
    for fold in range(3):
        held = session.indices % 3 == fold  # without digests, a fingerprint is the row
        weights = literal(method, world, session.indices[~held], session.labels[~held] == 1)
        expected = expanded(method, world, session.indices[held]) @ weights.numpy()
        # The root of a feature near 0 makes much of how it was rounded in another batch.
        np.testing.assert_allclose(method.held_out.scores[held], expected, atol=1e-4)


def test_scores_out_of_fold_do_not_know_what_any_session_said_of_an_image(world):
    sessions = world.sessions("B0-C3")
    common = np.intersect1d(sessions[0].indices, sessions[1].indices)[0]

    def scores(change):
        changed = []
        for session in sessions:
            labels = session.labels.copy()
            row = session.indices == common
            labels[row] = np.where(labels[row] == UNKNOWN, UNKNOWN, labels[row] ^ change)
            changed.append(replace(session, labels=labels))
        found = scored_out_of_fold(world, changed, 4).held_out.scores
        assert found.shape == (len(sessions[1].indices), 6)
        return found, sessions[1].indices == common

    (one, own), (other, _) = scores(0), scores(1)
    np.testing.assert_allclose(other[own], one[own], atol=1e-9)
    assert np.abs(other[~own] - one[~own]).max() > 1e-3


def test_an_image_that_stands_twice_in_a_session_is_held_out_once(world):
    (session,) = world.sessions("joint")
    twice = replace(session, indices=np.repeat(session.indices, 2), labels=np.repeat(session.labels, 2, axis=0))
    one, other = (scored_out_of_fold(world, [each], 3).held_out.scores for each in (session, twice))
    np.testing.assert_allclose(other[::2], one, atol=1e-6)
    np.testing.assert_allclose(other[1::2], one, atol=1e-6)


def test_scores_out_of_fold_are_probabilities_and_unknown_where_nothing_is_left(world):
    method = learn(world.make("analytic", **SMALL), world, world.sessions("joint"), folds=4)
    assert ((method.held_out.scores > 0) & (method.held_out.scores < 1)).all()
    alone = learn(world.make("analytic", **SMALL), world, world.sessions("joint"), folds=1)
    assert np.isnan(alone.held_out.scores).all()
    assert learned(world).held_out is None


def test_without_random_features_the_features_do_not_depend_on_the_first_images(world):
    first, second, _ = world.sessions()
    for options, is_same in (({"expansion": 0, "window": 0.0}, True), ({"expansion": 8, "window": 0.0}, False)):
        one, other = (learn(world.make("analytic", **options), world, [each]) for each in (first, second))
        assert not np.array_equal(first.indices, second.indices)
        assert (one.ledger.features == other.ledger.features) == is_same


def test_window_scores_are_on_the_scale_of_whole_images(world):
    method = learned(world, "B0-C3")
    session = world.sessions("B0-C3")[-1]
    with torch.no_grad():
        whole, both = method.tagger.eval().scores(world.images[session.indices]).double().unbind(1)
    straight = method.scores.slope * whole + method.scores.offset
    matched = method.tagger.slope * both + method.tagger.offset
    torch.testing.assert_close(matched.mean(0), straight.mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(matched.std(0), straight.std(0), rtol=1e-3, atol=1e-3)


def test_stored_thresholds_belong_to_what_is_predicted(world):
    for column in range(6):  # now there is something to see of each class
        world.images[world.labels[:, column] == 1, column % 3] += (3.0, -4.0)[column // 3]
    method = learned(world, "joint")
    with torch.no_grad():
        method.tagger.eval()
        scores = method.predict(world.images).numpy()
    stored, anything = (f1_scores(scores, world.labels, one).cf1 for one in (method.thresholds(), 0.0))
    assert stored > anything + 0.1


def test_thresholds_and_notes(world):
    method = world.make("analytic", **SMALL)
    assert method.thresholds() is None
    method = learned(world)
    assert method.thresholds().shape == (6,)
    assert ((method.thresholds() > 0) & (method.thresholds() < 1)).all()
    notes = method.notes()
    assert notes["ridge"] > 0
    assert 0 < notes["freedom"] < 1
    given = learned(world, ridge=7.0)
    assert given.notes()["ridge"] == 7.0


def test_an_image_that_arrives_with_every_session_is_counted_once(tmp_path):
    config = make_config({**TINY, "method": "analytic", "options": {"expansion": 16}})
    protocol = with_negatives(prepare_data(read_data(config.settings, print), config.settings, print).protocol)
    run(config, tmp_path, _change=with_negatives)
    first, second = protocol.sessions()
    assert second.is_back.any()
    tensors, _ = load_session(tmp_path / "session-02" / "state.safetensors")
    images = tensors["method.ledger.grams.0"][-1]  # the sum of 1 * 1
    assert images == len(first.indices) + len(second.indices) - second.is_back.sum()


def test_sums_of_different_features_are_not_mixed(world):
    first, second, _ = world.sessions()
    method = learn(world.make("analytic", **SMALL), world, [first])
    method.tagger.backbone.runtime = "onnx"
    with pytest.raises(UserError, match=r"^the features are not those of earlier sessions: .*runtime=torch or onnx"):
        learn(method, world, [second])
