"""A made-up data set of a few random images, small enough to train on in a test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mlcil.data.images import DataSet, LabelledImages
from mlcil.data.loading import Batch
from mlcil.data.protocol import make_protocol
from mlcil.memory.buffer import Budget
from mlcil.methods.base import Task
from mlcil.methods.registry import method_class
from mlcil.models.backbone import Backbone

IMAGES, SIZE, CLASSES = 24, 16, 6


class Infer:
    """`methods.base.Inference` on a `World`."""

    def __init__(self, world):
        self.world = world

    def __call__(self, function, rows):
        self.world.passes.append(rows.tolist())
        self.world.method.tagger.eval()
        with torch.inference_mode():
            values = function(self.world.images[rows]).float().numpy()
        self.world.method.tagger.train()
        return values

    def total(self, function, chosen):
        self.world.passes.append(chosen.indices.tolist())
        self.world.method.tagger.eval()
        total = 0
        for rows in np.array_split(np.arange(len(chosen.indices)), 3):
            indices = torch.from_numpy(chosen.indices[rows])
            total = total + function(Batch(self.world.images[indices], torch.from_numpy(chosen.labels[rows]), indices))
        self.world.method.tagger.train()
        return total

    def spread(self, work, shards, payloads):
        return None


class World:
    """Images, their sessions, methods on them and a record of every inference pass."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.images = torch.from_numpy(rng.normal(size=(IMAGES, 3, SIZE, SIZE)).astype(np.float32))
        self.labels = (rng.random((IMAGES, CLASSES)) < 0.35).astype(np.int8)
        self.labels[np.arange(CLASSES), np.arange(CLASSES)] = 1
        self.passes = []
        self.method = None

    def sessions(self, text="B0-C2"):
        classes = tuple("abcdef")
        part = LabelledImages(tuple(str(row) for row in range(IMAGES)), self.labels, classes, "train")
        return make_protocol(DataSet(part, part), text).sessions()

    def make(self, name="krt", budget=None, kind=None, **options):
        torch.manual_seed(0)
        method = method_class(name)
        options = {"width": 16, "heads": 4} | options if name.startswith("krt") else options
        net = Backbone("test_vit", 32) if name == "l2p" else Backbone("small_conv", SIZE)
        self.method = method(method.Config(**options), net, Task(kind, CLASSES), budget or Budget())
        return self.method

    @property
    def infer(self):
        """What the training code gives to a method's hooks."""
        return Infer(self)

    def batch(self, session, count=None, method=None, draws=()):
        """The first `count` images of an epoch, with the images at the positions `draws` as replay."""
        full = (method or self.method).training_set(session)

        def part(rows):
            indices = torch.from_numpy(full.indices[rows])
            return Batch(self.images[indices], torch.from_numpy(full.labels[rows]), indices)

        return replace(part(np.arange(full.shown)[:count]), replay=tuple(part(np.asarray(rows)) for rows in draws))

    def train(self, session, steps, lr=1e-2, method=None):
        from mlcil.training.optimiser import make_optimiser

        method = method or self.method
        method.tagger.train()
        optimiser = make_optimiser(method.tagger, lr, 1e-4)
        for _ in range(steps):
            optimiser.zero_grad()
            (64 * sum(method.losses(self.batch(session, method=method)).values())).backward()
            optimiser.step()

    def learn(self, session, steps=3):
        """A whole session."""
        self.method.before_session(session, self.infer)
        self.train(session, steps)
        self.method.after_session(session, self.infer)


@pytest.fixture
def world():
    return World()
