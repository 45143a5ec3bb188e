"""Stored logits: each as wide as the classes of its time, found again by image."""

import pytest
import torch

from mlcil.memory.logits import StoredLogits


def images(*indices):
    return torch.tensor(indices, dtype=torch.int64)


def filled():
    """Images 3 and 8 of a time with two classes, image 5 of a time with three."""
    stored = StoredLogits()
    stored.put(images(3, 8), torch.tensor([[1.0, -1.0], [2.0, 0.0]]))
    stored.put(images(5), torch.tensor([[0.5, 0.25, -4.0]]))
    return stored


def test_logits_are_found_by_image_in_any_order_with_the_width_of_their_time():
    logits, known = filled().get(images(5, 8, 3, 8), 4)
    assert logits.tolist() == [[0.5, 0.25, -4, 0], [2, 0, 0, 0], [1, -1, 0, 0], [2, 0, 0, 0]]
    assert known.tolist() == [[True] * 3 + [False]] + [[True, True, False, False]] * 3
    assert logits.dtype == torch.float32
    assert known.dtype == torch.bool


def test_a_logit_of_zero_is_known():
    _, known = filled().get(images(8), 2)
    assert known.all()


def test_putting_again_replaces_and_may_widen():
    stored = filled()
    stored.put(images(3), torch.tensor([[7.0, 8.0, 9.0]]))
    logits, known = stored.get(images(3, 8), 3)
    assert logits.tolist() == [[7, 8, 9], [2, 0, 0]]
    assert known.tolist() == [[True] * 3, [True, True, False]]


def test_what_is_stored_does_not_follow_the_tensor_it_came_from():
    stored, said = StoredLogits(), torch.tensor([[1.0, 2.0]], requires_grad=True)
    stored.put(images(1), said)
    with torch.no_grad():
        said.mul_(10)
    logits, _ = stored.get(images(1), 2)
    assert logits.tolist() == [[1, 2]]
    assert not logits.requires_grad
    logits.zero_()
    assert stored.get(images(1), 2)[0].tolist() == [[1, 2]]


def test_half_precision_is_stored_as_float32():
    stored = StoredLogits()
    stored.put(images(1), torch.tensor([[0.5, -300.0]], dtype=torch.float16))
    assert stored.get(images(1), 2)[0].dtype == torch.float32


def test_images_and_rows_must_be_as_many():
    with pytest.raises(ValueError):
        StoredLogits().put(images(1, 2), torch.zeros(3, 2))


def test_all_but_the_kept_are_forgotten_and_unknown_ones_do_not_appear():
    stored = filled()
    stored.keep([8, 5, 99])
    assert [index in stored for index in (3, 5, 8, 99)] == [False, True, True, False]
    assert stored.get(images(8, 5), 3)[0].tolist() == [[2, 0, 0], [0.5, 0.25, -4]]
    stored.keep([])
    assert 8 not in stored
