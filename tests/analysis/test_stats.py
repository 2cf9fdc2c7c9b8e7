import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as reference

from analysis import stats

LOSSES = st.lists(st.floats(0.5, 12), min_size=2, max_size=12).filter(lambda values: np.std(values) > 1e-6)


@given(LOSSES)
def test_mean_interval_is_that_of_scipy(values: list[float]) -> None:
    ours = stats.mean_interval(values)
    low, high = reference.t.interval(0.95, len(values) - 1, np.mean(values), reference.sem(values))
    assert (ours.estimate, ours.low, ours.high) == pytest.approx((np.mean(values), low, high), rel=1e-9)
    assert ours.n == len(values)


@given(LOSSES, LOSSES)
def test_welch_is_that_of_scipy(arm: Any, base: Any) -> None:
    ours = stats.welch_difference(arm, base)
    expected = reference.ttest_ind(arm, base, equal_var=False).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((expected.low, expected.high), rel=1e-7, abs=1e-9)


def test_paired_is_that_of_scipy_over_the_shared_seeds() -> None:
    arm, base = {0: 1.50, 1: 1.47, 2: 1.53, 7: 9.0}, {2: 1.55, 0: 1.54, 1: 1.48, 8: 0.0}
    ours = stats.paired_difference(arm, base)
    expected = reference.ttest_rel([1.50, 1.47, 1.53], [1.54, 1.48, 1.55]).confidence_interval(0.95)
    assert (ours.low, ours.high, ours.n) == pytest.approx((expected.low, expected.high, 3))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_cover_the_truth(n: int) -> None:
    rng = np.random.default_rng(n)
    seed_effect = rng.normal(0, 5, (12_000, n))
    arms, bases = rng.normal(2.0, 0.3, (12_000, n)) + seed_effect, rng.normal(1.5, 0.2, (12_000, n)) + seed_effect
    alone = rng.normal(3.0, 0.1, (12_000, n)).tolist()
    means = [stats.mean_interval(row) for row in alone]
    seeds = range(n)
    gaps = [
        stats.difference(dict(zip(seeds, arm, strict=True)), dict(zip(seeds, base, strict=True)))
        for arm, base in zip(arms.tolist(), bases.tolist(), strict=True)
    ]
    for intervals, truth in ((means, 3.0), (gaps, 0.5)):
        coverage = np.mean([i.low <= truth <= i.high for i in intervals])
        assert 0.935 <= coverage <= 0.965


def test_welch_covers_the_truth_with_unequal_variances() -> None:
    rng = np.random.default_rng(0)
    arms, bases = rng.normal(2.0, 1.0, (12_000, 5)), rng.normal(1.0, 0.2, (12_000, 10))
    intervals = [stats.welch_difference(a, b) for a, b in zip(arms.tolist(), bases.tolist(), strict=True)]
    assert 0.935 <= np.mean([i.low <= 1.0 <= i.high for i in intervals]) <= 0.965


@pytest.mark.parametrize(
    ("arm", "base", "method"),
    [
        ({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.5}, "paired t"),
        ({0: 1.0, 1: 2.0}, {2: 1.0, 3: 2.5}, "Welch t"),
        ({0: 1.0, 1: 2.0, 2: 2.0}, {2: 1.0, 3: 2.5}, "Welch t"),
        ({0: 1.0}, {0: 1.5}, "paired t"),
    ],
)
def test_difference_pairs_where_seeds_are_shared(arm: Any, base: Any, method: str) -> None:
    assert stats.difference(arm, base).method == method


@given(LOSSES, LOSSES)
def test_p_is_that_of_scipy(arm: Any, base: Any) -> None:
    ours = stats.welch_difference(arm, base)
    assert ours.p == pytest.approx(reference.ttest_ind(arm, base, equal_var=False).pvalue, rel=1e-6, abs=1e-12)
    assert ours.excludes_zero == (ours.p < 0.05)


@given(LOSSES, LOSSES)
def test_equivalence_is_two_one_sided_tests_of_scipy(arm: Any, base: Any) -> None:
    margin = 0.5
    above = reference.ttest_ind(np.array(arm) + margin, base, equal_var=False, alternative="greater").pvalue
    below = reference.ttest_ind(np.array(arm) - margin, base, equal_var=False, alternative="less").pvalue
    assert stats.welch_difference(arm, base).p_equivalent(margin) == pytest.approx(
        max(above, below), rel=1e-6, abs=1e-9
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_stepping_down_rejects(ps: list[float]) -> None:
    adjusted, rejected = stats.holm(ps), [False] * len(ps)
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        if ps[i] > 0.05 / (len(ps) - rank):
            break
        rejected[i] = True
    assert [p <= 0.05 for p in adjusted] == rejected


def test_holm_of_a_worked_example() -> None:
    assert stats.holm([0.01, 0.04, math.nan, 0.03]) == pytest.approx([0.03, 0.06, math.nan, 0.06], nan_ok=True)


def test_a_noise_floor_gives_one_run_an_interval() -> None:
    gap = stats.floor_difference(stats.sample([3.1]), stats.sample([3.0, 3.0]), stats.NoiseFloor(0.1, math.inf))
    assert gap.error == pytest.approx(0.1 * math.sqrt(1.5))
    assert gap.high - gap.low == pytest.approx(2 * 1.959964 * gap.error)


def test_pooled_spread() -> None:
    pooled = stats.pooled_sd([stats.sample([1.0, 2.0, 3.0]), stats.sample([5.0]), stats.sample([0.0, 4.0])])
    assert pooled is not None
    assert (pooled.sd, pooled.freedom) == pytest.approx((math.sqrt((2 * 1 + 1 * 8) / 3), 3))
    assert stats.pooled_sd([stats.sample([1.0])]) is None


def test_other_arms_testify_about_seeds() -> None:
    up, down = {0: 1.0, 1: 2.0, 2: 3.0}, {0: 3.0, 1: 2.0, 2: 1.0}
    seeds = stats.SeedCorrelation({"base": up, "x": up, "y": down, "short": {0: 1.0}})
    assert seeds.without("x", "base") == pytest.approx(-1)
    assert seeds.without("short", "base") == pytest.approx(-1 / 3)
    assert stats.SeedCorrelation({"base": up, "x": up}).without("x", "base") is None


def test_pairs_are_left_where_other_arms_see_nothing_in_the_seed() -> None:
    arm, base = {0: 1.0, 1: 2.0, 2: 3.1}, {0: 1.1, 1: 2.1, 2: 3.0}
    assert stats.difference(arm, base, 0.0).method == "Welch t"
    assert stats.difference(arm, base, 0.9).method == stats.difference(arm, base).method == "paired t"


def test_one_seed_gives_an_estimate_without_an_interval() -> None:
    one = stats.mean_interval([1.25])
    assert one.estimate == 1.25
    assert math.isnan(one.low)
    assert not one.excludes_zero


def test_nothing_gives_nothing() -> None:
    none = stats.difference({}, {0: 1.0})
    assert (none.n, math.isnan(none.estimate)) == (0, True)


def test_equal_values_give_a_point() -> None:
    gap = stats.welch_difference([2.0, 2.0], [1.0, 1.0, 1.0])
    assert (gap.low, gap.high, gap.p, gap.n) == (1.0, 1.0, 0.0, 2)
    same = stats.welch_difference([1.0, 1.0], [1.0, 1.0])
    assert (same.p, same.p_equivalent(0.1)) == (1.0, 0.0)


def test_excludes_zero_on_both_sides() -> None:
    assert stats.mean_interval([1.0, 1.1]).excludes_zero
    assert stats.mean_interval([-1.0, -1.1]).excludes_zero
    assert not stats.mean_interval([-1.0, 1.1]).excludes_zero


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="finite"):
        stats.mean_interval([1.0, bad, 2.0])
