"""Cross-attention with shared patches against the published loop over sessions, and its promise of bit-stability."""

import pytest
import torch
import torch.nn.functional as F

from mlcil.models.attention import IncrementalCrossAttention

from .lively import gaussian, lively

READINGS = pytest.mark.parametrize("attend_to_query", [True, False])


def incremental(sessions, *, channels=6, grid=(3, 3), width=16, heads=4, attend_to_query=True):
    torch.manual_seed(sessions)
    block = IncrementalCrossAttention(channels, grid, width, heads, attend_to_query)
    for _ in range(sessions):
        block.open_session(1)
    return lively(block)


def literal_weights(block, tokens):
    """Softmax weights of the first token over all (or all but the first), (B, heads, tokens)."""
    attention, (batch, _, width) = block.attention, tokens.shape
    heads = attention.heads
    kept = tokens if block.attend_to_query else tokens[:, 1:]
    query = F.linear(tokens[:, :1], attention.query.weight).reshape(batch, 1, heads, -1).transpose(1, 2)
    key = F.linear(kept, attention.key.weight).reshape(batch, -1, heads, width // heads).transpose(1, 2)
    logits = (query * (width // heads) ** -0.5) @ key.transpose(-2, -1)
    return logits.softmax(dim=-1), kept


def literal_tokens(block, features, session):
    patches = (block.projection(features) + block.position).flatten(2).transpose(1, 2)
    batch = len(patches)
    kt, kr = block.kt.expand(batch, 1, -1), block.kr[session].expand(batch, 1, -1)
    return kt, block.attention.norm(torch.cat([kt, kr, patches], dim=1))


def literal(block, features):
    """One session after the other, each with its own sequence of tokens, (t, B, d)."""
    attention, embeddings = block.attention, []
    for session in range(len(block.kr)):
        kt, tokens = literal_tokens(block, features, session)
        weights, kept = literal_weights(block, tokens)
        batch, count, width = kept.shape
        value = F.linear(kept, attention.value.weight).reshape(batch, count, attention.heads, -1).transpose(1, 2)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, 1, width)
        out = kt + F.linear(mixed, attention.project.weight, attention.project.bias)
        hidden = F.gelu(F.linear(attention.mlp_norm(out), attention.mlp_in.weight, attention.mlp_in.bias))
        out = out + F.linear(hidden, attention.mlp_out.weight, attention.mlp_out.bias)
        embeddings.append(out[:, 0])
    return torch.stack(embeddings)


@READINGS
@pytest.mark.parametrize("sessions", [1, 2, 3, 4, 5])
def test_equal_to_one_pass_per_session(sessions, attend_to_query):
    block = incremental(sessions, attend_to_query=attend_to_query)
    features, push = gaussian(1, 5, 6, 3, 3), gaussian(2, sessions, 5, 16)
    fast, slow = torch.stack(block(features)), literal(block, features)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad((fast * push).sum(), list(block.parameters()))
    expected = torch.autograd.grad((slow * push).sum(), list(block.parameters()))
    for (name, _), one, other in zip(block.named_parameters(), got, expected, strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(one / scale, other / scale, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@READINGS
def test_the_two_readings_differ(attend_to_query):
    block = incremental(2, attend_to_query=attend_to_query)
    other = incremental(2, attend_to_query=not attend_to_query)
    features = gaussian(1, 2, 6, 3, 3)
    assert (block(features)[1] - other(features)[1]).abs().max() > 1e-3


@READINGS
def test_extreme_logits_stay_finite(attend_to_query):
    block = incremental(3, attend_to_query=attend_to_query)
    with torch.no_grad():
        block.attention.query.weight.mul_(300)
        block.attention.key.weight.mul_(300)
    embedded = torch.stack(block(gaussian(3, 2, 6, 3, 3)))
    torch.testing.assert_close(embedded, literal(block, gaussian(3, 2, 6, 3, 3)), rtol=1e-4, atol=1e-4)
    embedded.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())


@READINGS
def test_weights_are_those_of_the_literal_softmax(attend_to_query):
    block = incremental(3, attend_to_query=attend_to_query)
    features = gaussian(4, 2, 6, 3, 3)
    weights = block.weights(features)[..., :9]  # those of the patches
    for session in range(3):
        _, tokens = literal_tokens(block, features, session)
        expected = literal_weights(block, tokens)[0][:, :, 0]  # (B, heads, tokens and patches)
        torch.testing.assert_close(weights[session], expected[..., -9:], rtol=1e-5, atol=1e-6)
        on_tokens = expected[..., :-9].sum(-1)
        torch.testing.assert_close(weights[session].sum(-1) + on_tokens, torch.ones(2, 4))


@READINGS
@pytest.mark.parametrize("sessions", [1, 3])
def test_the_weights_given_back_change_nothing(sessions, attend_to_query):
    block = incremental(sessions, grid=(2, 3), attend_to_query=attend_to_query)
    features = gaussian(21, 4, 6, 2, 3)
    weights = block.weights(features)
    assert weights.shape == (sessions, 4, 4, 6 + (2 if attend_to_query else 1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(sessions, 4, 4))
    torch.testing.assert_close(block.embed(features, weights), block(features), rtol=1e-5, atol=1e-5)


@READINGS
def test_an_embedding_follows_the_weights_it_is_given(attend_to_query):
    block = incremental(3, attend_to_query=attend_to_query)
    features = gaussian(22, 2, 6, 3, 3)
    weights = block.weights(features)
    changed = weights.clone()
    changed[1] = changed[1].flip(-1)
    before, after = block.embed(features, weights), block.embed(features, changed)
    torch.testing.assert_close(after[::2], before[::2])
    assert (after[1] - before[1]).abs().amax() > 1e-3


@READINGS
def test_sessions_look_alike_up_to_scale_in_each_head_but_not_on_average(attend_to_query):
    block = incremental(3, attend_to_query=attend_to_query)
    features = gaussian(23, 2, 6, 3, 3)
    weights = block.weights(features)[..., :9]  # (t, B, heads, P)
    shape = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(shape, shape[:1].expand_as(shape))
    average = weights.mean(2) / weights.mean(2).sum(-1, keepdim=True)
    assert (average[0] - average[1]).abs().amax() > 1e-3


def test_positions_are_interpolated_for_another_size():
    block = incremental(2, grid=(4, 4))
    features = gaussian(6, 2, 6, 6, 5)
    assert [one.shape for one in block(features)] == [(2, 16)] * 2
    with torch.no_grad():
        block.position.copy_(gaussian(7, 1, 16, 1, 1).expand_as(block.position))
        flat = block.patches(features)
        expected = block.projection(features) + block.position[..., :1, :1]
    torch.testing.assert_close(flat, expected.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("batch", [1, 2, 7, 32])
@pytest.mark.parametrize(("width", "heads"), [(8, 2), (16, 4), (24, 8), (96, 8), (384, 8)])
def test_growing_leaves_old_embeddings_bit_equal(batch, width, heads):
    block = incremental(1, channels=12, grid=(2, 2), width=width, heads=heads)
    features = gaussian(batch, batch, 12, 2, 2)
    with torch.no_grad():
        before = block(features)
        for sessions in range(2, 6):
            block.open_session(1)
            after = block(features)
            assert [one.shape for one in after] == [(batch, width)] * sessions
            assert all(torch.equal(one, other) for one, other in zip(before, after, strict=False))
            before = after


def test_a_new_token_starts_small_and_unlike_the_others():
    torch.manual_seed(0)
    block = IncrementalCrossAttention(4, (2, 2), 256, 8, True)
    for _ in range(2):
        block.open_session(1)
    for token in block.kr:
        assert token.shape == (1, 256)
        assert 0.015 < token.std().item() < 0.025
    assert not torch.equal(block.kr[0], block.kr[1])


def test_autocast_gives_reduced_precision():
    block = incremental(2)
    with torch.autocast("cpu", torch.bfloat16):
        fast = block(gaussian(12, 2, 6, 3, 3))
    torch.testing.assert_close(fast[1].float(), block(gaussian(12, 2, 6, 3, 3))[1], rtol=0.1, atol=0.1)


def test_growing_leaves_old_embeddings_bit_equal_with_two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        test_growing_leaves_old_embeddings_bit_equal(7, 96, 8)
    finally:
        torch.set_num_threads(threads)
