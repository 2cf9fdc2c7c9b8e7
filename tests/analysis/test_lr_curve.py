"""The minimum of the curve through trials that lie anywhere."""

import math

import numpy as np
import pytest

from analysis.lr import LrError
from analysis.lr_curve import recommend


def test_exact_parabolas_and_cubics_give_their_minimum_back() -> None:
    lrs = np.geomspace(1e-4, 1e-1, 13)
    x = np.log(lrs / 2e-3)
    assert recommend(list(lrs), list(3 + 0.08 * x**2)).lr == pytest.approx(2e-3, rel=1e-4)
    near = lrs[np.abs(x) < 2]
    z = np.log(near / 2e-3)
    assert recommend(list(near), list(3 + 0.1 * z**2 + 0.02 * z**3)).lr == pytest.approx(2e-3, rel=1e-3)


def test_the_interval_covers_the_truth_at_least_as_often_as_it_says() -> None:
    dice, hits, tries = np.random.default_rng(0), 0, 400
    for _ in range(tries):
        best = 3e-3 * np.exp(dice.uniform(-0.5, 0.5))
        x = dice.uniform(math.log(3e-4), math.log(3e-2), 20)
        found = recommend(list(np.exp(x)), list(3 + 0.08 * (x - math.log(best)) ** 2 + dice.normal(0, 0.02, 20)), 9.0)
        hits += found.low is not None and found.high is not None and found.low <= best <= found.high
    assert hits / tries > 0.93


def test_divergence_bounds_and_enters_nothing_else() -> None:
    lrs = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
    found = recommend([*lrs, 6.4e-2, 0.128], [3.4, 3.2, 3.1, 3.1, 3.2, 3.4, math.nan, 11.0], initial_loss=6.0)
    assert found.lr == pytest.approx(math.sqrt(4e-3 * 8e-3), rel=0.02)
    assert found.diverges_from == pytest.approx(6.4e-2)
    assert found.used == 6
    assert found.interior


def test_an_optimum_that_is_not_enclosed_is_said_to_be_none() -> None:
    lrs = list(np.geomspace(1e-5, 1e-3, 8))
    found = recommend(lrs, [5 - 0.2 * i for i in range(8)])
    assert found.lr == pytest.approx(1e-3)
    assert (found.low, found.high, found.interior) == (None, None, False)
    assert not recommend([1e-3, 2e-3, 3e-3], [3.0, 2.0, 3.0]).interior, "three trials leave no freedom"
    assert not recommend([1e-3] * 6, [3.0, 2.0, 3.0, 2.5, 2.1, 2.2]).interior
    with pytest.raises(LrError):
        recommend([1e-3], [math.nan])
