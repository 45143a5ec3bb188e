"""Every kind of network gives one kind of feature map."""

from copy import deepcopy

import pytest
import timm
import torch
from torch import nn

from mlcil.core.errors import UserError
from mlcil.models.backbone import Backbone
from mlcil.models.weights import load_weights

NETS = ["small_conv", "test_vit", "test_resnet", "test_efficientnet", "test_convnext"]
REAL = {"deit_tiny_patch16_224": (192, 14), "mobilenetv2_100": (1280, 7), "tf_efficientnet_lite0": (1280, 7)}


def frozen(name, size, amount):
    """A backbone of which so much is frozen; the same weights each time."""
    torch.manual_seed(0)
    backbone = Backbone(name, size)
    backbone.freeze(str(amount))
    return backbone


def whole(backbone, batch):
    return backbone(backbone.stem(batch))


def images(size, count=2, seed=0):
    """In the layout that `Backbone` gives its network: another one may be rounded differently."""
    made = torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return made.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NETS)
def test_a_feature_map(name):
    backbone = Backbone(name, 64)
    features = backbone(images(64))
    assert features.shape == (2, backbone.channels, *backbone.grid)
    assert features.isfinite().all()
    assert backbone.training


def test_tokens_become_a_map_in_reading_order():
    backbone = Backbone("test_vit", 64).eval()
    with torch.no_grad():
        tokens, features = backbone.net.forward_features(images(64)), backbone(images(64))
    assert backbone.prefix_tokens == 1
    assert backbone.grid == (4, 4)
    assert torch.equal(features[:, :, 1, 2], tokens[:, 1 + 1 * 4 + 2])


def test_channels_last_nets_are_turned():
    backbone = Backbone("swin_tiny_patch4_window7_224", 64).eval()
    with torch.no_grad():
        raw, features = backbone.net.forward_features(images(64, 1)), backbone(images(64, 1))
    assert raw.shape == (1, 2, 2, 768)
    assert features.shape == (1, 768, 2, 2)
    assert torch.equal(features[0, :, 0, 1], raw[0, 0, 1])


def test_the_grid_follows_the_image_size():
    assert Backbone("small_conv", 32).grid == (4, 4)
    assert Backbone("small_conv", 48).grid == (6, 6)
    assert Backbone("test_vit", 96).grid == (6, 6)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UserError, match=r"unknown backbone 'test_resnt', did you mean 'test_resnet'\?") as error:
        Backbone("test_resnt", 32)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(UserError, match="did you mean 'small_conv'"):
        Backbone("smal_conv", 32)
    with pytest.raises(UserError, match="did you mean 'resnet50'"):
        Backbone("resnt50", 32)


def test_an_unknown_tag_is_one_line():
    with pytest.raises(UserError, match=r"test_vit\.nowhere") as error:
        Backbone("test_vit.nowhere", 64)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("name", "size"), [("small_conv", 4), ("test_vit", 60), ("test_vit", 1)])
def test_an_impossible_size_is_one_line(name, size):
    with pytest.raises(UserError, match=f"{size} pixels") as error:
        Backbone(name, size)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet", "mobilenetv2_100"])
def test_normalisation_is_that_of_the_net(name):
    backbone, configuration = Backbone(name, 64), timm.get_pretrained_cfg(name)
    assert (backbone.mean, backbone.std) == (configuration.mean, configuration.std)
    assert Backbone("small_conv", 32).mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("stages", [0, 1, 2])
def test_freezing_fixes_the_first_stages_alone(name, stages):
    backbone = frozen(name, 64, stages).train()
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    features = whole(backbone, images(64, 4))
    features.square().mean().backward()
    named = {key: one for key, one in backbone.named_parameters() if not key.startswith("net.head.")}
    fixed = {key for key, parameter in named.items() if not parameter.requires_grad}
    taught = {key for key, parameter in named.items() if parameter.grad is not None}
    every = set(named)
    assert bool(fixed) == bool(stages)
    assert not fixed & taught
    assert fixed | taught == every
    moved = {key for key, value in backbone.state_dict().items() if not torch.equal(value, before[key])}
    for key, module in backbone.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            is_frozen = f"{key}.weight" in fixed
            assert (f"{key}.running_mean" in moved) != is_frozen
            assert module.training != is_frozen


def test_each_further_stage_freezes_more():
    counts = []
    for stages in range(8):
        backbone = frozen("test_vit", 64, stages)
        counts.append(sum(not parameter.requires_grad for parameter in backbone.parameters()))
    assert counts == [0, 4, 16, 28, 40, 52, 64, 78]


def test_all_before_a_named_module_is_frozen():
    backbone = frozen("test_efficientnet", 64, "conv_head")
    trained = {name for name, parameter in backbone.net.named_parameters() if parameter.requires_grad}
    assert trained == {"conv_head.weight", "bn2.weight", "bn2.bias"}
    batch, whole_net = images(64), Backbone("test_efficientnet", 64).eval()
    whole_net.load_state_dict(backbone.state_dict())
    assert torch.allclose(whole(backbone.eval(), batch), whole_net(batch), atol=1e-5)
    assert backbone.stem(batch).shape[1] == backbone.net.conv_head.in_channels


@pytest.mark.parametrize("amount", ["conv_hea", "9", "-1", "conv_stem"])
def test_what_cannot_be_frozen_is_refused(amount):
    with pytest.raises(UserError, match=f"freeze: got '{amount}', expected none, all, 0 to .* bn2"):
        frozen("test_efficientnet", 64, amount)


def test_a_transformer_keeps_training_what_is_not_frozen():
    backbone = frozen("test_vit", 64, 2).train()
    assert [block.training for block in backbone.net.blocks] == [False, True, True, True, True, True]
    assert all(module.training for module in backbone.net.blocks[1].modules())


def test_frozen_stages_stay_in_evaluation_mode():
    backbone = frozen("small_conv", 32, 2)
    backbone.eval().train()
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [norm.training for norm in norms] == [False, False, True, True]


@pytest.mark.parametrize("name", ["small_conv", "test_resnet", "test_efficientnet"])
def test_statistics_that_are_kept_are_used_and_stay_while_scale_and_shift_learn(name):
    backbone, batch = frozen(name, 64, "none"), images(64, 4)
    norms = [one for one in backbone.modules() if isinstance(one, nn.BatchNorm2d)]  # also timm's with an activation
    backbone.train()(batch)  # no longer a mean of 0 and a variance of 1
    before = [[value.clone() for value in norm.buffers()] for norm in norms]
    expected = backbone.eval()(batch).detach()
    backbone.keep_statistics(True)
    features = backbone.train()(batch)
    features.square().mean().backward()
    torch.testing.assert_close(features.detach(), expected)
    for norm, values in zip(norms, before, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(norm.buffers(), values, strict=True))
        assert norm.weight.grad is not None
        assert norm.bias.grad is not None
    within = [module for module in backbone.modules() if module not in norms]
    assert all(module.training for module in within)
    backbone.keep_statistics(False)
    assert all(norm.training for norm in norms)


def test_frozen_stages_stay_as_they_are_where_statistics_are_kept_no_longer():
    backbone = frozen("small_conv", 32, 2)
    for is_kept in (True, False):
        backbone.keep_statistics(is_kept)
        norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
        assert [norm.training for norm in norms] == [False, False, not is_kept, not is_kept]
    backbone.stop_training()
    assert not any(norm.training for norm in norms)


def test_what_the_features_do_not_use_is_not_trained():
    backbone = Backbone("convnext_atto", 64).train()
    backbone(images(64)).sum().backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in backbone.parameters())


@pytest.mark.parametrize(("name", "most"), [("small_conv", 4), ("test_resnet", 5), ("test_vit", 7)])
def test_too_many_stages(name, most):
    assert not any(parameter.requires_grad for parameter in frozen(name, 64, most).parameters())
    for count in (most + 1, -1, "some"):
        with pytest.raises(
            UserError, match=f"got '{count}', expected none, all, 0 to {most}, the stages of {name}, or"
        ):
            frozen(name, 64, count)


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_weights(shared, name):
    file = shared / "weights" / f"{name}.safetensors"
    if not file.is_file():
        pytest.skip(f"needs {file.name}")
    channels, side = REAL[name]
    backbone = Backbone(name, 224).eval()
    random = next(backbone.parameters()).clone()
    assert load_weights(backbone, str(file), {80}) == file
    assert not torch.equal(next(backbone.parameters()), random)
    with torch.no_grad():
        features = backbone(images(224, 1))
    assert features.shape == (1, channels, side, side)
    assert features.isfinite().all()
    assert features.std() > 0.01
    assert {parameter.dtype for parameter in backbone.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("stages", [0, 1])
def test_all_can_be_frozen(name, stages):
    backbone = frozen(name, 64, stages)
    backbone.freeze("all")
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    expected = whole(backbone.eval(), images(64, 4))
    features = whole(backbone.train(), images(64, 4))
    assert not features.requires_grad
    assert torch.equal(features, expected)  # training mode makes no difference
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    assert not any(module.training for module in backbone.net.modules())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_a_frozen_net_is_in_evaluation_mode_at_once():
    backbone = Backbone("small_conv", 32).train()
    backbone.freeze("all")
    assert not any(module.training for module in backbone.net.modules())


@pytest.mark.parametrize("name", NETS)
def test_watched_stages_give_their_maps(name):
    backbone = Backbone(name, 64).eval()
    plain = backbone(images(64))
    assert backbone.take_maps() == ()
    assert backbone.watched == 0
    backbone.watch_stages()
    features = backbone(images(64))
    maps = backbone.take_maps()
    assert torch.equal(features, plain)
    assert len(maps) == backbone.watched == 4
    assert all(one.ndim == 4 and len(one) == 2 and one.isfinite().all() for one in maps)
    sides = [one.shape[2] for one in maps]
    assert sides == sorted(sides, reverse=True)
    assert all(one.shape[2] == one.shape[3] for one in maps)
    maps[0].sum().backward()
    assert any(parameter.grad is not None for parameter in backbone.parameters())


def test_maps_are_those_of_the_blocks_in_order():
    backbone, value = Backbone("small_conv", 32).eval(), images(32)
    expected = []
    for block in backbone.net.blocks:
        value = block(value)
        expected.append(value.clone())
    backbone.watch_stages()
    features = backbone(images(32))
    maps = backbone.take_maps()
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert torch.equal(maps[-1], features)


def test_maps_of_a_transformer_are_its_last_blocks_patches():
    backbone, tokens = Backbone("test_vit", 64).eval(), []
    hooks = [block.register_forward_hook(lambda *call: tokens.append(call[2])) for block in backbone.net.blocks]
    backbone.watch_stages()
    backbone(images(64))
    for hook in hooks:
        hook.remove()
    maps = backbone.take_maps()
    assert [one.shape for one in maps] == [(2, 64, 4, 4)] * 4
    for one, other in zip(maps, tokens[-4:], strict=True):
        assert torch.equal(one[:, :, 1, 2], other[:, 1 + 1 * 4 + 2])


def test_maps_of_channels_last_nets_are_turned():
    backbone = Backbone("swin_tiny_patch4_window7_224", 64).eval()
    backbone.watch_stages()
    with torch.no_grad():
        backbone(images(64, 1))
    shapes = [tuple(one.shape) for one in backbone.take_maps()]
    assert shapes == [(1, 96, 16, 16), (1, 192, 8, 8), (1, 384, 4, 4), (1, 768, 2, 2)]


def test_maps_are_given_once():
    backbone = Backbone("small_conv", 32).eval()
    backbone.watch_stages()
    for _ in range(2):
        backbone(images(32))
        assert len(backbone.take_maps()) == 4
        assert backbone.take_maps() == ()


@pytest.mark.parametrize("name", NETS)
def test_a_copy_keeps_its_own_maps(name):
    backbone = Backbone(name, 64).eval()
    backbone.watch_stages()
    copy = deepcopy(backbone)
    backbone(images(64))
    assert copy.take_maps() == ()
    copy(images(64, seed=1))
    ours, theirs = backbone.take_maps(), copy.take_maps()
    assert len(ours) == len(theirs) == 4
    assert not any(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_net_that_names_no_stages_cannot_be_watched():
    backbone = Backbone("test_vit", 64)
    del backbone.net.feature_info
    with pytest.raises(UserError, match=r"^backbone 'test_vit' does not say what its stages are") as error:
        backbone.watch_stages()
    assert len(str(error.value).splitlines()) == 1


CUTS = [("small_conv", 2), ("test_efficientnet", 3), ("test_resnet", 2), *((name, "all") for name in NETS)]


@pytest.mark.parametrize(("name", "amount"), CUTS)
def test_stem_and_trunk_are_the_network(name, amount):
    backbone, batch = frozen(name, 64, amount).eval(), images(64)
    assert backbone.has_stem
    given = backbone.stem(batch)
    assert not given.requires_grad
    assert given.ndim == 4
    assert torch.equal(backbone(given), frozen(name, 64, "none").eval()(batch))


@pytest.mark.parametrize(("name", "amount"), [("small_conv", "none"), ("test_vit", 2), ("resmlp_12_224", 1)])
def test_what_cannot_be_cut_has_no_stem(name, amount):
    size = 224 if name == "resmlp_12_224" else 64
    backbone = frozen(name, size, amount)
    assert not backbone.has_stem
    assert torch.equal(backbone.stem(images(size)), images(size))


def test_stopping_training_leaves_the_stem_as_it_was():
    backbone, batch = frozen("small_conv", 32, 2).eval(), images(32)
    given, expected = backbone.stem(batch), whole(backbone, batch)
    backbone.stop_training()
    assert torch.equal(backbone(given), expected)
    assert not any(parameter.requires_grad for parameter in backbone.parameters())


@pytest.mark.parametrize(("name", "amount"), CUTS[:3])
def test_only_the_trunk_gives_maps(name, amount):
    backbone, entire = frozen(name, 64, amount).eval(), frozen(name, 64, "none").eval()
    for one in (backbone, entire):
        one.watch_stages()
    given = backbone.stem(images(64))
    assert backbone.take_maps() == ()
    backbone(given)
    entire(images(64))
    some, every = backbone.take_maps(), entire.take_maps()
    assert 0 < len(some) < len(every) == backbone.watched == 4
    assert all(torch.equal(one, other) for one, other in zip(some, every[-len(some) :], strict=True))


def test_the_stems_name_follows_network_cut_and_frozen_weights():
    names = {frozen("small_conv", 64, amount).stem_digest() for amount in (1, 2, "all")}
    assert len(names) == 3
    backbone = frozen("small_conv", 64, 2)
    assert backbone.stem_digest() in names
    with torch.no_grad():
        backbone.net.blocks[3][0].weight.zero_()  # of the trunk
    assert backbone.stem_digest() in names
    with torch.no_grad():
        backbone.net.blocks[0][0].weight[0, 0, 0, 0] += 1
    assert backbone.stem_digest() not in names
