"""Fine-tuning, the two ways to count an unknown label, and joint training."""

import torch

from mlcil.losses.asymmetric import asymmetric_loss


def old_head_gradient(world, method, second):
    method.before_session(second, world.infer)
    method.tagger.zero_grad()
    sum(method.losses(world.batch(second)).values()).backward()
    assert method.tagger.heads[1].weight.grad.abs().max() > 0
    return method.tagger.heads[0].weight.grad


def test_unbelieved_old_classes_get_no_gradient(world):
    first, second = world.sessions()[:2]
    method = world.make("ft")
    world.learn(first)
    with torch.no_grad():  # old class 0 below the clip of 0.05, old class 1 far above
        method.tagger.heads[0].weight.mul_(0.01)
        method.tagger.heads[0].bias.copy_(torch.tensor([-6.0, 0.0]))
    gradient = old_head_gradient(world, method, second)
    assert (gradient[0] == 0).all()
    assert gradient[1].abs().max() > 0


def test_ignored_labels_give_old_heads_no_gradient(world):
    first, second = world.sessions()[:2]
    method = world.make("ft", missing="ignore")
    world.learn(first)
    with torch.no_grad():
        method.tagger.heads[0].bias.fill_(3.0)
    assert (old_head_gradient(world, method, second) == 0).all()


def test_unknown_labels_count_as_absent(world):
    second = world.sessions()[1]
    method = world.make("ft")
    world.learn(world.sessions()[0])
    method.before_session(second, world.infer)
    method.tagger.eval()
    batch = world.batch(second)
    assert (batch.labels[:, :2] == -1).all()
    logits = method.tagger(batch.images).logits
    expected = asymmetric_loss(logits, batch.labels.clamp(min=0)).mean()
    assert list(method.losses(batch)) == ["classification"]
    assert torch.equal(method.losses(batch)["classification"], expected)


def test_fine_tuning_keeps_no_teacher_and_asks_nothing(world):
    method = world.make("ft")
    for session in world.sessions():
        world.learn(session, steps=1)
        assert method.teacher is None
    assert world.passes == []
    assert method.notes() == {}


def test_joint_sees_every_class_in_one_session(world):
    (session,) = world.sessions("joint")
    method = world.make("joint")
    assert method.is_joint
    assert not world.make("ft").is_joint
    world.method = method
    world.learn(session, steps=2)
    assert method.tagger.sizes == [6]
    assert (world.batch(session).labels >= 0).all()
    assert method.predict(world.images).shape == (24, 6)
