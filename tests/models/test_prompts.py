"""Prompts are chosen by the image, steer a net that never changes, and learn from the right term."""

from collections import Counter
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

from mlcil.core.errors import UserError
from mlcil.models.backbone import Backbone
from mlcil.models.prompts import PromptedTagger, choose

SHAPE = {"pool": 6, "length": 3, "chosen": 2}
CHANNELS, PATCHES = 64, 4
SMALL = {"img_size": 32, "patch_size": 16, "embed_dim": CHANNELS, "depth": 2, "num_heads": 2, "num_classes": 0}
NETS = {  # with what the net has in front of its patches
    "class token": (lambda: None, 1),
    "registers": (lambda: VisionTransformer(**SMALL, reg_tokens=4), 5),
    "registers alone": (lambda: VisionTransformer(**SMALL, class_token=False, reg_tokens=2, global_pool="avg"), 2),
    "patches alone": (lambda: VisionTransformer(**SMALL, class_token=False, global_pool="avg", fc_norm=False), 0),
    "distilled": (lambda: VisionTransformerDistilled(**SMALL), 2),
    "norm before": (lambda: VisionTransformer(**SMALL, pre_norm=True), 1),
}


def images(count=7):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def tagger(kind="class token", shape=SHAPE, sessions=(2, 3), unfreeze=False, seed=0):
    torch.manual_seed(seed)
    backbone = Backbone("test_vit", 32)
    backbone.net = NETS[kind][0]() or backbone.net
    with torch.no_grad():  # fresh nets say nearly the same of every image
        for parameter in backbone.net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model = PromptedTagger(backbone, **{"batchwise": True} | shape, unfreeze=unfreeze)
    for classes in sessions:
        model.grow(classes)
    return model


def seen_by_blocks(model, batch):
    """The tokens that the first block receives, call by call."""
    seen = []
    hook = model.backbone.net.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(batch)
    hook.remove()
    return seen


def literal_query(net, image):
    features = net.forward_features(image[None])[0]
    feature = features[0] if net.has_class_token else features[net.num_prefix_tokens :].mean(0)
    return net.fc_norm(feature)


def literal_ids(model, query):
    """The pool's best, one cosine at a time."""
    cosines = [float(query @ key / (query.norm() * key.norm())) for key in model.keys]
    return sorted(range(len(cosines)), key=lambda place: (-cosines[place], place))[: model.chosen]


def literal_logits(model, image, ids):
    """One image through the net, token by token."""
    net = model.backbone.net
    names = [name for name in ("cls_token", "dist_token", "reg_token") if getattr(net, name, None) is not None]
    prefix = [row for name in names for row in getattr(net, name)[0]]
    patches = list(net.patch_embed(image[None]).reshape(-1, CHANNELS))
    placed = [token + place for token, place in zip(prefix + patches, net.pos_embed[0], strict=True)]
    prompts = [row for place in ids for row in model.prompts[place]]
    tokens = torch.stack(placed[: len(prefix)] + prompts + placed[len(prefix) :])[None]
    tokens = net.norm_pre(tokens)
    for block in net.blocks:
        tokens = block(tokens)
    outputs = net.norm(tokens)[0, len(prefix) : len(prefix) + len(prompts)]
    feature = net.fc_norm(sum(outputs) / len(outputs))
    return torch.cat([head.weight @ feature + head.bias for head in model.heads])


def test_reference_value_of_the_pull_term():
    queries = torch.tensor([[1.0, 0], [0, 1]])
    keys = torch.tensor([[2.0, 0], [1, 1], [0, -1]])
    ids, match = choose(queries, keys, 2, batchwise=False)
    assert ids.tolist() == [[0, 1], [1, 0]]
    assert match.tolist() == pytest.approx([1.707107, 0.707107], abs=1e-6)
    assert match.mean().item() == pytest.approx(1.207107, abs=1e-6)


def test_the_batch_takes_what_most_images_ask_for():
    keys = torch.eye(3)
    queries = torch.tensor([[0, 0, 1.0], [0, 0, 1], [0, 1, 0], [1, 0, 0]])
    ids, match = choose(queries, keys, 1, batchwise=True)
    assert ids.tolist() == [[2]] * 4
    assert match.tolist() == [1, 1, 0, 0]


@given(
    queries=st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=8),
    keys=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-1, 1])), min_size=1, max_size=7),
    data=st.data(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_equal_similarities_and_equal_votes_go_to_the_lower_id(queries, keys, data):
    count = data.draw(st.integers(1, len(keys)))
    # Keys along the axes make cosines of equal products equal to the bit.
    wanted = [sorted(range(len(keys)), key=lambda m: (-keys[m][1] * query[keys[m][0]], m)) for query in queries]
    wanted = [one[:count] for one in wanted]
    votes = Counter(place for one in wanted for place in one)
    elected = sorted(range(len(keys)), key=lambda m: (-votes[m], m))[:count]
    directions = torch.zeros(len(keys), 3)
    for row, (axis, sign) in zip(directions, keys, strict=True):
        row[axis] = 3.0 * sign
    given_queries = torch.tensor(queries, dtype=torch.float32)
    assert choose(given_queries, directions, count, batchwise=False)[0].tolist() == wanted
    assert choose(given_queries, directions, count, batchwise=True)[0].tolist() == [elected] * len(queries)


def test_similarity_stays_in_single_precision_under_autocast():
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(20, 48, generator=generator), torch.randn(10, 48, generator=generator)
    plain = choose(queries, keys, 4, batchwise=False)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = choose(queries, keys, 4, batchwise=False)
        output = tagger()(images())
    assert mixed[1].dtype == output.match.dtype == torch.float32
    assert torch.equal(mixed[0], plain[0])
    assert torch.equal(mixed[1], plain[1])


@pytest.mark.parametrize("kind", NETS)
def test_equal_to_the_literal_forward_in_testing(kind):
    model, batch = tagger(kind).eval(), images()
    with torch.no_grad():
        output = model(batch)
        queries = [literal_query(model.backbone.net, image) for image in batch]
        ids = [literal_ids(model, query) for query in queries]
        logits = [literal_logits(model, image, one) for image, one in zip(batch, ids, strict=True)]
        match = [torch.cosine_similarity(q, model.keys[one]).sum() for q, one in zip(queries, ids, strict=True)]
    assert len({tuple(one) for one in ids}) > 1
    assert output.logits.std(0).min() > 1e-3
    torch.testing.assert_close(output.logits, torch.stack(logits), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.match, torch.stack(match), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", NETS)
def test_equal_to_the_literal_forward_in_training(kind):
    model, batch = tagger(kind).train(), images()
    with torch.no_grad():
        output = model(batch)
        queries = [literal_query(model.backbone.net, image) for image in batch]
        votes = Counter(place for query in queries for place in literal_ids(model, query))
        elected = sorted(range(SHAPE["pool"]), key=lambda place: (-votes[place], place))[: SHAPE["chosen"]]
        logits = [literal_logits(model, image, elected) for image in batch]
        match = [torch.cosine_similarity(query, model.keys[elected]).sum() for query in queries]
    assert len(votes) > SHAPE["chosen"]
    torch.testing.assert_close(output.logits, torch.stack(logits), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(output.match, torch.stack(match), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("shape", [SHAPE, {"pool": 5, "length": 1, "chosen": 5}, {"pool": 4, "length": 7, "chosen": 1}])
def test_prompts_stand_between_prefix_and_patches(kind, shape):
    model, prefix = tagger(kind, shape).eval(), NETS[kind][1]
    model.backbone.net.norm_pre = torch.nn.Identity()  # prompts are compared as they are
    plain, prompted = seen_by_blocks(model, images(3))
    extra = shape["chosen"] * shape["length"]
    assert plain.shape == (3, prefix + PATCHES, CHANNELS)
    assert prompted.shape == (3, prefix + extra + PATCHES, CHANNELS)
    assert torch.equal(torch.cat([prompted[:, :prefix], prompted[:, prefix + extra :]], dim=1), plain)
    known = {tuple(row.tolist()) for row in model.prompts.flatten(0, 1)}
    assert {tuple(row.tolist()) for row in prompted[:, prefix : prefix + extra].flatten(0, 1)} <= known


@pytest.mark.parametrize(
    ("training", "batchwise", "shared"), [(1, 1, True), (1, 0, False), (0, 1, False), (0, 0, False)]
)
def test_only_training_shares_prompts_across_the_batch(training, batchwise, shared):
    model = tagger(shape=SHAPE | {"batchwise": bool(batchwise)}).train(bool(training))
    prompts = seen_by_blocks(model, images())[1][:, 1:7]
    assert torch.equal(prompts, prompts[:1].expand_as(prompts)) is shared


@pytest.mark.parametrize("kind", NETS)
def test_predictions_do_not_depend_on_the_other_images(kind):
    model, batch = tagger(kind).eval(), images()
    with torch.no_grad():
        together = model(batch)
        alone = torch.cat([model(image[None]).logits for image in batch])
        backwards = model(batch.flip(0))
    torch.testing.assert_close(together.logits, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(together.logits, backwards.logits.flip(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(together.match, backwards.match.flip(0), atol=1e-5, rtol=0)


def test_the_order_of_the_pool_is_of_no_consequence():
    model, batch = tagger().eval(), images()
    other = deepcopy(model)
    with torch.no_grad():
        other.keys.copy_(model.keys.flip(0))
        other.prompts.copy_(model.prompts.flip(0))
        torch.testing.assert_close(other(batch).logits, model(batch).logits, atol=1e-5, rtol=0)


def trainable_count(pool, length, channels, classes):
    return pool * channels + pool * length * channels + channels * classes + classes


def test_number_of_trainable_parameters_of_the_published_net():
    with torch.device("meta"):
        model = PromptedTagger(Backbone("vit_base_patch16_224", 224), 10, 10, 4, True, False)
        for classes in (40, 10, 10, 10, 10):
            model.grow(classes)
    count = sum(one.numel() for one in model.parameters() if one.requires_grad)
    assert count == trainable_count(10, 10, 768, 80) == 146_000


def test_keys_and_prompts_start_uniform():
    model = tagger(shape={"pool": 50, "length": 4, "chosen": 1})
    for start in (model.keys, model.prompts):
        assert start.abs().max() <= 1
        assert start.mean().abs() < 0.05
        assert start.std().item() == pytest.approx(3**-0.5, abs=0.02)


def steps(model, count=3):
    optimiser = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], lr=0.01)
    model.train()
    for _ in range(count):
        output = model(images())
        loss = output.logits.square().mean() - output.match.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@pytest.mark.parametrize("kind", NETS)
def test_training_leaves_the_backbone_bit_identical(kind):
    model = tagger(kind)
    before = deepcopy(model.state_dict())
    steps(model)
    after = model.state_dict()
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert unchanged == {name for name in before if name.startswith("backbone.")}
    assert model.training
    assert not any(module.training for module in model.backbone.net.modules())


def test_an_unfrozen_backbone_is_trained_but_not_by_the_match():
    model = tagger(unfreeze=True).train()
    model(images()).match.sum().backward()
    assert [name for name, one in model.named_parameters() if one.grad is not None] == ["keys"]
    before = deepcopy(model.backbone.state_dict())
    steps(model, 1)
    moved = [name for name, value in model.backbone.state_dict().items() if not torch.equal(before[name], value)]
    assert model.backbone.net.training
    assert {"net.cls_token", "net.pos_embed", "net.patch_embed.proj.weight", "net.norm.weight"} <= set(moved)


def test_keys_learn_from_the_match_alone():
    model = tagger()
    model(images()).match.sum().backward()
    assert [name for name, one in model.named_parameters() if one.grad is not None] == ["keys"]
    chosen = model.keys.grad.abs().sum(1) > 0
    assert chosen.sum() == SHAPE["chosen"]


def test_pulling_makes_query_and_keys_more_similar():
    model = tagger(shape={"pool": 2, "length": 1, "chosen": 2})
    before = model(images()).match.mean().item()
    steps(model, 5)
    assert model(images()).match.mean().item() > before + 0.01


def test_prompts_and_heads_learn_from_the_logits_alone():
    model = tagger()
    model(images()).logits.square().sum().backward()
    graded = {name for name, one in model.named_parameters() if one.grad is not None}
    assert graded == {name for name, one in model.named_parameters() if one.requires_grad} - {"keys"}
    assert all(head.weight.grad.abs().sum() > 0 for head in model.heads)
    chosen = model.prompts.grad.abs().sum((1, 2)) > 0
    assert chosen.sum() == SHAPE["chosen"]


@pytest.mark.parametrize("name", ["small_conv", "test_resnet"])
def test_other_nets_are_refused(name):
    with pytest.raises(UserError, match=f"backbone '{name}' cannot take prompts.*Allowed.*vit_base_patch16_224"):
        PromptedTagger(Backbone(name, 32), 6, 3, 2, True, False)


def test_a_pool_too_small_is_refused():
    with pytest.raises(UserError, match="prompts chosen per image: got 4, expected 1 to 3"):
        tagger(shape={"pool": 3, "length": 1, "chosen": 4})
