"""The learning rate that a search recommends, on a surface whose optimum is known."""

import numpy as np

from benchmarks.search import FACTOR, SURFACES, searched


def test_the_recommended_lr_is_near_the_optimum_in_19_of_20_searches() -> None:
    found = [searched(SURFACES["parabola"], 0.01, seed) for seed in range(40)]
    assert np.mean([one.factor <= FACTOR for one in found]) >= 0.95
    assert np.mean([one.luckiest <= FACTOR for one in found]) < 0.95, "the curve is better than the luckiest trial"
    assert max(one.late for one in found) < 0.5
    assert np.mean([one.covered for one in found]) > 0.82  # of 40, at 95 %
