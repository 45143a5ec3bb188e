"""Frozen networks by ONNX Runtime: the values of torch, nearly, and always the same bits."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mlcil.core.errors import UserError
from mlcil.models.backbone import Backbone
from mlcil.models.runtime import to_onnx
from mlcil.training.config import make_config
from mlcil.training.prepare import prepare_method


def frozen(name="small_conv", amount="all", size=32):
    torch.manual_seed(0)
    backbone = Backbone(name, size)
    backbone.freeze(amount)
    return backbone.eval()


def images(count=5, size=32):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "amount", "size"),
    [
        ("small_conv", "all", 32),
        ("small_conv", "2", 32),
        ("tf_efficientnet_lite0", "all", 64),  # with TensorFlow's padding, which depends on the size
        ("test_vit", "all", 160),
        ("test_resnet", "all", 64),
    ],
)
def test_it_computes_what_torch_computes(name, amount, size):
    backbone, given = frozen(name, amount, size), images(size=size)
    expected = backbone.stem(given)
    backbone.runtime = "onnx"
    found = backbone.stem(given)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.equal(backbone.torch_stem(given), expected)


def test_bits_depend_on_the_image_alone():
    backbone, given = frozen("tf_efficientnet_lite0", size=64), images(7, 64)
    backbone.runtime = "onnx"
    expected = backbone.stem(given)
    for chosen in ([3], [6, 0, 3], [*range(6, -1, -1)]):
        assert torch.equal(backbone.stem(given[chosen]), expected[chosen])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = copy.deepcopy(backbone)
        again._onnx = None  # exported anew, with more threads
        assert torch.equal(again.stem(given), expected)
    finally:
        torch.set_num_threads(threads)
    for other in (copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):
        assert torch.equal(other.stem(given), expected)


def test_weights_that_are_loaded_later_count():
    backbone, other = frozen(), frozen()
    for one in (backbone, other):
        one.runtime = "onnx"
    before = backbone.stem(images())
    changed = {name: 1.5 * value for name, value in other.state_dict().items() if value.is_floating_point()}
    backbone.load_state_dict(changed, strict=False)
    assert not torch.allclose(backbone.stem(images()), before)
    assert torch.equal(other.stem(images()), before)


def test_features_of_another_runtime_have_another_name():
    backbone = frozen()
    by_torch = backbone.stem_digest()
    backbone.runtime = "onnx"
    assert backbone.stem_digest() != by_torch


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "onnx"),
        ({"runtime": "torch"}, "torch"),
        ({"runtime": "onnx", "backbone": "test_vit", "image_size": 160}, "onnx"),
        ({"backbone": "test_vit", "image_size": 160}, "torch"),
        ({"precision": "bf16-mixed"}, "torch"),
    ],
)
def test_convolutions_on_a_cpu_in_full_precision_are_left_to_onnx_runtime(changes, expected):
    values = {"method": "probes", "backbone": "small_conv", "image_size": 32, "accelerator": "cpu"}
    method, _ = prepare_method(make_config({**values, **changes}), 4)
    assert method.tagger.backbone.runtime == expected


class Moody(nn.Module):
    """Computes something else when it is traced."""

    def forward(self, given):
        return given * (2 if torch.jit.is_tracing() else 3)


class Impossible(nn.Module):
    """Uses what ONNX does not have."""

    def forward(self, given):
        return torch.linalg.eigvals(given).real


@pytest.mark.parametrize(
    ("network", "message"),
    [(Moody(), "computes other values of this network than torch"), (Impossible(), "cannot compute this network: ")],
)
def test_a_network_that_it_cannot_compute_is_named(network, message):
    with pytest.raises(UserError, match=f"^ONNX Runtime {message}"):
        to_onnx(network, torch.randn(3, 4, 4))
