import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.data.images import LabelledImages


def some_images(pixels=None):
    labels = np.array([[1, 0, -1], [0, 1, 1]], dtype=np.int8)
    return LabelledImages(("a.jpg", "b.jpg"), labels, ("cat", "dog", "owl"), "train", pixels)


def test_length_is_the_number_of_images():
    assert len(some_images()) == 2


def test_subset_takes_rows_in_the_given_order():
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    part = some_images(pixels).subset(np.array([1, 0]))
    assert part.paths == ("b.jpg", "a.jpg")
    assert part.labels.tolist() == [[0, 1, 1], [1, 0, -1]]
    assert part.pixels is not None
    np.testing.assert_array_equal(part.pixels, pixels[::-1])


def test_with_classes_reorders_and_cuts_columns():
    part = some_images().with_classes(["owl", "cat"])
    assert part.classes == ("owl", "cat")
    assert part.labels.tolist() == [[-1, 1], [1, 0]]


def test_with_classes_suggests_the_nearest_name():
    with pytest.raises(UserError, match="did you mean 'dog'"):
        some_images().with_classes(["dogg"])


def test_class_names_must_differ():
    with pytest.raises(UserError, match="stand twice: cat"):
        LabelledImages(("a.jpg",), np.zeros((1, 2), dtype=np.int8), ("cat", "cat"), "train")
