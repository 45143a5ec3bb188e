"""The place of a tag in maps whose place is known."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from mlcil.serving.places import FINE, OUTLINE, enlarged, place_of


def test_the_place_of_one_cell_is_in_the_middle_of_that_cell():
    values = np.zeros((4, 8), np.float32)
    values[1, 6] = 3.0
    place = place_of(values)
    assert np.allclose(place.peak, (6.5 / 8, 1.5 / 4), atol=1 / FINE)
    left, top, right, bottom = place.box
    assert 6 / 8 <= left < right <= 7 / 8  # above 0.6 only within the cell
    assert 1 / 4 <= top < bottom <= 2 / 4


def test_the_peak_of_a_corner_is_well_within_the_photo():
    values = np.zeros((7, 7), np.float32)
    values[6, 0] = 1.0
    x, y = place_of(values).peak
    assert 0.1 / 7 < x < 0.9 / 7
    assert 6.1 / 7 < y < 6.9 / 7
    assert np.allclose(place_of(np.ones((1, 1), np.float32)).box, (0, 0, 1, 1))


def test_the_largest_part_counts_and_the_peak_lies_in_it():
    values = np.zeros((7, 7), np.float32)
    values[5:, :3] = 0.9
    values[0, 6] = 1.0  # higher, but small
    place = place_of(values)
    assert place.box[0] == 0
    assert place.box[3] == 1
    assert place.box[1] > 0.5 > place.box[2]
    assert place.peak[0] < 0.5 < place.peak[1]


def test_a_ring_is_one_place_without_a_hole():
    values = np.ones((7, 7), np.float32)
    values[3, 3] = 0.0
    assert place_of(values).region.all()


def test_a_map_of_nothing_has_no_place():
    assert place_of(np.zeros((7, 7), np.float32)) is None


def test_an_enlarged_map_keeps_a_plane_and_never_dips_below_zero():
    plane = np.add.outer(np.arange(6), np.arange(6)).astype(np.float32)
    large = enlarged(plane, 60)
    assert np.allclose(np.diff(large[20:40, 20:40], axis=0), 0.1, atol=1e-4)
    spike = np.zeros((5, 5), np.float32)
    spike[2, 2] = 1
    assert enlarged(spike, 50).min() == 0


@given(arrays(np.float32, (5, 6), elements=st.floats(0, 100, width=32)))
def test_the_box_is_tight_around_the_region_and_holds_the_peak(values):
    place = place_of(values)
    if place is None:
        assert values.max() < 1e-6
        return
    left, top, right, bottom = (round(FINE * edge) for edge in place.box)
    assert 0 <= left < right <= FINE
    assert 0 <= top < bottom <= FINE
    assert place.region[top:bottom, left:right].sum() == place.region.sum()
    inside = place.region[top:bottom, left:right]
    assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
    assert (ndimage.binary_fill_holes(place.region & (place.evidence > OUTLINE)) == place.region).all()
    assert place.region[int(place.peak[1] * FINE), int(place.peak[0] * FINE)]
    assert place.evidence.max() == 1
