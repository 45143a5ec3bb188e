"""The quick KRT step and the one in grids/literal.py, spelled out, are the same step."""

import importlib.util
from pathlib import Path

import pytest
import torch

from mlcil.data.loading import Batch
from mlcil.memory.buffer import Budget
from mlcil.methods.base import Task, frozen_copy
from mlcil.methods.krt import KRT, KRTConfig
from mlcil.models.backbone import Backbone
from mlcil.training.optimiser import make_optimiser


@pytest.fixture(scope="module")
def literal():
    file = Path(__file__).parents[2] / "speed" / "literal.py"
    specification = importlib.util.spec_from_file_location("literal", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def opened(net, sessions):
    """KRT within a session, its teacher not what the student is, so that no loss is 0."""
    torch.manual_seed(0)
    method = KRT(KRTConfig(width=32, heads=4, threshold=0.5), Backbone(net, 64), Task("coco", 80), Budget.parse("0"))
    for number in range(sessions):
        if number == sessions - 1:
            method.teacher = frozen_copy(method.tagger)
        method.tagger.grow(3)
    method.tagger.freeze_old_sessions()
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    method.tagger.double().train()
    method.teacher.double()
    images = torch.randn(6, 3, 64, 64, dtype=torch.float64)
    labels = (torch.rand(6, 3 * sessions) < 0.3).to(torch.int8)
    labels[:, : 3 * (sessions - 1)] = -1  # nothing is known of old classes
    return method, Batch(images, labels, torch.arange(6))


@pytest.mark.parametrize("net", ["test_resnet", "mobilenetv2_035"])
@pytest.mark.parametrize("sessions", [2, 6])
def test_losses_gradients_and_the_step_agree(literal, net, sessions):
    method, batch = opened(net, sessions)
    student = literal.LiteralTagger(method.tagger).double().train()
    teacher = literal.LiteralTagger(method.teacher).double().eval()
    weight = method._weight(method.config.token_weight)
    ours = method.losses(batch)
    theirs = literal.literal_losses(student, teacher, batch.images, batch.labels, method.threshold, weight)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert float(value.detach()) > 1e-3
        torch.testing.assert_close(ours[name].double(), value.double(), rtol=1e-5, atol=1e-6)
    sum(ours.values()).backward()
    sum(theirs.values()).backward()
    pairs = [
        (name, one, student.get_parameter(name.removeprefix("backbone.")))
        for name, one in method.tagger.named_parameters()
    ]
    for name, one, other in pairs:
        assert (one.grad is None) == (other.grad is None), name
        if other.grad is not None:
            largest = float(other.grad.abs().max())
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4 * largest + 1e-7, msg=name)
    # The same gradients to both: what is left is Adam.
    for _, one, other in pairs:
        other.grad = None if one.grad is None else torch.empty_like(other).copy_(one.grad)
    make_optimiser(method.tagger, 1e-3, 1e-4).step()
    literal.literal_optimiser(student, 1e-3).step()
    for name, one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10, msg=name)
