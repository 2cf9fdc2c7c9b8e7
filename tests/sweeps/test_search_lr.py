"""The learning rate that a search recommends, on a surface whose optimum is known."""

import numpy as np
import pytest

from benchmarks.search import FACTOR, SURFACES, searched


@pytest.mark.parametrize(("surface", "noise"), [("parabola", 0.01), ("flattening", 0.02), ("lopsided", 0.01)])
def test_the_recommended_lr_is_near_the_optimum_in_19_of_20_searches(surface: str, noise: float) -> None:
    found = [searched(SURFACES[surface], noise, seed) for seed in range(40)]
    assert np.mean([one.factor <= FACTOR for one in found]) >= 0.95
    assert np.mean([one.luckiest <= FACTOR for one in found]) < 0.95, "the curve is better than the luckiest trial"
    assert max(one.late for one in found) < 0.5
    assert np.mean([one.covered for one in found]) > 0.82  # of 40, at 95 %
