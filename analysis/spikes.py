"""Sudden jumps of the training loss, found against the run's own recent past."""

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from analysis.frames import query
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PAST = 64  # logged steps that say what is usual
LEAST = 32  # of them that must be there: fewer do not tell how far a loss usually strays
LIMIT = 6.0  # robust standard deviations above the median
ROBUST_SD = 1.4826  # times the median absolute deviation is the standard deviation of normal noise

PORTION = 2_000_000  # rows of runs that are looked at together, for the sake of memory

RUNS_SQL = """
SELECT p.run_id, p.arm, p.seed, coalesce(sum(b.n), 0)::BIGINT AS n
FROM plan_runs p LEFT JOIN train_bins b USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id GROUP BY ALL ORDER BY p.run_id
"""
LOSSES_SQL = """
SELECT run_id, step, loss FROM train WHERE run_id IN (SELECT unnest($runs)) AND run_id BETWEEN $first AND $last
    AND isfinite(loss) ORDER BY run_id, step
"""


def spikes(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """Logged steps whose loss (nats per token) exceeds the running median by more than LIMIT robust deviations.

    Columns: arm, seed, run_id, step, loss, median of the PAST logged steps before it, deviations above that median. The
    usual is what came before a step, the step itself left out; a loss that is not finite is no usual one.
    """
    runs = query(con, RUNS_SQL, plan)
    portions = runs.with_columns(portion=pl.col("n").cum_sum() // PORTION).partition_by("portion")
    found = [_of_losses(_losses(con, portion["run_id"].to_list())) for portion in portions]
    columns = ("arm", "seed", "run_id", "step", "loss", "median", "deviations")
    return pl.concat(found).join(runs, on="run_id").select(columns).sort("arm", "seed", "step")


def _losses(con: "DuckDBPyConnection", runs: list[str]) -> pl.DataFrame:
    """run_id, step, loss: the finite ones of some runs, in order. The ends let whole parts of segments be passed over."""
    params = {"runs": runs, "first": runs[0], "last": runs[-1]}
    rows: pl.DataFrame = con.sql(LOSSES_SQL, params=params).pl()
    return rows


def _of_losses(losses: pl.DataFrame) -> pl.DataFrame:
    """Spikes among the losses of `_losses`: run_id, step, loss, median, deviations.

    Windows are examined where the loss exceeds a lower bound of the limit: as more than half of the past lies outside
    its inner quartiles, its median absolute deviation is at least the distance from the median to the nearer one.
    """
    past = pl.col("loss").shift(1)
    most: dict[str, Any] = {"window_size": PAST, "min_samples": LEAST}
    median = past.rolling_median(**most)
    lower = past.rolling_quantile(0.25, interpolation="higher", **most)
    upper = past.rolling_quantile(0.75, interpolation="lower", **most)
    least = pl.min_horizontal(median - lower, upper - median)
    above = (pl.col("loss") - median > 0.999 * LIMIT * ROBUST_SD * least).over("run_id")
    before = pl.int_range(pl.len()).over("run_id").alias("before")
    found = losses.with_columns(before, pl.int_range(pl.len()).alias("at")).filter(above.fill_null(False))
    at = found["at"].to_numpy()[:, None] + np.arange(-PAST, 0)
    inside = found["before"].to_numpy()[:, None] >= np.arange(PAST, 0, -1)
    windows = np.where(inside, losses["loss"].to_numpy()[at.clip(0)], np.nan)
    medians = np.nanmedian(windows, axis=1) if len(found) else np.empty(0)
    sd = ROBUST_SD * np.nanmedian(np.abs(windows - medians[:, None]), axis=1) if len(found) else np.empty(0)
    found = found.with_columns(pl.Series("median", medians), pl.Series("sd", sd))
    excess = pl.col("loss") - pl.col("median")
    # No deviation at all before a jump leaves none to divide by.
    return found.filter(excess > LIMIT * pl.col("sd")).with_columns(deviations=excess / pl.col("sd"))


def by_run(found: pl.DataFrame) -> pl.DataFrame:
    """One row per run with spikes: arm, seed, run_id, how many steps `n`, and of the highest its step and excess."""
    excess = pl.col("loss") - pl.col("median")
    return found.group_by("arm", "seed", "run_id", maintain_order=True).agg(
        pl.len().alias("n"), pl.col("step").get(excess.arg_max()), excess.max().alias("excess")
    )
