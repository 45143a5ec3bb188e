"""A few images with features, steps that label them, and what a ledger must make of both: the literal version."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from hypothesis import strategies as st

from mlcil.models.ledger import Ledger
from mlcil.models.ridge import SMALLEST_DEVIATION, solve
from mlcil.models.sums import DescribedImages

IMAGES, WIDTH, RIDGE, NAMES = 8, 5, 0.7, ("a", "b", "c")
PRINTS = np.random.default_rng(1).integers(-(2**63), 2**63, IMAGES, dtype=np.int64)
DESCRIBED = torch.from_numpy(np.random.default_rng(2).normal(size=(IMAGES, WIDTH - 1)))

TRUTH = np.random.default_rng(4).integers(0, 2, (IMAGES, 3)).tolist()
LABELS = st.tuples(*[st.sampled_from([-1, 0, 1])] * 3)
STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, IMAGES - 1), LABELS), min_size=1, max_size=10), min_size=1, max_size=4
)
"""Steps, each a list of an image and its labels; an image may come twice in a step."""


def expand(described):
    return torch.cat([described, torch.ones(len(described), 1, dtype=described.dtype)], 1)


def in_memory(described, expand=expand):
    return DescribedImages(lambda places: described[places], expand, expand(described[:1]).shape[1])


def with_images(ledger, described, labels, expand=expand):
    return ledger.with_images(np.arange(len(described)), labels, in_memory(described, expand))


def with_step(ledger, number, rows):
    places = [image for image, _ in rows]
    labels = np.array([labels for _, labels in rows], np.int8).reshape(len(rows), -1)
    return ledger.with_step(number, PRINTS[places], labels, in_memory(DESCRIBED[places]))


def learned(steps, ledger=None):
    """The ledger after steps by number."""
    ledger = ledger or Ledger(WIDTH, "same").with_classes(NAMES)
    for number, rows in steps.items():
        ledger = with_step(ledger, number, rows)
    return ledger


def numbered(steps):
    return dict(enumerate(steps, start=1))


def known(steps, names=NAMES):
    """image -> class -> the last label that is known; within a step present before absent before unknown."""
    found = defaultdict(lambda: dict.fromkeys(names, -1))
    for rows in steps.values():
        said = defaultdict(lambda: dict.fromkeys(names, -1))
        for image, labels in rows:
            given = dict(zip(NAMES, labels, strict=True))
            said[image] = {name: max(label, given[name]) for name, label in said[image].items()}
        for image, by_class in said.items():
            found[image].update({name: label for name, label in by_class.items() if label >= 0})
    return dict(found)


def steps_of(steps):
    """image -> the steps that brought it."""
    return {image: {n for n, rows in steps.items() if image in [one for one, _ in rows]} for image in known(steps)}


def least_squares(features, labels, ridge):
    """Weights (d, K) with the constant last: standardised features, penalised alike, and a constant that is free."""
    mean, deviation = features.mean(0), features.std(0)
    moving = np.sort(deviation[deviation > 1e-6 * (1 + np.abs(mean))])
    deviation = deviation.clip(min=SMALLEST_DEVIATION * moving[(len(moving) - 1) // 2])  # of the median
    x, share = (features - mean) / deviation, labels.mean(0)
    stacked = np.concatenate([x, np.sqrt(ridge) * np.eye(x.shape[1])])
    target = np.concatenate([labels - share, np.zeros((x.shape[1], labels.shape[1]))])
    weights = np.linalg.lstsq(stacked, target, rcond=None)[0] / deviation[:, None]
    return np.concatenate([weights, (share - mean @ weights)[None]])


def assert_is(ledger, steps, names=NAMES):
    """The ledger is the one of exactly these steps and classes."""
    expected = known(steps, names)
    assert sorted(ledger.classes) == sorted(names)
    assert set(ledger.fingerprints.tolist()) == {int(PRINTS[image]) for image in expected}
    assert set(ledger.groups) == set(ledger.group_of.tolist())
    assert_counts_as(ledger, expected)


def assert_counts_as(ledger, expected):
    """Labels, counts and weights are those of these images."""
    images = list(expected)
    labels = np.array([[expected[image][name] for name in ledger.classes] for image in images])
    labels = labels.reshape(len(images), len(ledger.classes))
    assert np.array_equal(ledger.labels_now()[ledger.find(PRINTS[images])], labels)
    assert ledger.counts().images.tolist() == (labels >= 0).sum(0).tolist()
    assert ledger.counts().positives.tolist() == (labels == 1).sum(0).tolist()
    z = expand(DESCRIBED[images])
    torch.testing.assert_close(ledger.sums().cross, z.T @ torch.from_numpy(labels == 1).double())
    assert ledger.sums().images == len(images)
    if len(images) > 1:
        weights = least_squares(DESCRIBED[images].numpy(), (labels == 1).astype(float), RIDGE)
        np.testing.assert_allclose(solve(ledger.sums(), RIDGE).weights.numpy(), weights, rtol=0, atol=1e-8)
