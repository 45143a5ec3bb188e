"""What every method shares."""

import torch

from mlcil.methods.base import frozen_copy
from mlcil.models.backbone import Backbone
from mlcil.models.tagger import TaggerNet


def test_a_teacher_keeps_what_it_knows():
    torch.manual_seed(0)
    tagger = TaggerNet(Backbone("small_conv", 16))
    tagger.grow(3)
    teacher = frozen_copy(tagger.train())
    assert not teacher.training
    assert not any(one.requires_grad for one in teacher.parameters())
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        before = teacher(images).logits
    optimiser = torch.optim.SGD([one for one in tagger.parameters() if one.requires_grad], lr=1.0)
    tagger(images).logits.sum().backward()
    optimiser.step()
    with torch.no_grad():
        assert torch.equal(teacher(images).logits, before)
        assert not torch.allclose(tagger.eval()(images).logits, before)
