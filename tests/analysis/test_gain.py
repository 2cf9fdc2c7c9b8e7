import math

import numpy as np
import pytest

from analysis.gain import compute_gain, fit
from analysis.stats import Interval

E, A, B = 1.5, 2.0, 0.3
FLOPS = np.linspace(0.05, 1, 20) * 1e15


def curve(shift: float = 0.0, noise: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    losses = E + A * (FLOPS / 1e13) ** -B + shift + np.random.default_rng(seed).normal(0, noise, len(FLOPS))
    return list(zip(FLOPS.tolist(), losses.tolist(), strict=True))


def gap(effect: float, error: float = 0.002) -> Interval:
    return Interval(effect, error, 4, 3, "paired t")


def test_the_exponent_of_a_known_curve_is_found() -> None:
    found = fit(curve())
    assert found is not None
    assert (found.exponent, found.reducible) == pytest.approx((B, A * 100**-B), rel=1e-3)


@pytest.mark.parametrize("times", [0.5, 0.9, 1.0, 1.3, 3.0])
def test_an_arm_as_good_as_so_many_times_the_compute_has_that_gain(times: float) -> None:
    effect = A * (100 * times) ** -B - A * 100**-B
    found = compute_gain({0: curve(), 1: curve(0.01)}, gap(effect), 1.0)
    assert found.ratio == pytest.approx(times, rel=2e-3)
    assert found.low is not None and found.high is not None and found.low < times < found.high


def test_an_arm_that_costs_more_gains_less() -> None:
    assert compute_gain({0: curve()}, gap(0.0), 2.0).ratio == pytest.approx(0.5)


def test_noise_of_the_curves_widens_the_interval() -> None:
    quiet = compute_gain({s: curve() for s in range(3)}, gap(-0.03), 1.0)
    noisy = compute_gain({s: curve(noise=0.01, seed=s) for s in range(3)}, gap(-0.03), 1.0)
    assert None not in (quiet.low, quiet.high, noisy.low, noisy.high)
    assert (noisy.high or 0) - (noisy.low or 0) > (quiet.high or 0) - (quiet.low or 0)


def test_where_the_curve_gives_no_number_it_says_why() -> None:
    assert "four points" in str(compute_gain({0: curve()[-3:]}, gap(-0.01), 1.0).reason)
    assert "four points" in str(compute_gain({0: [(c, -loss) for c, loss in curve()]}, gap(0.0), 1.0).reason)
    far = compute_gain({0: curve()}, gap(-0.6), 1.0)
    assert far.ratio is None and "beyond 10 times" in str(far.reason)
    open_end = compute_gain({0: curve()}, gap(-0.1, 0.2), 1.0)
    assert open_end.ratio is not None and open_end.high is None and "no upper end" in str(open_end.reason)
    assert compute_gain({0: curve()}, Interval(-0.1, math.nan, math.nan, 1, "t"), 1.0).low is None
