"""The weights of old classes against a literal double loop, and what they do to the loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.losses.asymmetric import asymmetric_loss, asymmetric_terms
from mlcil.losses.reweighting import group_weights, reweighted_loss

SIZES = [2, 3, 2]


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels_of(seed, rows=6, low=0):
    return torch.randint(low, 2, (rows, sum(SIZES)), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def literal(probabilities, labels, sizes):
    """Entry by entry, the mean of its group taken anew each time."""
    rows, result = range(len(labels)), []
    session = [number for number, size in enumerate(sizes) for _ in range(size)]
    for i in rows:
        result.append([])
        for j, own in enumerate(session):
            alike = [
                abs(probabilities[a][b] - labels[a][b])
                for a in rows
                for b, other in enumerate(session)
                if other == own and labels[a][b] == labels[i][j]
            ]
            mean = sum(alike) / len(alike)
            is_plain = own == len(sizes) - 1 or labels[i][j] == -1 or mean == 0
            result[-1].append(1.0 if is_plain else abs(probabilities[i][j] - labels[i][j]) / mean)
    return result


@st.composite
def batches(draw):
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    entry = st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.99, 1.0]), st.sampled_from([-1, 0, 1]))
    rows = draw(st.lists(st.lists(entry, min_size=sum(sizes), max_size=sum(sizes)), min_size=1, max_size=4))
    return [[p for p, _ in row] for row in rows], [[y for _, y in row] for row in rows], sizes


@given(batch=batches())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_equal_to_the_literal_loop(batch):
    probabilities, labels, sizes = batch
    weights = group_weights(torch.tensor(probabilities), torch.tensor(labels, dtype=torch.int8), sizes)
    torch.testing.assert_close(weights, torch.tensor(literal(probabilities, labels, sizes)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("low", [0, -1])
def test_the_mean_weight_of_a_group_is_one(low):
    labels = labels_of(1, low=low)
    weights = group_weights(torch.sigmoid(gaussian(1, 6, 7)), labels, SIZES)
    for columns in (slice(0, 2), slice(2, 5)):
        for sign in (0, 1):
            group = weights[:, columns][labels[:, columns] == sign]
            assert group.mean().item() == pytest.approx(1, abs=1e-5)
            assert group.std() > 0.1
    assert (weights[:, 5:] == 1).all()
    assert (weights[labels == -1] == 1).all()


def test_a_group_without_a_mistake_or_without_an_entry_weighs_one():
    labels = torch.tensor([[1, 1, 0], [1, 1, 0]], dtype=torch.int8)
    weights = group_weights(torch.tensor([[1.0, 1.0, 0.3], [1.0, 1.0, 0.4]]), labels, [2, 1])
    assert torch.equal(weights, torch.ones(2, 3))


def test_the_weights_are_constants_to_the_gradient():
    logits, labels = gaussian(2, 6, 7).requires_grad_(), labels_of(2)
    weights = group_weights(torch.sigmoid(logits), labels, SIZES)
    assert not weights.requires_grad
    (got,) = torch.autograd.grad(reweighted_loss(logits, labels, SIZES).sum(), logits)
    (plain,) = torch.autograd.grad(asymmetric_terms(logits, labels).sum(), logits)
    torch.testing.assert_close(got, weights * plain)
    assert (got - plain).abs().max() > 0.01


def test_the_loss_is_one_number_per_image_of_weighted_terms():
    logits, labels = gaussian(3, 6, 7), labels_of(3, low=-1)
    weights = group_weights(torch.sigmoid(logits), labels, SIZES)
    loss = reweighted_loss(logits, labels, SIZES)
    assert loss.shape == (6,)
    torch.testing.assert_close(loss, (weights * asymmetric_terms(logits, labels)).sum(1))


def test_with_one_session_it_is_the_asymmetric_loss():
    logits, labels = gaussian(4, 6, 7), labels_of(4)
    assert torch.equal(reweighted_loss(logits, labels, [7]), asymmetric_loss(logits, labels))
