"""Experience replay: without exemplars it is fine-tuning, with them old and new images count alike."""

import numpy as np
import pytest
import torch

from mlcil.losses.asymmetric import asymmetric_loss
from mlcil.memory.buffer import Budget


def test_batch_and_draw_count_alike(world):
    first, second = world.sessions()[:2]
    method = world.make("er", Budget(per_class=3))
    world.learn(first)
    method.before_session(second, world.infer)
    method.tagger.eval()
    training = method.training_set(second)
    rows = np.flatnonzero(np.isin(training.indices, method.buffer.indices))[:4]
    batch = world.batch(second, 4, draws=[rows])
    shown = np.concatenate([np.arange(4), rows])
    with torch.no_grad():
        terms = method.losses(batch)
        logits = method.tagger(world.images[training.indices[shown]]).logits
    labels = torch.from_numpy(training.labels[shown]).clamp(min=0)
    losses = [asymmetric_loss(logits[[row]], labels[[row]]).item() for row in range(8)]
    assert list(terms) == ["classification"]
    assert terms["classification"].item() == pytest.approx(sum(losses) / 8, rel=1e-5)
    assert terms["classification"].item() != pytest.approx(sum(losses[:4]) / 4, rel=1e-3)


def test_exemplars_are_images_of_their_class_drawn_at_random(world):
    method = world.make("er", Budget(per_class=2))
    assert (method.config.selection, method.config.replay) == ("random", "paired")
    assert method.config.exemplar_labels == "stored_onwards"
    for session in world.sessions():
        world.learn(session, steps=1)
    assert [len(one) for one in method.buffer.chosen] == [2] * 6
    for column, chosen in enumerate(method.buffer.chosen):
        assert (world.labels[chosen, column] == 1).all()
    assert sorted(method.buffer.indices.tolist()) == sorted(set(np.concatenate(method.buffer.chosen).tolist()))
    assert world.passes == []  # nothing is asked of the model
