import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.data.digits import _handwriting, _overlap, _places, read_digits


def test_shapes_and_classes():
    data = read_digits(train=12, test=5, size=32)
    assert data.train.classes == data.test.classes == tuple("0123456789")
    assert data.train.pixels is not None
    assert data.train.pixels.shape == (12, 32, 32, 3)
    assert data.train.pixels.dtype == np.uint8
    assert data.test.labels.shape == (5, 10)
    assert len(set(data.train.paths + data.test.paths)) == 17


def test_one_to_four_digits_all_known():
    labels = read_digits(train=400, test=1, size=16).train.labels
    counts = labels.sum(axis=1)
    assert set(np.unique(labels)) == {0, 1}
    assert set(counts.tolist()) == {1, 2, 3, 4}
    assert 2.3 < counts.mean() < 2.7
    assert labels.sum(axis=0).min() > 60


def test_fewer_canvases_are_a_prefix_of_more():
    few, more = read_digits(train=3, test=2), read_digits(train=6, test=4)
    for short, long in zip(few[:2], more[:2], strict=True):
        np.testing.assert_array_equal(short.pixels, long.pixels[: len(short)])
        np.testing.assert_array_equal(short.labels, long.labels[: len(short)])


def test_the_seed_decides_and_the_parts_differ():
    data, other = read_digits(4, 4, seed=1), read_digits(4, 4, seed=2)
    np.testing.assert_array_equal(data.train.pixels, read_digits(4, 4, seed=1).train.pixels)
    assert not np.array_equal(data.train.pixels, other.train.pixels)
    assert not np.array_equal(data.train.pixels, data.test.pixels)


def test_no_handwritten_digit_is_in_both_parts():
    for train, test in zip(*_handwriting(), strict=True):
        assert not {glyph.tobytes() for glyph in train} & {glyph.tobytes() for glyph in test}
        assert 0.68 < len(train) / (len(train) + len(test)) < 0.72


def test_places_are_inside_and_seldom_crowded():
    crowding = []
    for seed in range(200):
        boxes = _places(np.random.default_rng(seed), 4, 64)
        assert all(0 <= left <= 64 - side and 0 <= top <= 64 - side for left, top, side in boxes)
        assert all(16 <= side <= 29 for _, _, side in boxes)
        crowding += [_overlap(one, two) for place, one in enumerate(boxes) for two in boxes[:place]]
    assert np.mean(np.array(crowding) > 0.2) < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 0}, "got 0 for digits option train, expected at least 1"),
        ({"test": -1}, "got -1 for digits option test, expected at least 1"),
        ({"size": 8}, "got 8 for digits option size, expected at least 16"),
        ({"seed": -1}, "got -1 for digits option seed, expected at least 0"),
    ],
)
def test_numbers_out_of_range(options, message):
    with pytest.raises(UserError, match=message):
        read_digits(**options)
