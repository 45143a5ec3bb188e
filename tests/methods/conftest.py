"""A made-up data set of a few random images, small enough to train on in a test."""

from __future__ import annotations

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
        options = {"width": 16, "heads": 4} | options if name == "krt" else options
        self.method = method(
            method.Config(**options), Backbone("small_conv", SIZE), Task(kind, CLASSES), budget or Budget()
        )
        return self.method

    def infer(self, function, rows):
        self.passes.append(rows.tolist())
        self.method.tagger.eval()
        with torch.inference_mode():
            values = function(self.images[rows]).float().numpy()
        self.method.tagger.train()
        return values

    def batch(self, session, count=None, method=None):
        full = (method or self.method).training_set(session)
        rows = slice(count)
        indices = torch.from_numpy(full.indices[rows])
        return Batch(self.images[indices], torch.from_numpy(full.labels[rows]), indices)

    def train(self, session, steps, lr=1e-2, method=None):
        from mlcil.training.optimiser import make_optimiser

        method = method or self.method
        method.tagger.train()
        optimiser = make_optimiser(method.tagger, lr, 1.0, 1e-4)
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
