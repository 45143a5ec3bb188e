"""What the old model gives for an image and a view is kept as it is, whatever else was asked with it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlcil.data.features import FeatureFeed
from mlcil.methods import kept_outputs
from mlcil.methods.base import frozen_copy
from mlcil.methods.kept_outputs import keep_outputs
from mlcil.models.backbone import Backbone
from mlcil.models.tagger import AttentionShape, TaggerNet

VIEWS, IMAGES = 3, 50
LABELS = np.zeros((IMAGES, 2), np.int8)


class Stored:
    """Features in memory in place of `CachedRows`."""

    def __init__(self, shape):
        self.values = np.random.default_rng(0).normal(size=(IMAGES, VIEWS, *shape)).astype(np.float16)
        self.shelf = SimpleNamespace(shape=self.values.shape[1:])

    def pick(self, rows, places):
        return self.values[rows, places]


def old_model(freeze="2", attention=True, watch=False):
    torch.manual_seed(0)
    backbone = Backbone("small_conv", 16)
    if watch:
        backbone.watch_stages()
    backbone.freeze(freeze)
    tagger = TaggerNet(backbone, AttentionShape(16, 4) if attention else None)
    for classes in (3, 2):
        tagger.grow(classes)
    return frozen_copy(tagger)


def stored_feed(teacher):
    shape = teacher.backbone.stem(torch.zeros(1, 3, 16, 16)).shape[1:]
    return FeatureFeed(Stored((*shape[1:], shape[0])), torch.device("cpu"))


def kept(teacher, feed, rows, show=lambda done, total: None):
    return keep_outputs(teacher, feed, np.array(rows), show)


@pytest.mark.parametrize("freeze", ["1", "2", "all"])
@pytest.mark.parametrize("attention", [True, False])
def test_an_answer_depends_on_its_image_and_view_alone(freeze, attention):
    teacher = old_model(freeze, attention)
    feed, rows = stored_feed(teacher), np.arange(IMAGES)
    every = kept(teacher, feed, rows)
    few = kept(teacher, feed, [41, 7, 7, 12])
    assert few.rows.tolist() == [7, 12, 41]
    for table, part in zip(every.tables, few.tables, strict=True):
        assert table.shape[:2] == (IMAGES, VIEWS)
        assert torch.equal(table[[7, 12, 41]], part)
    for view in range(VIEWS):
        whole = teacher(feed.pick(rows[10:42], np.full(32, view)))
        for table, values in zip(every.tables, whole[:3], strict=True):
            # Asked in another company, an image may be rounded differently; it depends on the CPU.
            torch.testing.assert_close(table[10:42, view], values, rtol=1e-5, atol=1e-6)


def test_a_batch_finds_the_views_that_it_holds():
    teacher = old_model()
    feed, rows = stored_feed(teacher), np.arange(IMAGES)[::-1].copy()
    found = kept(teacher, feed, rows)
    parts = [np.arange(9), np.array([3, 3, 20])]
    own, drawn = feed.batches(parts, rows, LABELS, [(0, 1), (0, 2)])
    assert len(set(own.views.tolist())) == VIEWS
    both = type(own)(own.images, own.labels, own.indices, (drawn,), own.views).joined()
    output, asked = found.of(both.to(torch.device("cpu"))), teacher(both.images)
    assert len(output.logits) == 12
    assert torch.equal(both.views, torch.cat([own.views, drawn.views]))
    for values, expected in zip(output[:3], asked[:3], strict=True):
        torch.testing.assert_close(values, expected)
    others = teacher(feed.pick(both.indices.numpy(), (both.views.numpy() + 1) % VIEWS))
    assert not torch.allclose(output.logits, others.logits, atol=1e-3)


def test_no_more_is_kept_than_allowed(monkeypatch):
    teacher, told = old_model(), []
    feed = stored_feed(teacher)
    size = 4 * (5 + teacher.backbone.channels + 2 * 16) * 40 * VIEWS  # logits, pooled feature, embeddings
    monkeypatch.setattr(kept_outputs, "MOST_BYTES", size)
    found = kept(teacher, feed, range(40), lambda *both: told.append(both))
    assert sum(one.numel() * one.element_size() for one in found.tables) == size
    assert told == [(done, 120) for done in (32, 40, 72, 80, 112, 120)]
    monkeypatch.setattr(kept_outputs, "MOST_BYTES", size - 1)
    assert kept(teacher, feed, range(40)) is None


def test_maps_of_stages_are_not_kept():
    for freeze, is_kept in (("2", False), ("all", True)):
        teacher = old_model(freeze, attention=False, watch=True)
        assert (kept(teacher, stored_feed(teacher), range(4)) is not None) == is_kept
