"""Growing leaves old scores alone, to the bit."""

import pytest
import torch

from mlcil.models.backbone import Backbone
from mlcil.models.tagger import AttentionShape, TaggerNet

NETS = [("small_conv", 32), ("test_vit", 64), ("test_resnet", 64), ("test_efficientnet", 64)]
SHAPES = [None, AttentionShape(16, 4, True), AttentionShape(32, 8, False)]


def images(size, count=3):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


def tagger(name="small_conv", size=32, shape=None):
    torch.manual_seed(0)
    return TaggerNet(Backbone(name, size), shape)


@pytest.mark.parametrize(("name", "size"), NETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_growth_leaves_old_outputs_bit_equal(name, size, shape):
    model, batch = tagger(name, size, shape), images(size)
    model.grow(2)
    model.eval()
    with torch.no_grad():
        before = model(batch)
        for classes in (3, 1, 4):
            model.grow(classes)
            model.eval()
            after = model(batch)
            assert after.logits.shape[1] == before.logits.shape[1] + classes
            assert torch.equal(after.logits[:, : before.logits.shape[1]], before.logits)
            assert torch.equal(after.embeddings[:, : before.embeddings.shape[1]], before.embeddings)
            assert torch.equal(after.pooled, before.pooled)
            before = after
    assert before.logits.std() > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    model = tagger(shape=shape)
    for classes in (2, 3):
        model.grow(classes)
    output = model(images(32, 5))
    assert model.sizes == [2, 3]
    assert output.logits.shape == (5, 5)
    assert output.pooled.shape == (5, 128)
    assert output.embeddings.shape == ((5, 2, shape.width) if shape else (5, 0, 0))


def test_plain_heads_read_the_pooled_feature():
    model = tagger().eval()
    model.grow(2)
    model.grow(3)
    batch = images(32)
    output = model(batch)
    assert torch.equal(output.pooled, model.backbone(batch).mean((2, 3)))
    assert torch.equal(output.logits[:, 2:], model.heads[1](output.pooled))


def test_each_session_reads_its_own_embedding():
    model = tagger(shape=AttentionShape(16, 4)).eval()
    for classes in (2, 3):
        model.grow(classes)
    output = model(images(32))
    assert torch.equal(output.logits[:, :2], model.heads[0](output.embeddings[:, 0]))
    assert torch.equal(output.logits[:, 2:], model.heads[1](output.embeddings[:, 1]))


@pytest.mark.parametrize("shape", SHAPES)
def test_freezing_old_sessions(shape):
    model = tagger(shape=shape)
    for classes in (2, 3, 1):
        model.grow(classes)
    model.freeze_old_sessions()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    old = {name for name, _ in model.named_parameters() if name.startswith(("heads.0.", "heads.1."))}
    tokens = {"attention.kr.0", "attention.kr.1"} if shape else set()
    assert frozen == old | tokens
