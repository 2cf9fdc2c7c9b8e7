import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest

from analysis import curves, draw, figures
from analysis.draw import looks_for
from analysis.select import Plan, resolve_plan
from tests.analysis.synthetic import (
    BATCH_TOKENS,
    EVAL_EVERY,
    STEPS,
    Arm,
    Builder,
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


def test_train_curve_is_mean_interval_and_extremes_over_seeds(con: Any, plan: Plan) -> None:
    curve = curves.train_curve(con, plan).filter(pl.col("arm") == "swiglu")
    truth = np.stack([train_losses(five_arms()[3], seed) for seed in range(3)])
    starts = [1, *range(4, STEPS + 1, 4)]
    assert curve["first_step"].to_list() == starts
    assert curve["last_step"].to_list() == [*(start - 1 for start in starts[1:]), STEPS]
    assert curve["first_tokens"].to_list() == [start * BATCH_TOKENS for start in starts]
    at = np.array(starts) - 1
    counts = np.diff([*at, STEPS])
    means = np.add.reduceat(truth, at, axis=1) / counts
    half = 4.302652729911275 * means.std(0, ddof=1) / math.sqrt(3)  # t of 2 degrees of freedom, 97.5 %
    np.testing.assert_allclose(curve["mean"], means.mean(0), atol=1e-6)
    np.testing.assert_allclose(curve["mean_high"] - curve["mean"], half, atol=1e-5)
    np.testing.assert_allclose(curve["mean"] - curve["mean_low"], half, atol=1e-5)
    np.testing.assert_array_equal(curve["low"], np.minimum.reduceat(truth, at, axis=1).min(0))
    np.testing.assert_array_equal(curve["high"], np.maximum.reduceat(truth, at, axis=1).max(0))
    assert set(curve["n"]) == {3}


def test_cells_of_a_logarithmic_axis_are_as_wide_as_a_16th_of_their_step(con: Any, plan: Plan) -> None:
    curve = curves.train_curve(con, plan, log=True).filter(pl.col("arm") == "relu")
    first, last = curve["first_step"].to_numpy(), curve["last_step"].to_numpy()
    assert (first[1:] == last[:-1] + 1).all() and first[0] == 1 and last[-1] == STEPS
    assert (last[first < 32] == first[first < 32]).all()
    whole = last < STEPS
    width = 2.0 ** (np.floor(np.log2(first)) - 4)
    assert (last - first + 1)[whole & (first >= 16)].tolist() == width[whole & (first >= 16)].tolist()


def test_spikes_of_one_step_are_in_every_curve_where_they_were() -> None:
    builder, chance = Builder(), random.Random(3)
    builder.plan([Arm("a"), Arm("b")], seeds=2)
    steps = 20_000
    (run,) = builder.con.execute("SELECT run_id FROM plan_runs WHERE arm = 'a' AND seed = 0").fetchall()[0]
    builder.con.execute("DELETE FROM train_rows WHERE run_id = ?", [run])
    up, down, bad = chance.sample(range(300, steps), 3)
    builder.con.execute(
        "INSERT INTO train_rows SELECT ?, 1, s, s * 10, s * 2.0, s * 0.5, "
        "CASE s WHEN ? THEN 50 WHEN ? THEN 0.001 WHEN ? THEN 'nan'::DOUBLE ELSE 2 + random() END, 1, 1, 1 "
        "FROM range(1, ?) t(s)",
        [run, up, down, bad, steps + 1],
    )
    builder.bin_rows()
    plan = resolve_plan(builder.con, "ffn_ablation")
    for log in (False, True):
        curve = curves.smooth(curves.train_curve(builder.con, plan, log=log)).filter(pl.col("arm") == "a")
        for step, column, value in ((up, "high", 50), (down, "low", 0.001), (bad, "n_bad", 1)):
            (cell,) = curve.filter(pl.col("first_step") <= step, pl.col("last_step") >= step).to_dicts()
            assert cell[column] == value
            assert cell["last_step"] - cell["first_step"] < (step / 16 if log else steps / 128)
        axes = figures.loss_figure(curve, draw.LOG if log else "step", "t", looks_for(["a"], "a")).axes[0]
        band: Any = axes.collections[0]
        drawn = band.get_paths()[0].vertices
        assert drawn[:, 1].max() == 50 and drawn[:, 1].min() == 0.001
        cell = curve.filter(pl.col("high") == 50).row(0, named=True)
        assert set(drawn[drawn[:, 1] == 50][:, 0]) == {cell["first_step"], cell["last_step"]}
        kept = curves.run_extremes(builder.con, plan, "a", log=log).filter(pl.col("seed") == 0)
        assert {(up, 50.0), (down, 0.001)} < set(kept.filter(pl.col("loss").is_finite()).select("step", "loss").rows())
        assert kept.filter(pl.col("loss").is_nan())["step"].to_list() == [bad]
        assert len(kept) < 800
        axes = figures.runs_figure(kept, "a", log, looks_for(["a"], "a")["a"]).axes[0]
        assert {up, down, bad} <= {float(x) for line in axes.lines for x in np.asarray(line.get_xdata())}
    builder.con.close()


def test_val_curve_has_the_clock_and_compute_of_its_step(con: Any, plan: Plan) -> None:
    curve = curves.over_seeds(curves.val_points(con, plan)).filter(pl.col("arm") == "relu")
    assert curve.select("step", "tokens", "flops", "wall_s").row(0) == (0, 0, 0, 0)
    row = curve.row(1, named=True)
    assert row["mean"] == pytest.approx(np.mean([val_loss(five_arms()[0], seed, EVAL_EVERY) for seed in range(3)]))
    assert row["flops"] == pytest.approx(EVAL_EVERY * BATCH_TOKENS * 5e6)
    assert row["wall_s"] == pytest.approx(np.mean([EVAL_EVERY * 0.045 * (1 + 0.02 * seed) for seed in range(3)]))


def test_a_run_that_diverges_is_counted_where_it_does(con: Any, trouble: Plan) -> None:
    curve = curves.train_curve(con, trouble).filter(pl.col("arm") == "gelu")
    assert curve.filter(pl.col("n_bad") > 0).select("first_step", "n", "n_bad").rows() == [(300, 2, 1)]
    assert curve.filter(pl.col("first_step") == 304)["n"].item() == 2
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


def test_thinning_for_a_logarithmic_axis_bins_in_its_steps() -> None:
    losses = np.random.default_rng(2).normal(2, 0.1, 10_000)
    thin = curves.thin(curves.over_seeds(points([losses.tolist()])), bins=40, log=True)
    edges = np.exp(np.linspace(0, math.log(10_001), 41))
    for low, high in pairwise(edges):
        inside = losses[[s - 1 for s in range(1, 10_001) if low * (1 + 1e-9) <= s < high * (1 - 1e-9)]]
        kept = thin.filter(pl.col("step") >= low * (1 - 1e-9), pl.col("step") < high * (1 + 1e-9))
        if len(inside):
            assert {inside.min(), inside.max()} <= set(kept["mean"])
    assert len(thin) <= 80


def test_smoothing_adds_a_column_and_changes_no_other() -> None:
    curve = curves.over_seeds(points([[1.0, 5.0, 3.0, 3.0]]))
    smoothed = curves.smooth(curve, fraction=0.75)
    assert smoothed.drop("smoothed").equals(curve)
    assert smoothed["smoothed"].to_list() == pytest.approx([3.0, 3.0, 11 / 3, 3.0])


def test_nothing_logged_gives_empty_frames() -> None:
    empty = points([[]])
    assert curves.smooth(curves.thin(curves.over_seeds(empty.cast({"loss": pl.Float64})))).is_empty()
