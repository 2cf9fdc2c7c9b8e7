"""Equal budgets: within tolerance, or refused with the nearest solutions."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcore import count
from lmcore.config import ConfigError, ModelConfig, replace
from lmcore.resize import RESIZE
from sweeps.match import COSTS, neighbours, residual, solve
from sweeps.spec import Match, Sweep, SweepError
from tests.lmcore.models import models

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


@settings(max_examples=100, deadline=None)
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
        brute = min(abs(residual(replace(arm, {"d_ff": n}), base, match)) for n in range(1, 3000))
        assert brute > tolerance
    else:
        assert abs(residual(found, base, match)) <= tolerance
        assert replace(found, {"d_ff": 1}) == replace(arm, {"d_ff": 1})


def matched(arm: ModelConfig, base: ModelConfig, **how: Any) -> ModelConfig:
    return solve(arm, base, Match(**how))


def sizes(m: ModelConfig) -> tuple[int, ...]:
    return m.n_layer, m.d_model, m.n_head, m.n_kv_head, m.d_head, m.d_ff


def test_deeper_models_are_made_narrower_in_proportion() -> None:
    base = ModelConfig(vocab=100, n_layer=8, d_model=512, n_head=8, n_kv_head=4, d_ff=1024)
    arm = matched(replace(base, {"n_layer": 32}), base, over="d_model", by="params_non_embedding")
    assert sizes(arm) == (32, 256, 4, 2, 64, 512)
    assert sizes(matched(replace(base, {"d_ff": 2048}), base, over="d_model", tolerance=0.05)) == (
        8,
        400,
        6,
        3,
        64,
        1600,
    )


def test_what_follows_a_size() -> None:
    """Heads are rounded to the nearest whole group, not down; a derived d_ff is derived anew."""
    gqa = ModelConfig(d_model=512, n_head=8, n_kv_head=4, d_ff=1024)
    assert sizes(RESIZE["d_model"](gqa, 450)) == (4, 450, 8, 4, 64, 900)  # 3.52 groups
    assert sizes(RESIZE["d_model"](gqa, 40)) == (4, 40, 2, 1, 64, 80)  # at least one group
    mqa, mha = (ModelConfig(d_model=512, n_head=8, n_kv_head=n) for n in (1, 8))
    assert sizes(RESIZE["d_model"](mqa, 320)) == (4, 320, 5, 1, 64, 856)
    assert sizes(RESIZE["d_model"](mha, 320)) == (4, 320, 5, 5, 64, 856)
    assert sizes(RESIZE["n_head"](gqa, 3)) == (4, 512, 6, 3, 64, 1024)
    local = ModelConfig(n_layer=2, window=4, window_pattern="LLF")
    assert RESIZE["n_layer"](local, 7).layer_kinds == "LLFLLFL"


def test_layers_and_heads_are_found_by_their_number() -> None:
    base = ModelConfig(vocab=100, n_layer=8, d_model=64, n_head=8, d_ff=256)
    assert matched(replace(base, {"n_layer": 3}), base, over="n_layer").n_layer == 8
    arm = matched(replace(base, {"n_head": 2, "d_head": 8}), base, over="n_head", by="flops")
    assert sizes(arm) == sizes(base)


def test_a_group_keeps_its_size_and_mqa_its_one_head() -> None:
    base = ModelConfig(vocab=100, d_model=128, n_head=8, d_ff=256)
    gqa = matched(replace(base, {"n_kv_head": 2}), base, over="n_head", by="kv_bytes")
    assert sizes(gqa) == (4, 128, 32, 8, 16, 256)
    mqa = matched(replace(base, {"n_kv_head": 1}), base, over="n_head", tolerance=0.05)
    assert (mqa.n_kv_head, mqa.d_head) == (1, 16)
    assert mqa.n_head > 8


def test_equal_cache_with_windows_needs_more_layers() -> None:
    base = ModelConfig(n_layer=4, context=128)
    local = replace(base, {"window": 32, "window_pattern": "LF"})
    assert matched(local, base, over="n_layer", by="kv_bytes").n_layer == 7  # 4 x 32 + 3 x 128 = 4 x 128


def test_a_size_that_changes_nothing_is_refused_with_the_reason() -> None:
    base = ModelConfig(d_model=128, n_head=8)
    for n_kv_head in (4, 1):
        with pytest.raises(SweepError, match="d_ff does not change kv_bytes"):
            matched(replace(base, {"n_kv_head": n_kv_head}), base, by="kv_bytes")
    with pytest.raises(SweepError, match="n_head does not change kv_bytes"):
        matched(replace(base, {"n_kv_head": 1}), base, by="kv_bytes", over="n_head")


def test_an_arm_may_be_left_as_it_is() -> None:
    arms = {"a": {}, "b": {"model.n_kv_head": 1}, "c": {"model.n_kv_head": 2}}
    match = Match(arms=("c",))
    assert [match.covers(arm) for arm in arms] == [False, False, True]
    with pytest.raises(ValueError, match=r"match\.arms names 'd'"):
        Sweep("?", arms, baseline="a", match=Match(arms=("d",)))
    with pytest.raises(ValueError, match="tolerance"):
        Match(tolerance=-1.0)


@settings(max_examples=300, deadline=None)
@given(
    arm=models(),
    base=models(),
    by=st.sampled_from(list(COSTS)),
    over=st.sampled_from(list(RESIZE)),
    tolerance=st.floats(1e-4, 0.2),
    multiple=st.sampled_from([1, 8, 64]),
)
def test_random_pairs_are_within_tolerance_or_refused_with_both_sides(
    arm: ModelConfig, base: ModelConfig, by: Any, over: Any, tolerance: float, multiple: int
) -> None:
    match = Match(by=by, over=over, tolerance=tolerance, multiple=multiple)
    cost, target = COSTS[by], COSTS[by](base)
    try:
        found = solve(arm, base, match)
    except SweepError as error:
        near = neighbours(arm, base, match)
        assert all(abs(residual(m, base, match)) > tolerance for m in near)
        _are_the_nearest(near, arm, match, target)
        if "does not change" in str(error):
            assert cost(RESIZE[match.over](arm, 50)) == cost(RESIZE[match.over](arm, 4000))
        else:
            assert re.findall(rf"{over} (\d+):", str(error)) == [str(getattr(m, over)) for m in near]
    else:
        assert abs(residual(found, base, match)) <= tolerance
        kept = {"d_ff", "n_layer", "d_model", "n_head", "n_kv_head"}
        kept -= {over} | ({"n_head", "n_kv_head", "d_ff"} if over == "d_model" else set())
        kept -= {"n_kv_head"} if over == "n_head" else set()
        assert {k: getattr(found, k) for k in kept} == {k: getattr(arm, k) for k in kept}
        assert found.d_head == arm.d_head


def _are_the_nearest(near: list[ModelConfig], arm: ModelConfig, match: Match, target: int) -> None:
    """By trying every size: nothing lies between the two, and one alone is the smallest or the largest there is."""
    cost = COSTS[match.by]
    costs = [cost(m) for m in near]
    assert costs == sorted(costs)
    if len(near) == 2:
        assert costs[0] < target < costs[1]
    numbers = sorted({getattr(m, match.over) for m in near})
    for n in range(1, min(2 * numbers[-1] + 2, 60)):
        try:
            tried = cost(RESIZE[match.over](arm, n))
        except ConfigError:
            continue  # too few layers for the pattern
        assert not min([target, *costs]) < tried < max([target, *costs])


@settings(max_examples=100, deadline=None)
@given(models(), st.sampled_from(list(COSTS)), st.sampled_from(list(RESIZE)))
def test_no_cost_falls_when_a_size_grows(arm: ModelConfig, by: str, over: Any) -> None:
    """What the search rests on."""
    costs = []
    for n in range(1, 40):
        try:
            costs.append(COSTS[by](RESIZE[over](arm, n)))
        except ConfigError:
            assert over == "n_layer"
            assert not costs
    assert costs == sorted(costs)
