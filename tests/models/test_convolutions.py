"""The quick convolutions are the network's own: same outputs, same gradients, same names."""

import copy
import pickle

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from mlcil.models.backbone import Backbone
from mlcil.models.convolutions import Convolution, copied_in_place, make_quick, spare_copies, stands_still

NETS = ["small_conv", "test_efficientnet", "test_resnet", "mobilenetv2_035", "resnet10t"]


def shaken(net):
    """Norms as after training, so that leaving one out would show."""
    generator = torch.Generator().manual_seed(3)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for value in (module.running_mean, module.running_var, module.weight, module.bias):
                value.data.add_(torch.rand(value.shape, generator=generator))
    return net


def both(name, size=64):
    """A plain network and the same one made quick."""
    torch.manual_seed(0)
    plain = shaken(Backbone(name, size).net if name == "small_conv" else timm.create_model(name, num_classes=0))
    if name == "small_conv":
        for module in plain.modules():
            if isinstance(module, Convolution):
                module.__class__, module.after = nn.Conv2d, ()
            if type(module).__name__ == "FoldedBatchNorm2d":
                module.__class__ = nn.BatchNorm2d
    quick = copy.deepcopy(plain)
    make_quick(quick.to(memory_format=torch.channels_last), torch.randn(1, 3, size, size))
    return plain, quick


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [False, True])
def test_outputs_gradients_and_statistics_are_the_same(name, training):
    plain, quick = both(name)
    torch.manual_seed(1)
    images, results = torch.randn(4, 3, 64, 64, dtype=torch.float64), []  # in float32 a kink may fall on either side
    for net in (plain, quick):
        net.double().train(training).zero_grad()
        if net is quick:
            spare_copies(copied_in_place(net))
        given = images.clone().requires_grad_()
        features = net.forward_features(given)
        features.square().mean().backward()
        gradients = {f"gradient of {key}": one.grad for key, one in net.named_parameters() if one.grad is not None}
        results.append({"features": features.detach(), "into": given.grad} | gradients | net.state_dict())
    assert results[0].keys() == results[1].keys()
    for key, value in results[0].items():
        torch.testing.assert_close(
            results[1][key], value, rtol=1e-7, atol=1e-9 * float(value.abs().max()) + 1e-12, msg=key
        )


@pytest.mark.parametrize("name", NETS)
def test_every_plain_pair_is_folded_and_no_norm_computed(name, monkeypatch):
    _, quick = both(name)
    pairs = [one for one in quick.modules() if isinstance(one, Convolution) and one.after]
    norms = [one for one in quick.modules() if isinstance(one, nn.BatchNorm2d)]
    apart = [one for one in norms if not type(one).__name__.startswith("Folded")]
    assert len(pairs) == len(norms) - len(apart) > 0
    calls = []
    real = F.batch_norm
    monkeypatch.setattr(F, "batch_norm", lambda *given, **named: calls.append(1) or real(*given, **named))
    with torch.no_grad():
        quick.eval().forward_features(torch.randn(1, 3, 64, 64))
    assert len(calls) == len(apart)  # those after a convolution that pads by itself
    calls.clear()
    quick.train().forward_features(torch.randn(2, 3, 64, 64))
    assert len(calls) == len(norms)


class Shared(nn.Module):
    """The norm's input is also used elsewhere, so folding would change the result."""

    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)

    def forward_features(self, images):
        first = self.convolution(images)
        return first + self.norm(first)


def test_a_result_that_is_used_twice_is_not_folded():
    net = Shared()
    make_quick(net, torch.randn(1, 3, 8, 8))
    assert type(net.norm) is nn.BatchNorm2d
    assert net.convolution.after == ()


def test_a_copy_folds_its_own_norm():
    _, quick = both("small_conv")
    twin = copy.deepcopy(quick).eval()
    pairs = [(one, other) for one, other in zip(quick.modules(), twin.modules(), strict=True) if hasattr(one, "after")]
    assert pairs
    for one, other in pairs:
        assert other.after[0] is not one.after[0]
        assert any(other.after[0] is module for module in twin.modules())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = quick.eval().forward_features(images)
        for module in twin.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.add_(1.0)
        assert torch.equal(quick.forward_features(images), before)
        assert not torch.allclose(twin.forward_features(images), before)


def test_activations_that_would_keep_a_copy_are_not_done_in_place_in_training():
    backbone = Backbone("mobilenetv2_035", 32)
    clipped = [one for one in backbone.modules() if isinstance(one, nn.ReLU6)]
    assert clipped
    assert not any(one.inplace for one in clipped)
    assert all(one.inplace for one in backbone.eval().modules() if isinstance(one, nn.ReLU6))
    plain = [one for one in Backbone("small_conv", 32).train().modules() if isinstance(one, nn.ReLU)]
    assert all(one.inplace for one in plain)  # ReLU's gradient needs no copy


@pytest.mark.parametrize(("name", "size"), [("eca_nfnet_l0", 64), ("eva02_tiny_patch14_224", 56)])
def test_an_input_that_is_read_again_is_not_overwritten(name, size):
    torch.manual_seed(0)
    backbone = Backbone(name, size).eval()
    plain = timm.create_model(name, num_classes=0, **({"img_size": size} if "eva" in name else {})).eval()
    with torch.no_grad():
        for key, parameter in backbone.net.named_parameters():
            if key.endswith("skipinit_gain"):
                parameter.fill_(0.5)
    plain.load_state_dict(backbone.net.state_dict())
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        expected = backbone._oriented(plain.forward_features(images))
        torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_a_folded_network_can_be_pickled():
    for name in ("small_conv", "test_efficientnet"):
        backbone, images = Backbone(name, 32).eval(), torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            assert torch.equal(pickle.loads(pickle.dumps(backbone))(images), backbone(images))


def test_a_norm_in_training_does_not_stand_still():
    norm, images = nn.BatchNorm2d(3), torch.zeros(1, 3, 2, 2)
    assert not stands_still(norm, images)
    assert stands_still(norm.eval(), images)
    assert not stands_still(norm, images.to("meta"))  # accelerators keep their own way
