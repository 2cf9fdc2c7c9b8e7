"""Equal budgets: within tolerance, or refused with the nearest solutions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcore import count
from lmcore.config import ModelConfig, replace
from sweeps.match import COSTS, residual, solve
from sweeps.spec import Match, SweepError

BASE = ModelConfig(d_model=128, ffn="relu", vocab=100)


def test_a_gated_ffn_gets_two_thirds_of_the_width() -> None:
    arm = solve(replace(BASE, {"ffn": "swiglu"}), BASE, Match())
    assert arm.d_ff == pytest.approx(512 * 2 / 3, rel=0.01)
    assert abs(residual(arm, BASE, Match())) <= 0.005


def test_a_round_width_is_taken_only_where_it_costs_no_bias() -> None:
    big = ModelConfig(d_model=4096, ffn="relu", n_layer=32, n_head=32)
    assert solve(replace(big, {"ffn": "swiglu"}), big, Match()).d_ff == 10912  # 32 x 341, exact is 10922.7
    small = solve(replace(BASE, {"ffn": "swiglu"}), BASE, Match())
    assert small.d_ff == 341
    assert abs(residual(small, BASE, Match())) < 0.001


def test_equal_arms_stay_as_they_are() -> None:
    assert solve(replace(BASE, {"ffn": "gelu"}), BASE, Match()).d_ff == BASE.d_ff


def test_what_cannot_be_matched_is_refused_with_the_nearest_on_both_sides() -> None:
    base = ModelConfig(d_model=64, n_head=4, n_layer=1, ffn="relu", d_ff=4, vocab=2)
    with pytest.raises(SweepError, match=r"nearest: d_ff 1: .*\(-.*d_ff 2: .*\(\+") as caught:
        solve(replace(base, {"ffn": "swiglu", "bias": "qkv"}), base, Match(tolerance=1e-5))
    assert f"{count.params(base):,}" in str(caught.value)


def test_an_arm_that_is_too_large_without_any_ffn_is_refused() -> None:
    base = ModelConfig(d_model=64, n_head=4, n_layer=2, d_ff=8)
    with pytest.raises(SweepError, match="no d_ff"):
        solve(replace(base, {"n_layer": 8}), base, Match())


@settings(max_examples=200, deadline=None)
@given(
    by=st.sampled_from(list(COSTS)),
    ffn=st.sampled_from(["relu", "swiglu", "geglu", "gelu"]),
    n_layer=st.integers(1, 6),
    d_ff=st.integers(1, 700),
    bias=st.sampled_from(["none", "all", "qkv"]),
    arm_layers=st.integers(1, 6),
    tolerance=st.floats(1e-4, 0.05),
)
def test_within_tolerance_or_refused(
    by: str, ffn: str, n_layer: int, d_ff: int, bias: str, arm_layers: int, tolerance: float
) -> None:
    base = replace(BASE, {"n_layer": n_layer, "d_ff": d_ff})
    match = Match(by=by, tolerance=tolerance)  # type: ignore[arg-type]
    arm = replace(base, {"ffn": ffn, "bias": bias, "n_layer": arm_layers})
    try:
        found = solve(arm, base, match)
    except SweepError:
        brute = min(abs(residual(replace(arm, {"d_ff": n}), base, match)) for n in range(1, 5000))
        assert brute > tolerance
    else:
        assert abs(residual(found, base, match)) <= tolerance
        assert replace(found, {"d_ff": 1}) == replace(arm, {"d_ff": 1})
