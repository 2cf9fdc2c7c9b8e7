import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis import curves
from analysis.select import Plan
from tests.analysis.synthetic import (
    BATCH_TOKENS,
    EVAL_EVERY,
    STEPS,
    five_arms,
    train_losses,
    val_loss,
)


def points(losses: list[list[float | None]]) -> pl.DataFrame:
    """One arm; losses[seed][step - 1]."""
    rows = [
        ("a", s, i, i * 10, i * 100.0, i * (1.0 + s), x) for s, row in enumerate(losses) for i, x in enumerate(row, 1)
    ]
    return pl.DataFrame(
        rows, schema=["arm", "seed", "step", "tokens", "flops", "wall_s", "loss"], orient="row", strict=False
    )


def test_train_curve_is_mean_and_range_over_seeds(con: Any, plan: Plan) -> None:
    curve = curves.over_seeds(curves.train_points(con, plan)).filter(pl.col("arm") == "swiglu")
    truth = np.stack([train_losses(five_arms()[3], seed) for seed in range(3)])
    assert curve["step"].to_list() == list(range(1, STEPS + 1))
    assert curve["tokens"].to_list() == [s * BATCH_TOKENS for s in range(1, STEPS + 1)]
    np.testing.assert_allclose(curve["mean"], truth.mean(0), rtol=1e-12)
    np.testing.assert_allclose(curve["low"], truth.min(0), rtol=1e-12)
    np.testing.assert_allclose(curve["high"], truth.max(0), rtol=1e-12)
    assert set(curve["n"]) == {3}


def test_val_curve_has_the_clock_and_compute_of_its_step(con: Any, plan: Plan) -> None:
    curve = curves.over_seeds(curves.val_points(con, plan)).filter(pl.col("arm") == "relu")
    assert curve.select("step", "tokens", "flops", "wall_s").row(0) == (0, 0, 0, 0)
    row = curve.row(1, named=True)
    assert row["mean"] == pytest.approx(np.mean([val_loss(five_arms()[0], seed, EVAL_EVERY) for seed in range(3)]))
    assert row["flops"] == pytest.approx(EVAL_EVERY * BATCH_TOKENS * 5e6)
    assert row["wall_s"] == pytest.approx(np.mean([EVAL_EVERY * 0.045 * (1 + 0.02 * seed) for seed in range(3)]))


def test_a_run_that_diverges_is_counted_where_it_does(con: Any, trouble: Plan) -> None:
    curve = curves.over_seeds(curves.train_points(con, trouble)).filter(pl.col("arm") == "gelu")
    assert curve.filter(pl.col("n_bad") > 0).select("step", "n", "n_bad").rows() == [(300, 2, 1)]
    assert curve.filter(pl.col("step") == 301)["n"].item() == 2
    assert curve["mean"].is_finite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_values_that_are_not_finite_leave_the_mean_but_not_the_count(bad: Any) -> None:
    curve = curves.over_seeds(points([[2.0, 4.0], [3.0, bad], [4.0, bad]]))
    assert curve.select("mean", "low", "high", "n", "n_bad").rows() == [(3.0, 2.0, 4.0, 3, 0), (4.0, 4.0, 4.0, 1, 2)]


def test_a_step_without_any_finite_value_stays_as_a_row_without_mean() -> None:
    curve = curves.over_seeds(points([[2.0, math.nan]]))
    assert curve.select("mean", "n", "n_bad").rows() == [(2.0, 1, 0), (None, 0, 1)]


def test_difference_is_paired_by_seed_and_tokens() -> None:
    base = points([[3.0, 2.0], [5.0, 4.0]])
    arm = points([[2.9, 1.8], [4.7, math.nan]]).with_columns(arm=pl.lit("b"))
    gap = curves.over_seeds(curves.minus_baseline(pl.concat([base, arm]), "a"))
    assert gap["mean"].to_list() == pytest.approx([-0.2, -0.2])
    assert gap["low"].to_list() == pytest.approx([-0.3, -0.2])
    assert gap["n_bad"].to_list() == [0, 1]


def test_difference_recovers_the_known_offset(con: Any, plan: Plan) -> None:
    gap = curves.over_seeds(curves.minus_baseline(curves.val_points(con, plan), "relu"))
    last = dict(gap.filter(pl.col("step") == STEPS).select("arm", "mean").iter_rows())
    assert last == pytest.approx({"gelu": -0.004, "silu": 0.002, "swiglu": -0.035, "geglu": -0.031})


def test_thinning_keeps_ends_spikes_and_flags() -> None:
    rng = np.random.default_rng(0)
    losses = rng.normal(2, 0.1, 50_000)
    losses[[17_321, 40_002]] = 9.0, 0.5
    losses[30_003] = math.nan
    curve = curves.over_seeds(points([losses.tolist()]))
    thin = curves.thin(curve, bins=100)
    kept = thin["step"].to_list()
    assert len(thin) <= 100 * 2 + 3
    assert {1, 17_322, 40_003, 30_004, 50_000} <= set(kept)
    assert kept == sorted(kept)
    assert thin.columns == curve.columns


def test_thinning_keeps_the_extremes_of_every_bin() -> None:
    losses = np.random.default_rng(1).normal(2, 0.1, 1000)
    thin = curves.thin(curves.over_seeds(points([losses.tolist()])), bins=10)
    for lo in range(0, 1000, 100):
        part = thin.filter(pl.col("step").is_between(lo + 1, lo + 100))
        assert (part["low"].min(), part["high"].max()) == (losses[lo : lo + 100].min(), losses[lo : lo + 100].max())


def test_smoothing_adds_a_column_and_changes_no_other() -> None:
    curve = curves.over_seeds(points([[1.0, 5.0, 3.0, 3.0]]))
    smoothed = curves.smooth(curve, fraction=0.75)
    assert smoothed.drop("smoothed").equals(curve)
    assert smoothed["smoothed"].to_list() == pytest.approx([3.0, 3.0, 11 / 3, 3.0])


def test_nothing_logged_gives_empty_frames() -> None:
    empty = points([[]])
    assert curves.smooth(curves.thin(curves.over_seeds(empty.cast({"loss": pl.Float64})))).is_empty()
