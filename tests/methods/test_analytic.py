"""The analytic learner: sessions give what all images at once give, and scores come with their meaning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mlcil.models.statistics import merged, without

from mlcil.core.errors import UserError
from mlcil.data.poison import with_negatives
from mlcil.evaluation.metrics import average_precision, f1_scores
from mlcil.methods.analytic import balanced_weights
from mlcil.models.ridge import choose_ridge, score_calibration, solve
from mlcil.testing import TINY
from mlcil.training.config import make_config
from mlcil.training.folder import load_state
from mlcil.training.prepare import prepare_data
from mlcil.training.run import run

SMALL = {"expansion": 8, "window": 0.5}


def learned(world, text="B0-C2", **options):
    method = world.make("analytic", **(SMALL | options))
    for session in world.sessions(text):
        method.before_session(session, world.infer)
        if method.trains(session):
            world.train(session, 2)
        method.after_session(session, world.infer)
    return method


def expanded(method, world, rows):
    with torch.no_grad():
        return method.tagger.expand(method.tagger.describe(world.images[rows])).double()


def literal(method, world, ridge, marks=None):
    """Ridge regression on the images of all sessions at once."""
    z, y = [], []
    for number, session in enumerate(world.sessions()):
        labels = np.zeros((len(session.indices), 6))
        labels[:, session.first : session.stop] = session.labels[:, session.first :] == 1
        if marks is not None and number:
            labels[:, : session.first] = marks[number]
        z.append(expanded(method, world, session.indices))
        y.append(torch.from_numpy(labels))
    z, y = torch.cat(z), torch.cat(y)
    penalty = ridge * torch.eye(z.shape[1], dtype=torch.float64)
    penalty[-1, -1] = 0
    return torch.linalg.solve(z.T @ z + penalty, z.T @ y)


def test_sessions_give_the_solution_of_all_their_images_at_once(world):
    method = learned(world, ridge=2.0)
    found = method.solution.weights
    torch.testing.assert_close(found, literal(method, world, 2.0), rtol=0, atol=1e-6)
    assert method.statistics.classes == tuple("abcdef")
    torch.testing.assert_close(method.tagger.weights.double(), found, rtol=1e-5, atol=1e-6)


def test_it_trains_nothing_and_leaves_the_backbone_alone(world):
    method = world.make("analytic", **SMALL)
    before = {name: value.clone() for name, value in method.tagger.backbone.state_dict().items()}
    assert not any(method.trains(session) for session in world.sessions())
    assert not any(parameter.requires_grad for parameter in method.tagger.parameters())
    method = learned(world)
    assert all(torch.equal(method.tagger.backbone.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("base", ["finetune", "attention"])
def test_the_base_may_train_in_the_first_session_alone(world, base):
    method = world.make("analytic", base=base, width=16, heads=4, **SMALL)
    first, second, _ = world.sessions()
    assert [method.trains(one) for one in (first, second)] == [True, False]
    method.before_session(first, world.infer)
    before = {name: value.clone() for name, value in method.tagger.backbone.state_dict().items()}
    world.train(first, 2)
    after = {name: value.clone() for name, value in method.tagger.backbone.state_dict().items()}
    assert any(not torch.equal(after[name], value) for name, value in before.items())
    method.after_session(first, world.infer)
    method.before_session(second, world.infer)
    method.after_session(second, world.infer)
    assert all(torch.equal(method.tagger.backbone.state_dict()[name], value) for name, value in after.items())
    assert method.predict(world.images).shape == (24, 4)


@pytest.mark.parametrize("options", [{}, {"base": "finetune"}, {"balance": 1.0}, {"pseudo_above": 0.5}])
def test_probabilities_rank_images_as_scores_do(world, options):
    method = learned(world, "B0-C2", **options)
    with torch.no_grad():
        scores = method.tagger.eval().scores(world.images)[:, 1].numpy()
        found = method.predict(world.images).numpy()
    labels = world.labels.astype(np.int8)
    assert np.array_equal(average_precision(found, labels), average_precision(scores, labels))


def test_relearning_without_a_session_is_solving_for_the_others(world):
    states = []
    method = world.make("analytic", **SMALL)
    for session in world.sessions():
        method.before_session(session, world.infer)
        method.after_session(session, world.infer)
        states.append(method.statistics)
    with torch.no_grad():
        before = method.predict(world.images)
        method.relearn(method.statistics)
        assert torch.equal(method.predict(world.images), before)
        left = without(states[2], without(states[1], states[0]))
        method.relearn(left)
        found = method.tagger.eval().scores(world.images)[:, 0].double()
    assert method.predict(world.images).shape == (24, 4)
    assert method.thresholds().shape == (4,)
    expected = expanded(method, world, np.arange(24)) @ choose_ridge(left).weights
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    method.relearn(merged(left, without(states[1], states[0])))  # and back, with classes that it no longer knew
    assert sorted(method.statistics.classes) == list("abcdef")
    assert torch.isfinite(method.predict(world.images)).all()
    with pytest.raises(UserError, match="do not have the same features"):
        method.relearn(replace(left, features="other"))


def test_window_scores_are_on_the_scale_of_whole_images(world):
    method = learned(world, "B0-C3")
    session = world.sessions("B0-C3")[-1]
    with torch.no_grad():
        whole, both = method.tagger.eval().scores(world.images[session.indices]).double().unbind(1)
    slope, offset, _ = score_calibration(method.statistics, method.solution)
    straight = slope * whole + offset
    matched = method.tagger.slope * both + method.tagger.offset
    torch.testing.assert_close(matched.mean(0), straight.mean(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(matched.std(0), straight.std(0), rtol=1e-3, atol=1e-3)


def test_pseudo_labels_are_hard_and_leave_the_sessions_own_columns_alone(world):
    method = learned(world, ridge=2.0, pseudo_above=0.5)
    assert torch.equal(method.statistics.counts, learned(world, ridge=2.0).statistics.counts)
    marks, step = {}, world.make("analytic", ridge=2.0, pseudo_above=0.5, **SMALL)
    for number, session in enumerate(world.sessions()):
        step.before_session(session, world.infer)
        if number:
            with torch.no_grad():
                scores = step.predict(world.images[session.indices])
            marks[number] = (scores[:, : session.first] > 0.5).double().numpy()
        step.after_session(session, world.infer)
    assert sum(one.sum() for one in marks.values()) > 0
    expected = literal(method, world, 2.0, marks)
    torch.testing.assert_close(method.solution.weights, expected, rtol=0, atol=1e-5)


def test_a_session_can_be_taken_back_and_a_colleagues_merged_in(world):
    states = []
    method = world.make("analytic", ridge=2.0, **SMALL)
    for session in world.sessions():
        method.before_session(session, world.infer)
        method.after_session(session, world.infer)
        states.append(method.statistics)
    second = without(states[1], states[0])
    left = without(states[2], second)
    assert left.classes == ("a", "b", "e", "f")
    ours = solve(left, 2.0).weights
    both = merged(states[0], without(states[2], states[1]))
    torch.testing.assert_close(ours, solve(both, 2.0).weights, rtol=0, atol=1e-8)


def test_rare_classes_weigh_more():
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    counts = torch.tensor([16.0, 4.0])
    weights = balanced_weights(labels, counts, 0.5)
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 4 / 3, 1.0, 1.0], dtype=torch.float64))
    assert torch.equal(balanced_weights(labels, counts, 0.0), torch.ones(4, dtype=torch.float64))
    absent = balanced_weights(labels[:1], torch.tensor([5.0, 0.0]), 0.5)
    torch.testing.assert_close(absent, torch.ones(1, dtype=torch.float64))


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


def test_attention_heads_must_divide_the_width(world):
    with pytest.raises(UserError, match="width 10 is not a multiple of heads 4"):
        world.make("analytic", base="attention", width=10, heads=4)


def test_an_image_that_arrives_with_every_session_is_counted_once(tmp_path):
    config = make_config({**TINY, "method": "analytic", "options": {"expansion": 16}})
    protocol = with_negatives(prepare_data(config.settings, lambda line: None).protocol)
    run(config, tmp_path, _change=with_negatives)
    first, second = protocol.sessions()
    assert second.is_back.any()
    tensors, _ = load_state(tmp_path / "session-02" / "state.safetensors")
    assert tensors["method.statistics.images"] == len(first.indices) + len(second.indices) - second.is_back.sum()
