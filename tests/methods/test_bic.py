"""BiC: shared-out losses, images set aside, and a correction that cannot change how a class ranks images."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.evaluation.metrics import average_precision, f1_scores
from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.memory.buffer import Budget
from mlcil.methods.bic import corrected, fit_correction

BUDGETS = ["5", "2", "1", "20", "total:13"]


def opened(world, number=2, budget="5", steps=3, text="B0-C2", **options):
    """A method that has learned `number` - 1 sessions and opened the next."""
    sessions = world.sessions(text)
    method = world.make("bic", Budget.parse(budget), **options)
    for session in sessions[: number - 1]:
        world.learn(session, steps)
    method.before_session(sessions[number - 1], world.infer)
    return method, sessions[number - 1]


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def noisy_labels(seed, logits):
    """Labels drawn from probabilities that are not the logits' own."""
    chances = torch.sigmoid(0.6 * logits - 0.4)
    return (torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < chances).to(torch.int8)


def literal_distillation(now, before, temperature):
    """The mean over images of each old class's cross-entropy, from probabilities."""
    q, p = torch.sigmoid(before.double() / temperature), torch.sigmoid(now.double() / temperature)
    return -(q * p.log() + (1 - q) * (1 - p).log()).sum(dim=1).mean().item()


# The fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_calibrated_scores_are_left_as_they_are(decay):
    odds = math.log(3)
    logits = torch.tensor([-odds] * 4 + [0.0] * 2 + [odds] * 4, dtype=torch.float64)[:, None]
    labels = torch.tensor([1, 0, 0, 0, 1, 0, 1, 1, 1, 0], dtype=torch.int8)[:, None]
    assert fit_correction(logits, labels, decay) == pytest.approx((1.0, 0.0), abs=1e-9)
    alpha, beta = fit_correction(logits + 1, labels, decay)
    assert beta < -0.3
    assert alpha > 0


@given(seed=st.integers(0, 2**31), shift=st.floats(-4, 4))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_without_decay_a_shift_of_the_logits_is_taken_back(seed, shift):
    logits = 2 * gaussian(seed, 60, 3).double()
    labels = noisy_labels(seed, logits)
    alpha, beta = fit_correction(logits, labels, 0.0)
    again, moved = fit_correction(logits + shift, labels, 0.0)
    assert again == pytest.approx(alpha, abs=2e-4)
    assert moved == pytest.approx(beta - shift * alpha, abs=1e-3)


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_the_fit_is_the_best_of_its_neighbourhood(decay):
    logits = 2 * gaussian(1, 50, 2).double()
    labels = noisy_labels(1, logits)
    labels[::5, 1] = -1

    def objective(alpha, beta):
        chances = torch.sigmoid(alpha * logits + beta)
        likelihood = torch.where(labels == 1, chances, 1 - chances).log()
        return -(likelihood * (labels >= 0)).sum().item() / 50 + decay * (beta**2 + math.log(alpha) ** 2)

    alpha, beta = fit_correction(logits, labels, decay)
    best = objective(alpha, beta)
    assert best < objective(1, 0)
    for step in (0.02, -0.02):
        assert best < objective(alpha + step, beta)
        assert best < objective(alpha, beta + step)


def test_unknown_labels_are_left_out_of_the_fit():
    logits = 2 * gaussian(2, 40, 2)
    labels = noisy_labels(2, logits)
    labels[:, 1] = -1
    assert fit_correction(logits, labels, 0.05) == pytest.approx(
        fit_correction(logits[:, :1], labels[:, :1], 0.05), abs=1e-6
    )
    assert fit_correction(logits, torch.full_like(labels, -1), 0.05) == pytest.approx((1.0, 0.0))


@given(
    rows=st.lists(
        st.tuples(st.floats(-30, 30, width=32), st.sampled_from([-1, 0, 1])),
        min_size=1,
        max_size=8,
    ),
    decay=st.sampled_from([0.0, 0.05]),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_alpha_is_positive_whatever_the_labels_say(rows, decay):
    logits, labels = (torch.tensor(column)[:, None] for column in zip(*rows, strict=True))
    alpha, beta = fit_correction(logits, labels.to(torch.int8), decay)
    assert alpha > 0
    assert math.isfinite(alpha)
    assert math.isfinite(beta)


# The correction ----------------------------------------------------------------------------------


def test_the_newest_columns_alone_are_mapped():
    logits = gaussian(5, 4, 5)
    moved = corrected(logits, 2, (0.5, -3.0))
    assert torch.equal(moved[:, :3], logits[:, :3])
    torch.testing.assert_close(moved[:, 3:], 0.5 * logits[:, 3:] - 3)


@torch.no_grad()
def teach_new_classes(world, method, logits):
    """Solve for the newest head so that it says the given logits (24, 2) about all images."""
    features = method.tagger.eval()(world.images).pooled.double()
    head = method.tagger.heads[-1]
    head.weight.copy_((torch.linalg.pinv(features) @ logits).T)
    head.bias.zero_()


def test_a_fitted_correction_changes_thresholded_measures_and_no_average_precision(world):
    method, session = opened(world, budget="20", held_out=0.2)
    labels = world.labels[:, :4]
    # Scores that follow the labels, with noise and too high.
    logits = torch.from_numpy(2.0 * labels[:, 2:] - 1) + 1.5 * gaussian(6, 24, 2).double() + 3
    teach_new_classes(world, method, logits)
    method.after_session(session, world.infer)
    method.tagger.eval()
    with torch.no_grad():
        plain, scores = torch.sigmoid(method.tagger(world.images).logits), method.predict(world.images)
    torch.testing.assert_close(plain[:, 2:], torch.sigmoid(logits).float(), rtol=1e-2, atol=1e-2)
    alpha, beta = method.correction
    assert 0.1 < alpha < 2
    assert beta < -0.5
    before, after = average_precision(plain.numpy(), labels), average_precision(scores.numpy(), labels)
    assert np.abs(before - after).max() < 1e-9
    assert f1_scores(scores.numpy(), labels, 0.5).of1 != f1_scores(plain.numpy(), labels, 0.5).of1


@pytest.mark.parametrize("missing", ["negative", "ignore"])
@pytest.mark.parametrize("labels", ["stored_onwards", "stored_only"])
def test_the_correction_is_fitted_on_the_new_columns_of_the_images_set_aside(world, missing, labels):
    method, session = opened(world, missing=missing, exemplar_labels=labels, decay=0.2)
    world.train(session, 2)
    world.passes.clear()
    method.after_session(session, world.infer)
    assert method.validation.indices.tolist() in world.passes
    method.tagger.eval()
    with torch.no_grad():
        logits = method.tagger(world.images[method.validation.indices]).logits[:, 2:]
    known = torch.from_numpy(method.validation.labels[:, 2:])
    assert bool((known == -1).any()) == (labels == "stored_only")
    known = known.clamp(min=0) if missing == "negative" else known
    assert method.correction == pytest.approx(fit_correction(logits, known, 0.2), rel=1e-3, abs=1e-4)
    assert method.correction != (1.0, 0.0)
    assert (method.notes()["alpha"], method.notes()["beta"]) == method.correction
    assert method.notes()["held_out"] == len(method.validation)


def test_the_first_session_is_plain_and_needs_no_correction(world):
    method, session = opened(world, 1)
    assert set(method.losses(world.batch(session))) == {"classification"}
    method.tagger.eval()
    batch = world.batch(session)
    expected = asymmetric_loss(method.tagger(batch.images).logits, batch.labels).mean().item()
    assert method.losses(batch)["classification"].item() == pytest.approx(expected, rel=1e-6)
    method.after_session(session, world.infer)
    assert method.correction == (1.0, 0.0)


# The losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "share"), [(2, 1 / 2), (3, 2 / 3), (4, 3 / 4)])
@pytest.mark.parametrize("temperature", [2.0, 1.0])
def test_the_losses_are_shared_out_by_old_and_seen_classes(world, number, share, temperature):
    method, session = opened(world, number, text="B0-C1", steps=1, temperature=temperature)
    method.old_correction = (1.0, 0.0)
    world.train(session, 1)
    method.tagger.eval()
    batch = world.batch(session)
    with torch.no_grad():
        terms = method.losses(batch)
        now, before = method.tagger(batch.images).logits, method.teacher(batch.images).logits
    classification = asymmetric_loss(now, batch.labels.clamp(min=0)).mean().item()
    distillation = literal_distillation(now[:, : number - 1], before, temperature)
    assert terms["classification"].item() == pytest.approx((1 - share) * classification, rel=1e-5)
    assert terms["distillation"].item() == pytest.approx(share * distillation, rel=1e-5)


def test_the_teachers_newest_columns_are_corrected_with_the_last_pair_and_no_older_ones(world):
    method, session = opened(world, 2)
    world.train(session, 2)
    method.after_session(session, world.infer)
    pair = method.correction
    assert pair != (1.0, 0.0)
    third = world.sessions()[2]
    method.before_session(third, world.infer)
    assert method.old_correction == pair
    assert method.correction == (1.0, 0.0)  # nothing is known yet of the third session's classes
    method.tagger.eval()
    batch = world.batch(third)
    with torch.no_grad():
        term = method.losses(batch)["distillation"].item()
        now, before = method.tagger(batch.images).logits, method.teacher(batch.images).logits
    targets = torch.cat([before[:, :2], pair[0] * before[:, 2:] + pair[1]], dim=1)
    assert term == pytest.approx(2 / 3 * literal_distillation(now[:, :4], targets, 2.0), rel=1e-5)
    assert term != pytest.approx(2 / 3 * literal_distillation(now[:, :4], before, 2.0), rel=1e-4)


# The images set aside ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "kept", "aside"),
    [("20", 18, 2), ("5", 4, 1), ("2", 1, 1), ("1", 1, 0), ("10", 9, 1), ("30", 27, 3)],
)
def test_a_tenth_of_the_exemplars_is_set_aside_and_at_least_one_of_two(world, budget, kept, aside):
    method = world.make("bic", Budget.parse(budget))
    assert method.buffer.budget.quotas(3) == [kept] * 3
    assert method.validation.budget.quotas(3) == [aside] * 3


def test_a_class_keeps_an_image_to_train_on(world):
    world.labels[:, 2:] = 0
    world.labels[[0, 1], [2, 3]] = 1  # one image each of the second session's classes
    world.labels[[2, 3], [4, 5]] = 1
    method, session = opened(world, 2, budget="20")
    assert sorted(method.training_set(session).indices[:2].tolist()) == [0, 1]
    assert not any(len(chosen) for chosen in method.validation.chosen[2:])
    before = method.correction
    method.after_session(session, world.infer)
    assert method.correction == before == (1.0, 0.0)  # nothing to fit it on


def test_scores_that_separate_the_held_out_images_leave_the_scale_finite(world):
    logits = torch.tensor([[2.0], [1.0], [-1.0], [-2.0]])
    alpha, beta = fit_correction(logits, (logits > 0).to(torch.int8), 0.05)
    assert 1 < alpha < 10
    assert abs(beta) < 1e-3


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("replay", ["concat", "paired"])
def test_images_set_aside_are_never_trained_on_nor_chosen(world, budget, replay):
    method = world.make("bic", Budget.parse(budget), replay=replay)
    for session in world.sessions():
        old = set(method.buffer.indices.tolist())
        method.before_session(session, world.infer)
        aside = set(method.validation.indices.tolist())
        full = method.training_set(session)
        assert not aside & set(full.indices.tolist())
        assert set(full.indices.tolist()) == (set(session.indices.tolist()) | old) - aside
        shown = full.indices[: full.shown].tolist()
        everything = set(session.indices.tolist()) | (old if replay == "concat" else set())
        assert sorted(shown) == sorted(everything - aside)
        plan = [np.arange(full.shown)] * 3
        drawn = [one for step in method.draw(full, plan, 0, np.random.default_rng(0)) for one in step]
        assert not aside & {index for one in drawn for index in full.indices[one].tolist()}
        method.after_session(session, world.infer)
        for chosen in method.buffer.chosen[session.first :]:
            assert not aside & set(chosen.tolist())
        assert set(method.validation.indices.tolist()) == aside


def test_each_new_class_has_an_image_set_aside_with_the_labels_of_its_session(world):
    method = world.make("bic", Budget(per_class=5))
    for session in world.sessions():
        method.before_session(session, world.infer)
        for column in range(session.first, session.stop):
            (index,) = method.validation.chosen[column]
            assert world.labels[index, column] == 1
            row = method.validation.indices.tolist().index(index)
            assert method.validation.labels[row, session.first :].tolist() == (
                world.labels[index, session.first : session.stop].tolist()
            )
        method.after_session(session, world.infer)


@pytest.mark.parametrize(("budget", "held_out"), [("1", 0.1), ("5", 0.0)])
def test_without_an_image_set_aside_nothing_is_corrected(world, budget, held_out):
    method, session = opened(world, budget=budget, held_out=held_out)
    world.train(session, 1)
    method.after_session(session, world.infer)
    assert len(method.validation) == 0
    assert method.correction == (1.0, 0.0)
    method.tagger.eval()
    with torch.no_grad():
        assert torch.equal(method.predict(world.images), torch.sigmoid(method.tagger(world.images).logits))
