"""Class queries against a literal loop over classes, and their promise that classes leave each other alone."""

import pytest
import torch
import torch.nn.functional as F

from mlcil.models.backbone import Backbone
from mlcil.models.class_queries import ClassQueryAttention, ClassRows
from mlcil.models.tagger import AttentionShape, TaggerNet

from .lively import gaussian, lively

READINGS = pytest.mark.parametrize("attend_to_query", [True, False])
LAYERS = pytest.mark.parametrize("layers", [1, 3])


def made(sizes, *, channels=6, grid=(3, 3), width=16, heads=4, layers=1, attend_to_query=True):
    torch.manual_seed(0)
    block = ClassQueryAttention(channels, grid, width, heads, layers, attend_to_query)
    for classes in sizes:
        block.open_session(classes)
    return lively(block)


def literal_block(block, query, patches):
    """One query (d,) of one image and its patches (P, d), head by head: the embedding and the weights of each head."""
    own = block.norm(query)[None]
    seen = torch.cat([block.norm(patches), own]) if block.attend_to_query else block.norm(patches)
    size, mixed, weights = len(query) // block.heads, [], []
    for head in range(block.heads):
        rows = slice(head * size, (head + 1) * size)
        q, k, v = (F.linear(x, m.weight[rows]) for x, m in ((own, block.query), (seen, block.key), (seen, block.value)))
        weights.append(((k @ q[0]) / size**0.5).softmax(0))
        mixed.append(weights[-1] @ v)
    out = query + block.project(torch.cat(mixed))
    return out + block.mlp_out(F.gelu(block.mlp_in(block.mlp_norm(out)))), torch.stack(weights)


def literal(attention, features):
    """Image by image and class by class: embeddings (B, K, d) and the last weights (B, K, heads, P + 1 or 0)."""
    patches = (attention.projection(features) + attention.position).flatten(2).transpose(1, 2)
    embeddings, weights = [], []
    for one in patches:
        for query in torch.cat(list(attention.queries)):
            for block in attention.blocks:
                query, last = literal_block(block, query, one)
            embeddings.append(query)
            weights.append(last)
    shape = (len(features), -1)
    return torch.stack(embeddings).unflatten(0, shape), torch.stack(weights).unflatten(0, shape)


@READINGS
@LAYERS
def test_equal_to_one_pass_per_image_and_class(layers, attend_to_query):
    attention = made((2, 3), layers=layers, attend_to_query=attend_to_query)
    features, push = gaussian(1, 4, 6, 3, 3), gaussian(2, 4, 5, 16)
    fast, (slow, _) = attention.by_image(attention(features)), literal(attention, features)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad((fast * push).sum(), list(attention.parameters()))
    expected = torch.autograd.grad((slow * push).sum(), list(attention.parameters()))
    for one, other in zip(got, expected, strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one / scale, other / scale, rtol=1e-4, atol=1e-5)


def test_a_query_sees_itself_unless_told_not_to():
    features = gaussian(1, 2, 6, 3, 3)
    with_itself, without = (made((2,), attend_to_query=one)(features)[0] for one in (True, False))
    assert (with_itself - without).abs().max() > 1e-3


@LAYERS
def test_every_class_may_stand_anywhere_in_its_session(layers):
    attention, order = made((2, 4), layers=layers), [2, 0, 3, 1]
    features = gaussian(3, 3, 6, 3, 3)
    with torch.no_grad():
        before = attention(features)
        attention.queries[1].copy_(attention.queries[1][order])
        after = attention(features)
    torch.testing.assert_close(after[1], before[1][:, order])
    assert torch.equal(after[0], before[0])
    assert (after[1] - before[1]).abs().max() > 1e-3


@READINGS
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batch", "width", "heads", "layers"), [(1, 8, 2, 2), (7, 96, 8, 1), (32, 384, 8, 1)])
def test_growing_leaves_old_embeddings_bit_equal(batch, width, heads, layers, threads, attend_to_query):
    attention = made((3,), channels=12, width=width, heads=heads, layers=layers, attend_to_query=attend_to_query)
    features, before_threads = gaussian(batch, batch, 12, 3, 3), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            before = attention.by_image(attention(features))
            for classes in (1, 4, 2):
                attention.open_session(classes)
                after = attention.by_image(attention(features))
                assert after.shape == (batch, before.shape[1] + classes, width)
                assert torch.equal(after[:, : before.shape[1]], before)
                before = after
    finally:
        torch.set_num_threads(before_threads)


@READINGS
@LAYERS
def test_weights_are_those_of_the_literal_softmax(layers, attend_to_query):
    attention = made((2, 3), grid=(2, 3), layers=layers, attend_to_query=attend_to_query)
    features = gaussian(4, 4, 6, 2, 3)
    _, expected = literal(attention, features)  # (B, K, heads, P + 1 or 0)
    weights = attention.weights(features)
    assert weights.shape == (2, 4, 4, 7 if attend_to_query else 6)
    torch.testing.assert_close(weights[1], expected[:, 2:].mean(1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 4))


@READINGS
@LAYERS
def test_the_average_weights_given_back_change_nothing(layers, attend_to_query):
    attention = made((2, 3), layers=layers, attend_to_query=attend_to_query)
    features = gaussian(5, 3, 6, 3, 3)
    weights = attention.weights(features)
    again, plain = attention.embed(features, weights), attention(features)
    torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-5)
    changed = attention.embed(features, torch.stack([weights[0], weights[1].flip(-1)]))
    torch.testing.assert_close(changed[0], plain[0], rtol=1e-5, atol=1e-5)
    assert (changed[1] - plain[1]).abs().max() > 1e-3


def test_the_weight_times_gradient_of_the_average_is_that_of_the_class():
    attention, features = made((3,)), gaussian(6, 2, 6, 3, 3)
    weights, push = attention.weights(features).detach().requires_grad_(), gaussian(7, 2, 16)
    (gradient,) = torch.autograd.grad((attention.embed(features, weights)[0][:, 1] * push).sum(), weights)
    embedded, own, value = attention._attend(features)
    own = own[0].detach().requires_grad_()
    (direct,) = torch.autograd.grad((attention._mix(embedded, [own], value)[0][:, 1] * push).sum(), own)
    torch.testing.assert_close((weights * gradient)[0], (own * direct)[:, :, 1], rtol=1e-4, atol=1e-6)


def test_positions_are_interpolated_for_another_size():
    attention = made((2,), grid=(4, 4))
    features = gaussian(8, 2, 6, 6, 5)
    assert attention(features)[0].shape == (2, 2, 16)
    assert attention.weights(features).shape == (1, 2, 4, 31)


def test_queries_start_small_and_unlike_each_other():
    torch.manual_seed(0)
    attention = ClassQueryAttention(4, (2, 2), 256, 8)
    attention.open_session(3)
    (queries,) = attention.session_tokens()
    assert queries.shape == (3, 256)
    assert ((queries.std(1) > 0.015) & (queries.std(1) < 0.025)).all()
    assert len(queries.unique(dim=0)) == 3


def test_each_row_of_a_head_reads_its_own_embedding():
    head = lively(ClassRows(8, 3))
    embeddings = gaussian(9, 2, 3, 8)
    expected = [head.rows(head.norm(embeddings[:, place]))[:, place] for place in range(3)]
    torch.testing.assert_close(head(embeddings), torch.stack(expected, 1))


def tagger(layers=1):
    torch.manual_seed(0)
    return TaggerNet(Backbone("small_conv", 32), AttentionShape(16, 4, per_class=True, layers=layers))


def test_autocast_gives_reduced_precision():
    attention, features = made((2,)), gaussian(11, 2, 6, 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        fast = attention(features)[0]
    torch.testing.assert_close(fast.float(), attention(features)[0], rtol=0.1, atol=0.1)
