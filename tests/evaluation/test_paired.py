import numpy as np
import pytest

from mlcil.core.errors import UserError
from mlcil.evaluation import paired
from mlcil.evaluation.metrics import average_precision
from mlcil.evaluation.paired import Interval, paired_difference
from mlcil.evaluation.scores import ScoredImages


def truth(seed=0, images=120, classes=3, share=0.3):
    return (np.random.default_rng(seed).random((images, classes)) < share).astype(np.int8)


def a_run(labels, signal, seed, shared=0):
    """Scores that rise by `signal` where a class is present; part of their noise is common to runs of one `shared`."""
    common, own = np.random.default_rng([1, shared]).normal(size=labels.shape), np.random.default_rng([2, seed])
    scores = (signal * labels + common + 0.4 * own.normal(size=labels.shape)).astype(np.float32)
    return ScoredImages(scores, labels, np.arange(len(labels)), tuple("abcdefgh"[: labels.shape[1]]))


def map_of(run):
    return 100 * float(np.nanmean(average_precision(run.scores, run.labels)))


def only(run, rows=slice(None), columns=slice(None)):
    names = tuple(np.array(run.classes)[columns].tolist())
    return ScoredImages(run.scores[rows][:, columns], run.labels[rows][:, columns], run.rows[rows], names)


def one_class(values):
    return ScoredImages(*(np.array(value)[:, None] for value in values), np.arange(len(values[0])), ("a",))


def literal_interval(drawn):
    return np.nanquantile(drawn, [0.025, 0.975], axis=0)


@pytest.mark.parametrize("decimals", [0, 1, 6])  # with few decimals most scores are tied
def test_the_intervals_are_those_of_literal_resamples_of_both_runs(decimals):
    labels = truth(images=25, share=0.1)  # some resamples lose all positives of a class
    labels[::6] -= 1  # absent becomes unknown, and present absent
    runs = a_run(labels, 0.5, 1), a_run(labels, 1.5, 2)
    first, second = (run._replace(scores=run.scores.round(decimals)) for run in runs)
    found = paired_difference([(first, second)], resamples=200, seed=5)
    differences = []
    for draw in np.random.default_rng([5, 1]).integers(25, size=(200, 25)):
        one, other = only(first, draw), only(second, draw)
        differences.append(
            100 * (average_precision(other.scores, other.labels) - average_precision(one.scores, one.labels))
        )
    assert np.isnan(differences).any()
    for k, entry in enumerate(found.classes):
        np.testing.assert_allclose(entry.interval, literal_interval(differences)[:, k], atol=1e-9)
    np.testing.assert_allclose(found.interval, literal_interval(np.nanmean(differences, axis=1)), atol=1e-9)


def test_the_point_estimates_are_the_average_precisions_in_percent():
    labels = truth()
    first, second = a_run(labels, 1, 1), a_run(labels, 2, 2)
    found = paired_difference([(first, second)], resamples=100)
    assert [one.name for one in found.classes] == ["a", "b", "c"]
    np.testing.assert_allclose([one.first for one in found.classes], 100 * average_precision(first.scores, labels))
    np.testing.assert_allclose([one.second for one in found.classes], 100 * average_precision(second.scores, labels))
    assert found.difference == pytest.approx(map_of(second) - map_of(first))
    assert (found.pairs, found.images, found.resamples, found.level) == (1, 120, 100, 0.95)
    assert found.is_more_than_noise
    assert found.interval.low < found.difference < found.interval.high


def test_identical_runs_do_not_differ_at_all():
    run = a_run(truth(), 1, 1)
    found = paired_difference([(run, run)], resamples=100)
    assert found.difference == 0
    assert found.interval == Interval(0, 0)
    assert {one.interval for one in found.classes} == {Interval(0, 0)}
    assert not found.is_more_than_noise


def test_runs_that_differ_only_by_luck_are_no_more_than_noise():
    labels = truth(images=400)
    found = paired_difference([(a_run(labels, 1, 1), a_run(labels, 1, 2))], resamples=200)
    assert found.interval.low < 0 < found.interval.high
    assert not found.is_more_than_noise


def test_swapping_the_runs_mirrors_every_interval():
    labels = truth()
    first, second = a_run(labels, 1, 1), a_run(labels, 1.3, 2)
    there, back = (paired_difference([pair], resamples=150) for pair in ((first, second), (second, first)))
    assert back.difference == -there.difference
    np.testing.assert_allclose(back.interval, [-there.interval.high, -there.interval.low], atol=1e-9)
    for one, other in zip(there.classes, back.classes, strict=True):
        np.testing.assert_allclose(other.interval, [-one.interval.high, -one.interval.low], atol=1e-9)


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says():
    population = truth(images=40_000, classes=2)
    true = map_of(a_run(population, 1.5, 2)) - map_of(a_run(population, 1, 1))
    covered = []
    for trial in range(150):
        labels = truth(seed=trial + 10, images=150, classes=2)
        runs = a_run(labels, 1, 3 * trial, shared=trial + 1), a_run(labels, 1.5, 3 * trial + 1, shared=trial + 1)
        interval = paired_difference([runs], resamples=100, level=0.8, seed=trial).interval
        covered.append(interval.low <= true <= interval.high)
    assert 0.65 < np.mean(covered) < 0.92  # 4 standard deviations around 0.8


def test_the_order_of_rows_and_classes_does_not_matter():
    labels = truth()
    first, second = a_run(labels, 1, 1), a_run(labels, 1.3, 2)
    rows = np.random.default_rng(0).permutation(len(labels))
    shuffled = only(second, rows, [2, 0, 1])
    assert shuffled.classes == ("c", "a", "b")
    expected = paired_difference([(first, second)], resamples=100)
    assert paired_difference([(first, shuffled)], resamples=100) == expected
    turned = paired_difference([(only(first, rows, [1, 0, 2]), shuffled)], resamples=100)
    assert sorted(turned.classes) == expected.classes
    assert [one.name for one in turned.classes] == ["b", "a", "c"]
    np.testing.assert_allclose(turned.interval, expected.interval, atol=1e-9)


def test_the_same_seed_gives_the_same_result_and_another_does_not():
    labels = truth()
    pair = a_run(labels, 1, 1), a_run(labels, 1.3, 2)
    found = [paired_difference([pair], resamples=100, seed=seed) for seed in (3, 3, 4)]
    assert found[0] == found[1]
    assert found[0].interval != found[2].interval


def test_how_many_resamples_are_held_at_once_changes_nothing(monkeypatch):
    labels = truth()
    pairs = [(a_run(labels, 1, seed), a_run(labels, 1.3, seed + 10)) for seed in range(2)]
    whole = paired_difference(pairs, resamples=100)
    monkeypatch.setattr(paired, "_CHUNK", 7 * len(labels))
    assert paired_difference(pairs, resamples=100) == whole


def test_a_higher_level_gives_a_wider_interval():
    labels = truth()
    pair = a_run(labels, 1, 1), a_run(labels, 1.3, 2)
    narrow, wide = (paired_difference([pair], resamples=200, level=level).interval for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_several_seeds_are_averaged_and_resampled_as_well():
    labels = truth(images=300)
    firsts = [a_run(labels, 1, seed) for seed in range(4)]
    seconds = [a_run(labels, signal, seed + 10) for seed, signal in enumerate((0.6, 1.2, 2, 3))]
    pairs = list(zip(firsts, seconds, strict=True))
    found = paired_difference(pairs, resamples=200)
    assert found.pairs == 4
    each = [map_of(second) - map_of(first) for first, second in pairs]
    assert found.difference == pytest.approx(np.mean(each))
    # The seeds differ by far more than the images do, and the interval must show it.
    widths = [interval.high - interval.low for interval in (paired_difference([p], 200).interval for p in pairs)]
    assert found.interval.high - found.interval.low > 1.5 * max(widths)


def test_a_seed_named_twice_adds_nothing():
    labels = truth()
    pair = a_run(labels, 1, 1), a_run(labels, 1.3, 2)
    once, twice = paired_difference([pair], resamples=100), paired_difference([pair, pair], resamples=100)
    np.testing.assert_allclose(once.interval, twice.interval, atol=1e-9)


def test_a_class_without_a_positive_is_left_out_of_the_mean():
    labels = truth()
    labels[:, 1] = np.where(labels[:, 1] == 1, -1, 0)
    first, second = a_run(labels, 1, 1), a_run(labels, 1.3, 2)
    found = paired_difference([(first, second)], resamples=100)
    assert found.without_positives == ["b"]
    assert found == paired_difference(
        [(only(first, columns=[0, 2]), only(second, columns=[0, 2]))], resamples=100
    )._replace(without_positives=["b"])


def test_one_positive_image_still_has_an_interval():
    run, better = one_class(([3.0, 2, 1, 0], [0, 0, 1, 0])), one_class(([3.0, 2, 4, 0], [0, 0, 1, 0]))
    found = paired_difference([(run, better)], resamples=200)
    assert found.difference == pytest.approx(200 / 3)
    assert 0 <= found.interval.low < found.interval.high <= 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: only(run, columns=[0, 1]), "^the classes differ .*: only one has c, only the other none$"),
        (lambda run: run._replace(classes=("a", "b", "x")), "^the classes differ .* c, only the other x$"),
        (lambda run: only(run, rows=slice(5, None)), "^the test images .* 0, 1, 2 and 2 more, only the other none$"),
        (lambda run: run._replace(rows=run.rows + 1), "only one has 0, only the other 120$"),
        (lambda run: run._replace(labels=1 - run.labels), "^the labels of 120 of 120 test images differ"),
    ],
)
@pytest.mark.parametrize("place", [(0, 1), (1, 0), (1, 1)])
def test_runs_that_were_tested_on_something_else_are_refused(change, message, place):
    run = a_run(truth(), 1, 1)
    pairs = [[run, run], [run, run]]
    pairs[place[0]][place[1]] = change(run)
    with pytest.raises(UserError, match=message):
        paired_difference([(first, second) for first, second in pairs], resamples=100)


def test_bad_input_is_refused():
    run = a_run(truth(), 1, 1)
    empty = run._replace(labels=np.zeros_like(run.labels))
    with pytest.raises(UserError, match="no test image shows any of the 3 classes"):
        paired_difference([(empty, empty)])
    with pytest.raises(UserError, match="resamples: got 99, expected at least 100"):
        paired_difference([(run, run)], resamples=99)
    with pytest.raises(ValueError, match="NaN"):
        paired_difference([(run, run._replace(scores=run.scores * np.nan))])
