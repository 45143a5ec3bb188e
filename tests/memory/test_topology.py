"""The graph of a class against neural gas written out, and its shape on classes of every size."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.memory.topology import MAX_STEPS, PASSES, STEPS_PER_VERTEX, grow_graph, visiting_order


def gaussian(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def two_clusters(seed, sizes, width=6):
    """Features around two directions at a right angle; the first cluster comes first."""
    centres = np.repeat(np.eye(width)[:2], sizes, axis=0)
    return (centres + 0.05 * np.random.default_rng(seed).standard_normal(centres.shape)).astype(np.float32)


def nearest_first(point, others):
    return sorted(range(len(others)), key=lambda i: math.dist(point, others[i]))


def literal(features, count, rng):
    """The algorithm one vertex at a time."""
    points = [row / np.linalg.norm(row) for row in features.astype(np.float64)]
    vertices = [points[i].copy() for i in rng.permutation(len(points))[: min(count, len(points))]]
    order = visiting_order(len(points), len(vertices), rng)
    for step, image in enumerate(order):
        alpha = 10 * (0.1 / 10) ** (step / (len(order) - 1))
        for rank, vertex in enumerate(nearest_first(points[image], vertices)):
            vertices[vertex] += 0.1 * math.exp(-rank / alpha) * (points[image] - vertices[vertex])
    members = []
    for vertex in vertices:
        members.append(next(i for i in nearest_first(vertex, points) if i not in members))
    edges = {tuple(sorted(nearest_first(point, vertices)[:2])) for point in points if len(vertices) > 1}
    return members, sorted(edges)


@pytest.mark.parametrize(("seed", "images", "count"), [(0, 30, 4), (1, 12, 5), (2, 50, 2), (3, 4, 9), (4, 9, 1)])
def test_equal_to_the_algorithm_written_out(seed, images, count):
    features = gaussian(seed, images, 6)
    graph = grow_graph(features, count, np.random.default_rng(seed))
    members, edges = literal(features, count, np.random.default_rng(seed))
    assert graph.members.tolist() == members
    assert [tuple(edge) for edge in graph.edges.tolist()] == edges


@given(
    seed=st.integers(0, 2**31),
    images=st.integers(0, 40),
    width=st.integers(1, 9),
    count=st.integers(0, 12),
    distinct=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_members_are_distinct_and_edges_well_formed(seed, images, width, count, distinct):
    features = gaussian(seed, distinct, width)[np.arange(images) % distinct]  # images may repeat
    members, edges = grow_graph(features, count, np.random.default_rng(seed))
    assert members.dtype == edges.dtype == np.int64
    assert len(set(members.tolist())) == len(members) == min(count, images)
    assert set(members.tolist()) <= set(range(images))
    assert edges.shape == (len(edges), 2)
    assert ((edges >= 0) & (edges < len(members))).all()
    assert (edges[:, 0] < edges[:, 1]).all()
    assert all(one < following for one, following in pairwise(map(tuple, edges.tolist())))
    assert (len(edges) > 0) == (len(members) > 1)


def test_a_class_of_fewer_images_gives_them_all():
    members, edges = grow_graph(gaussian(0, 4, 8), 20, np.random.default_rng(0))
    assert sorted(members.tolist()) == [0, 1, 2, 3]
    assert len(edges) >= 2


def test_identical_and_zero_features_are_taken_once_each():
    for features in (np.ones((6, 3), np.float32), np.zeros((6, 3), np.float32)):
        members, edges = grow_graph(features, 4, np.random.default_rng(0))
        assert len(set(members.tolist())) == 4
        assert len(edges) > 0


def test_lengths_do_not_matter():
    features = gaussian(0, 60, 8)
    stretched = features * np.random.default_rng(1).uniform(0.1, 30, (60, 1)).astype(np.float32)
    assert np.array_equal(
        grow_graph(features, 6, np.random.default_rng(2)).members,
        grow_graph(stretched, 6, np.random.default_rng(2)).members,
    )


@given(seed=st.integers(0, 2**31), first=st.integers(15, 60), second=st.integers(15, 60), count=st.integers(2, 10))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_both_of_two_clusters_get_vertices(seed, first, second, count):
    members, _ = grow_graph(two_clusters(seed, (first, second)), count, np.random.default_rng(seed))
    assert 0 < (members < first).sum() < count


@given(seed=st.integers(0, 2**31), count=st.integers(8, 12))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_edge_joins_clusters_of_two_or_more_vertices(seed, count):
    members, edges = grow_graph(two_clusters(seed, (40, 40)), count, np.random.default_rng(seed))
    is_first = members < 40
    assert 2 <= is_first.sum() <= count - 2
    assert np.array_equal(is_first[edges[:, 0]], is_first[edges[:, 1]])


def test_every_image_is_visited_equally_often():
    visits = np.bincount(visiting_order(1000, 3, np.random.default_rng(0)))
    assert visits.tolist() == [PASSES] * 1000
    few = np.bincount(visiting_order(10, 3, np.random.default_rng(0)))
    assert few.tolist() == [3 * STEPS_PER_VERTEX // 10] * 10


def test_a_huge_class_is_visited_in_part_and_at_most_once():
    order = visiting_order(MAX_STEPS + 100, 20, np.random.default_rng(0))
    assert len(np.unique(order)) == len(order) == MAX_STEPS
