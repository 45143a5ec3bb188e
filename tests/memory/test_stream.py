"""Streaming memories: reference values, the published rules written out slowly, and what must hold for any stream."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlcil.memory.ocdm import TINY, balanced, divergences_without, greedy_selection
from mlcil.memory.prs import acceptance, partitioning_reservoir, sample_out, sample_out_candidates
from mlcil.memory.stream import StreamMemory, proportions, reservoir

POLICIES = [reservoir, partitioning_reservoir, balanced]
COUNTS = np.array([100, 20, 5])
seeds = st.integers(0, 2**31)


def table(*sets, classes=3):
    """Labels from sets of letters: table("A", "AB") has two rows."""
    return np.array([[chr(65 + column) in one for column in range(classes)] for one in sets], np.int8)


def random_labels(seed, images, classes, unknown=0.0):
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, classes)) < rng.uniform(0.05, 0.6, classes)).astype(np.int8)
    labels[rng.random(labels.shape) < unknown] = -1
    return labels


def single_label(seed, images, weights):
    chosen = np.random.default_rng(seed).choice(len(weights), images, p=np.array(weights) / sum(weights))
    return np.eye(len(weights), dtype=np.int8)[chosen]


def stock_of(labels, counts=None, first=0):
    labels = np.asarray(labels, np.int8)
    counts = (labels == 1).sum(axis=0) if counts is None else np.asarray(counts)
    return StreamMemory(np.arange(first, first + len(labels)), labels.copy(), counts.astype(np.int64), len(labels))


def feed(policy, labels, capacity, seed=0, batch=10, indices=None, stock=None, **options):
    stock = stock_of(labels[:0]) if stock is None else stock
    indices = np.arange(len(labels)) if indices is None else np.asarray(indices)
    rng = np.random.default_rng(seed)
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        policy(stock, indices[part], labels[part], capacity, rng, **options)
    return stock


def positives(stock):
    return (stock.labels == 1).sum(axis=0)


# Reference values


def test_reference_proportions_of_prs():
    assert proportions(COUNTS, -0.03) == pytest.approx([0.318117, 0.333853, 0.348030], abs=5e-7)


@pytest.mark.parametrize(("labels", "expected"), [([1, 0, 0], 0.190870), ([1, 0, 1], 1.0)])
def test_reference_acceptance_of_prs(labels, expected):
    assert acceptance(np.array(labels, np.int8), COUNTS, 60, -0.03, COUNTS > 0) == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("seed", range(8))
def test_reference_removal_of_ocdm(seed):
    stock = stock_of(table("A", "A", "AB", "C"))
    taken = balanced(stock, np.array([4, 5]), table("B", "A"), 4, np.random.default_rng(seed))
    pure = set(stock.indices.tolist()) & {0, 1, 5}
    assert len(pure) == 1
    assert set(stock.indices.tolist()) == pure | {2, 3, 4}
    assert taken.tolist() == [4, *(pure & {5})]
    assert positives(stock).tolist() == [2, 2, 1]
    assert literal_divergence(positives(stock), np.full(3, 1 / 3)) == pytest.approx(0.048728, abs=5e-7)


def test_ties_of_ocdm_are_broken_at_random():
    gone = set()
    for seed in range(40):
        stock = stock_of(table("A", "A", "AB", "C"))
        balanced(stock, np.array([4, 5]), table("B", "A"), 4, np.random.default_rng(seed))
        gone |= set(range(6)) - set(stock.indices.tolist())
    assert gone == {0, 1, 5}


# The published rules, written out


def literal_proportions(counts, rho, members):
    powers = {c: Fraction(int(counts[c])) ** rho for c in members}
    return {c: power / sum(powers.values()) for c, power in powers.items()}


def literal_distance(memory, p):
    l = {c: sum(c in labels for labels in memory) for c in p}  # noqa: E741
    return sum(abs(l[c] - p[c] * sum(l.values())) for c in p)


def literal_sample_out(memory, p, y, tie=0):
    """Rows of the memory (a list of label sets) that may leave when class y was drawn; exact for fractions."""
    l = {c: sum(c in labels for labels in memory) for c in p}  # noqa: E741
    delta = {c: l[c] - p[c] * sum(l.values()) for c in p}
    query = {c for c in p if delta[c] <= tie}
    of_y = [row for row, labels in enumerate(memory) if y in labels]
    most = max(len(query - memory[row]) for row in of_y)
    rows = [row for row in of_y if len(query - memory[row]) == most]
    after = {row: literal_distance(memory[:row] + memory[row + 1 :], p) for row in rows}
    return [row for row in rows if after[row] <= min(after.values()) + tie]


def literal_divergence(held, target):
    q = [(n + TINY) / (sum(held) + TINY * len(held)) for n in held]
    return math.fsum(p * math.log(p / one) for p, one in zip(target, q, strict=True))


def literal_without(rows, target):
    """The KL value of what is left when each of the rows is removed."""
    rest = [rows[:row] + rows[row + 1 :] for row in range(len(rows))]
    return [literal_divergence([sum(one[c] for one in left) for c in range(len(target))], target) for left in rest]


@given(seed=seeds, images=st.integers(1, 25), classes=st.integers(1, 6), rho=st.sampled_from([-1, 0, 1]))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_sample_out_equals_the_literal_rule(seed, images, classes, rho):
    labels = random_labels(seed, images, classes)
    labels[0, 0] = 1
    labels = labels[:, labels.any(axis=0)]
    counts = labels.sum(axis=0) + np.random.default_rng(seed).integers(0, 20, labels.shape[1])
    memory = [set(np.flatnonzero(row).tolist()) for row in labels]
    exact = literal_proportions(counts, rho, range(len(counts)))
    shares = proportions(counts, rho)
    assert shares == pytest.approx([float(exact[c]) for c in exact])
    for column in range(len(counts)):
        rows = sample_out_candidates(labels == 1, shares, column).tolist()
        assert rows == literal_sample_out(memory, exact, column)


def literal_prs(stream, capacity, rho, rng):
    """The whole of PRS over a list of label sets, with floats; returns the numbers of the images it ends with."""
    memory, n = [], {}
    for number, labels in enumerate(stream):
        held = {c for row in memory for c in stream[row]}
        if len(memory) < capacity:
            memory.append(number)
        else:
            members = held | (labels & set(n))
            p = {c: n[c] ** rho / sum(n[j] ** rho for j in members) for c in members}
            total = sum(math.exp(min(n.get(j, 0) for j in labels) - n.get(j, 0)) for j in labels)
            w = {c: math.exp(min(n.get(j, 0) for j in labels) - n.get(c, 0)) / total for c in labels}
            s = sum(w[c] * (min(1, capacity * p[c] / n[c]) if c in n else 1) for c in labels)
            if rng.random() < s:
                p = {c: n[c] ** rho / sum(n[j] ** rho for j in held) for c in sorted(held)}
                sets = [stream[row] for row in memory]
                l = {c: sum(c in one for one in sets) for c in p}  # noqa: E741
                power = np.array([math.exp(l[c] - p[c] * sum(l.values())) for c in p])
                y = list(p)[rng.choice(len(p), p=power / power.sum())]
                memory.pop(rng.choice(literal_sample_out(sets, p, y, tie=1e-10)))
                memory.append(number)
        for c in labels:
            n[c] = n.get(c, 0) + 1
    return memory


@given(seed=seeds, classes=st.integers(2, 5), capacity=st.integers(1, 12), rho=st.sampled_from([-0.03, 0.02, 0.4]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_stream_through_prs_equals_the_literal_algorithm(seed, classes, capacity, rho):
    labels = random_labels(seed, 60, classes)
    labels = labels[labels.any(axis=1)]
    sets = [set(np.flatnonzero(row).tolist()) for row in labels]
    stock = feed(partitioning_reservoir, labels, capacity, seed, rho=rho)
    assert stock.indices.tolist() == literal_prs(sets, capacity, rho, np.random.default_rng(seed))


@given(seed=seeds, images=st.integers(1, 25), classes=st.integers(1, 6), rho=st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_distances_of_ocdm_equal_the_literal_rule(seed, images, classes, rho):
    labels = random_labels(seed, images, classes)
    target = proportions(labels.sum(axis=0) + np.random.default_rng(seed).integers(1, 9, classes), rho)
    fast = divergences_without(labels.astype(float), labels.sum(axis=0).astype(float), target)
    assert fast == pytest.approx(literal_without(labels.tolist(), target), rel=1e-9, abs=1e-9)


@given(seed=seeds, images=st.integers(2, 20), classes=st.integers(1, 5), rho=st.sampled_from([0.0, 0.5]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_greedy_selection_equals_the_literal_rule(seed, images, classes, rho):
    labels = random_labels(seed, images, classes)
    target, size = proportions(labels.sum(axis=0) + 1, rho), images // 2
    rng, left = np.random.default_rng(seed), list(range(images))
    while len(left) > size:
        distances = literal_without(labels[left].tolist(), target)
        left.pop(rng.choice([row for row, one in enumerate(distances) if one <= min(distances) + 1e-10]))
    kept = greedy_selection(labels == 1, target, size, np.random.default_rng(seed))
    assert np.flatnonzero(kept).tolist() == left


# PRS


@pytest.mark.parametrize(("rho", "expected"), [(0.0, [1 / 3] * 3), (1.0, [0.8, 0.16, 0.04])])
def test_targets_are_equal_without_a_power_and_follow_the_stream_with_power_one(rho, expected):
    assert proportions(COUNTS, rho) == pytest.approx(expected)


def test_only_classes_of_the_memory_that_the_stream_has_shown_have_a_share():
    shares = proportions(np.array([4, 0, 4, 8]), 1.0, np.array([True, True, False, True]))
    assert shares == pytest.approx([1 / 3, 0, 0, 2 / 3])
    assert proportions(np.array([0, 0]), -0.5).tolist() == [0, 0]


@given(counts=st.lists(st.integers(1, 10**6), min_size=1, max_size=9), capacity=st.integers(0, 2000))
@settings(deadline=None, derandomize=True)
def test_with_power_one_a_single_label_is_accepted_like_in_a_plain_reservoir(counts, capacity):
    labels = np.eye(len(counts), dtype=np.int8)[0]
    expected = min(1.0, capacity / sum(counts))
    assert acceptance(labels, np.array(counts), capacity, 1.0, np.array(counts) > 0) == pytest.approx(expected)


@pytest.mark.parametrize(("rho", "expected"), [(1.0, [0.7, 0.2, 0.1]), (0.0, [1 / 3] * 3)])
def test_the_memory_of_prs_has_its_target_composition(rho, expected):
    stock = feed(partitioning_reservoir, single_label(2, 2000, [7, 2, 1]), 90, rho=rho)
    assert len(stock) == 90
    assert positives(stock) / 90 == pytest.approx(expected, abs=0.06)


def test_a_class_that_the_memory_has_lost_can_come_back():
    held = np.array([True, False])
    chance = acceptance(np.array([0, 1], np.int8), np.array([50, 50]), 10, 0.0, held)
    assert chance == pytest.approx(10 * 0.5 / 50)
    chance = acceptance(np.array([1, 0], np.int8), np.array([50, 50]), 10, 0.0, held)
    assert chance == pytest.approx(10 / 50)  # the lost class has no share


def test_labels_of_classes_that_the_stream_has_not_shown_do_not_decide_what_leaves():
    labels = np.array([[1, 1], [1, 1], [1, 0], [1, 0]], np.int8)
    rng = np.random.default_rng(0)
    gone = {sample_out(labels, np.array([9, 0]), -0.03, rng) for _ in range(60)}
    assert gone == {0, 1, 2, 3}
    assert {sample_out(labels, np.array([0, 0]), -0.03, rng) for _ in range(60)} == {0, 1, 2, 3}


# OCDM


@given(seed=seeds, classes=st.integers(1, 6), each=st.integers(1, 6), rest=st.integers(0, 5))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_single_label_counts_of_ocdm_differ_by_at_most_one(seed, classes, each, rest):
    capacity = classes * each + rest % classes
    labels = np.concatenate(
        [single_label(seed, 80, range(1, classes + 1)), np.eye(classes, dtype=np.int8).repeat(8, 0)]
    )
    labels = np.random.default_rng(seed).permutation(labels)
    stock = feed(balanced, labels, capacity, seed)
    assert len(stock) == capacity
    assert np.ptp(positives(stock)) <= 1


def test_the_target_of_ocdm_follows_the_stream_with_power_one():
    stock = feed(balanced, single_label(3, 1000, [7, 2, 1]), 50, rho=1.0)
    assert positives(stock) / 50 == pytest.approx(stock.counts / stock.seen, abs=0.021)


def test_a_class_that_is_new_in_the_batch_enters_a_full_ocdm_memory():
    stock = stock_of(table("A", "A", "B", "B"))
    taken = balanced(stock, np.array([7]), table("C"), 4, np.random.default_rng(0))
    assert taken.tolist() == [7]
    assert sorted(positives(stock).tolist()) == [1, 1, 2]


def test_classes_that_the_stream_has_not_shown_are_no_part_of_the_target_of_ocdm():
    labels = np.array([[1, 0, 1], [1, 0, 1], [0, 1, 0]], np.int8)
    stock = stock_of(labels, counts=[2, 1, 0])
    balanced(stock, np.array([7]), np.array([[0, 1, 0]], np.int8), 3, np.random.default_rng(0))
    assert positives(stock)[:2].tolist() in ([2, 1], [1, 2])
    assert np.isfinite(literal_divergence(positives(stock)[:2], proportions(stock.counts[:2], 0.0)))


# Reservoir


def test_a_reservoir_holds_every_image_with_the_same_probability():
    images, capacity, runs = 40, 12, 600
    labels, times = np.ones((images, 1), np.int8), np.zeros(images)
    for seed in range(runs):
        times[feed(reservoir, labels, capacity, seed, batch=7).indices] += 1
    expected = runs * capacity / images
    chi_square = ((times - expected) ** 2).sum() / (expected * (1 - capacity / images))
    assert times.sum() == runs * capacity
    assert chi_square < 90  # 39 degrees of freedom: exceeded once in some 100,000 seeds


def test_a_reservoir_holds_images_without_a_positive_too():
    stock = feed(reservoir, np.array([[0, -1], [-1, 0]], np.int8), 5)
    assert stock.indices.tolist() == [0, 1]
    assert stock.counts.tolist() == [0, 0]
    assert stock.seen == 2


# All of them


@given(
    seed=seeds,
    policy=st.sampled_from(POLICIES),
    capacities=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    classes=st.integers(1, 5),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_whatever_comes_the_memory_is_sound(seed, policy, capacities, classes):
    rng, stock, shown = np.random.default_rng(seed), stock_of(np.empty((0, classes))), []
    images = random_labels(seed, 30, classes, unknown=0.3)
    for capacity in capacities:
        batch = rng.integers(0, 30, rng.integers(0, 8))  # images return, also within a batch
        taken = policy(stock, batch, images[batch], capacity, rng)
        shown += batch.tolist()
        assert len(stock) <= capacity
        assert len(set(stock.indices.tolist())) == len(stock) == len(stock.labels)
        assert np.array_equal(stock.labels, images[stock.indices])
        assert len(set(taken.tolist())) == len(taken)
        assert set(taken.tolist()) <= set(batch.tolist()) & set(stock.indices.tolist())
        assert stock.seen == len(shown)
        assert np.array_equal(stock.counts, (images[shown] == 1).sum(axis=0))
        assert [part.dtype for part in (stock.indices, stock.labels, stock.counts, taken)] == ["i8", "i1", "i8", "i8"]
        assert all(part.flags.c_contiguous and part.flags.owndata for part in (stock.indices, stock.labels))


@pytest.mark.parametrize("policy", [partitioning_reservoir, balanced])
def test_images_without_a_positive_are_passed_over_but_seen(policy):
    stock = stock_of(np.empty((0, 2)))
    labels = np.array([[0, 0], [-1, 0], [0, 1], [-1, -1]], np.int8)
    assert policy(stock, np.arange(4), labels, 10, np.random.default_rng(0)).tolist() == [2]
    assert stock.indices.tolist() == [2]
    assert (stock.seen, stock.counts.tolist()) == (4, [0, 1])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_returning_image_fills_in_what_was_unknown_and_drives_none_out(policy):
    stock = stock_of([[1, -1, 0, -1], [0, 1, 1, 0]])
    returning = np.array([[0, 1, 1, -1]], np.int8)
    for seed in range(10):
        policy(stock, np.array([0]), returning, 2, np.random.default_rng(seed))
    assert stock.indices.tolist() == [0, 1]
    assert stock.labels.tolist() == [[1, 1, 0, -1], [0, 1, 1, 0]]
    assert stock.counts.tolist() == [1, 11, 11, 0]
    assert stock.seen == 12


@pytest.mark.parametrize("policy", POLICIES)
def test_a_returning_image_does_not_use_up_room(policy):
    stock = stock_of(table("A", "B"))
    taken = policy(stock, np.array([0, 0, 7, 7]), table("A", "A", "C", "C"), 5, np.random.default_rng(0))
    assert stock.indices.tolist() == [0, 1, 7]
    assert taken.tolist() == [0, 7]


def test_a_returning_image_is_taken_when_the_draw_says_so():
    chances = {}
    for policy in POLICIES:
        answers = []
        for seed in range(400):
            stock = stock_of(table("A", "A", classes=1), counts=[7])
            stock.seen = 7
            answers.append(len(policy(stock, np.array([0]), table("A", classes=1), 2, np.random.default_rng(seed))))
        chances[policy] = np.mean(answers)
    assert chances[reservoir] == pytest.approx(2 / 8, abs=0.07)
    assert chances[partitioning_reservoir] == pytest.approx(2 / 7, abs=0.07)
    assert chances[balanced] == 1


def test_a_returning_image_stays_in_an_ocdm_memory_when_others_of_its_batch_enter():
    for seed in range(20):
        stock = stock_of(table("A", "A", "A", "B"))
        taken = balanced(stock, np.array([0, 9]), table("A", "C"), 4, np.random.default_rng(seed))
        assert taken.tolist() == [0, 9]
        assert set(stock.indices.tolist()) in ({0, 1, 3, 9}, {0, 2, 3, 9})


@pytest.mark.parametrize("policy", POLICIES)
def test_a_grown_capacity_is_filled_first(policy):
    stock = feed(policy, single_label(0, 500, [1, 1]), 10)
    held = stock.indices.tolist()
    taken = policy(stock, np.arange(900, 905), single_label(1, 5, [1, 1]), 15, np.random.default_rng(0))
    assert taken.tolist() == [900, 901, 902, 903, 904]
    assert stock.indices.tolist() == [*held, *taken]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_smaller_capacity_lets_images_go_even_without_a_new_one(policy):
    stock = feed(policy, random_labels(1, 200, 4), 30)
    held = set(stock.indices.tolist())
    taken = policy(stock, np.empty(0, np.int64), np.empty((0, 4), np.int8), 12, np.random.default_rng(0))
    assert taken.tolist() == []
    assert len(stock) == 12
    assert set(stock.indices.tolist()) < held


@pytest.mark.parametrize("policy", [partitioning_reservoir, balanced])
def test_prs_and_ocdm_shrink_towards_their_target(policy):
    stock = stock_of(single_label(0, 200, [8, 1, 1]), counts=[10, 10, 10])
    policy(stock, np.empty(0, np.int64), np.empty((0, 3), np.int8), 30, np.random.default_rng(0))
    assert positives(stock) == pytest.approx([10, 10, 10], abs=1.5)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_held_without_capacity(policy):
    stock = feed(policy, random_labels(0, 40, 3), 0)
    assert len(stock) == 0
    assert stock.labels.shape == (0, 3)
    assert stock.seen == 40
