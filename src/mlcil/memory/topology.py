"""Choosing the images that span a class in feature space: TPCIL's graph, grown by competitive learning.

The vertices are those of a neural gas (Martinetz and Schulten, 1991), the edges those of the competitive Hebbian rule.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RATE = 0.1  # eta, how far the nearest vertex moves towards a feature
# alpha, in ranks, falls geometrically: kept wide, it would draw the few vertices of a class into its mean.
WIDEST, NARROWEST = 10.0, 0.1
PASSES = 3
STEPS_PER_VERTEX = 200  # so that the vertices of a class of few images spread out again as alpha falls
MAX_STEPS = 20_000  # a class may have tens of thousands of images, of which then a part is visited


class Graph(NamedTuple):
    """The chosen images of one class and which of them are neighbours."""

    members: NDArray[np.int64]  # (k,) distinct rows of the features, the nearest real image of each vertex
    edges: NDArray[np.int64]  # (E, 2) places in `members`, the lower first, sorted, each pair once


def grow_graph(features: NDArray[np.float32], count: int, rng: np.random.Generator) -> Graph:
    """Spread `count` vertices over the features of a class and join those that are neighbours.

    Arguments:
        features: (N, C), normalised here to unit length.
        count: how many vertices; all images are taken if there are no more.
    """
    points = features.astype(np.float64)
    points /= np.linalg.norm(points, axis=1, keepdims=True) + 1e-8
    number = max(0, min(count, len(points)))
    vertices = learn_vertices(points, number, rng)
    distances = squared_distances(vertices, points)  # (k, N)
    return Graph(nearest_distinct(distances), hebbian_edges(distances))


def learn_vertices(points: NDArray[np.float64], number: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Neural gas: every vertex moves towards each feature, the less the more vertices are nearer to it.

    From points (N, C) and the number k of vertices, at most N, to (k, C).
    """
    vertices = points[rng.permutation(len(points))[:number]]
    order = visiting_order(len(points), number, rng)
    widths = np.geomspace(WIDEST, NARROWEST, len(order))
    for image, width in zip(order, widths, strict=True):
        towards = points[image] - vertices  # (k, C)
        rank = np.einsum("kc,kc->k", towards, towards).argsort(kind="stable").argsort()
        vertices += (RATE * np.exp(-rank / width))[:, None] * towards
    return vertices


def visiting_order(images: int, vertices: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Several passes over all images, each in its own random order, cut to what is worth the time."""
    passes = max(PASSES, math.ceil(STEPS_PER_VERTEX * vertices / max(images, 1)))
    return np.concatenate([rng.permutation(images) for _ in range(passes)])[:MAX_STEPS]


def squared_distances(vertices: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared Euclidean distances, (k, C), (N, C) -> (k, N)."""
    lengths, others = (vertices**2).sum(axis=1), (points**2).sum(axis=1)
    return np.asarray(lengths[:, None] - 2 * vertices @ points.T + others)


def nearest_distinct(distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each vertex in turn the nearest image that no earlier one took, (k, N) -> (k,)."""
    free = distances.copy()
    members = np.empty(len(free), np.int64)
    for place, row in enumerate(free):
        members[place] = row.argmin()
        free[:, members[place]] = np.inf
    return members


def hebbian_edges(distances: NDArray[np.float64]) -> NDArray[np.int64]:
    """Join the two vertices nearest to each feature (competitive Hebbian rule), (k, N) -> (E, 2)."""
    if len(distances) < 2:
        return np.empty((0, 2), np.int64)
    winners = distances.argsort(axis=0, kind="stable")[:2].T  # (N, 2)
    return np.unique(np.sort(winners, axis=1), axis=0).astype(np.int64)
