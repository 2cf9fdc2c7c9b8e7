"""Sudden jumps of the training loss, found against the run's own recent past."""

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

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
    """run_id, step, loss: finite ones of some runs, in order. The ends let parts of segments be passed over."""
    params = {"runs": runs, "first": runs[0], "last": runs[-1]}
    rows: pl.DataFrame = con.sql(LOSSES_SQL, params=params).pl()
    return rows


def _of_losses(losses: pl.DataFrame) -> pl.DataFrame:
    """Spikes among the losses of `_losses`: run_id, step, loss, median, deviations."""
    before = pl.int_range(pl.len()).over("run_id").alias("before")
    found = losses.with_columns(before, pl.int_range(pl.len()).alias("at"))
    found = found.filter(pl.col("before") >= LEAST, (pl.col("before") < PAST) | _may_exceed(pl.col("loss")))
    known = found["before"].clip(upper_bound=PAST).to_numpy()
    places = found["at"].to_numpy()[:, None] + np.arange(-PAST, 0)
    inside = known[:, None] >= np.arange(PAST, 0, -1)
    past = np.where(inside, losses["loss"].to_numpy()[places.clip(0)], np.nan)
    medians = _medians(past, known)
    sd = ROBUST_SD * _medians(np.abs(past - medians[:, None]), known)
    found = found.with_columns(pl.Series("median", medians), pl.Series("sd", sd))
    excess = pl.col("loss") - pl.col("median")
    return found.filter(excess > LIMIT * pl.col("sd")).with_columns(deviations=excess / pl.col("sd"))


def _may_exceed(loss: pl.Expr) -> pl.Expr:
    """Whether a loss exceeds a lower bound of its limit, many times faster than the limit; for whole windows.

    Of PAST values more than half lie at or beyond the quartiles on either side, so the median absolute deviation is at
    least the distance from the median to the nearer quartile.
    """
    median = loss.rolling_median(PAST)
    lower = loss.rolling_quantile(0.25, interpolation="higher", window_size=PAST)
    upper = loss.rolling_quantile(0.75, interpolation="lower", window_size=PAST)
    median, least = median.shift(1), pl.min_horizontal(median - lower, upper - median).shift(1)
    return loss - median > 0.999 * LIMIT * ROBUST_SD * least  # a little lower still, for the rounding of the last digit


def _medians(values: NDArray[np.float64], known: NDArray[np.int64]) -> NDArray[np.float64]:
    """The median of each row, of which `known` values are no NaN."""
    values, rows = np.sort(values, axis=1), np.arange(len(values))
    medians: NDArray[np.float64] = (values[rows, (known - 1) // 2] + values[rows, known // 2]) / 2
    return medians


def by_run(found: pl.DataFrame) -> pl.DataFrame:
    """One row per run with spikes: arm, seed, run_id, how many steps `n`, and of the highest its step and excess."""
    excess = pl.col("loss") - pl.col("median")
    return found.group_by("arm", "seed", "run_id", maintain_order=True).agg(
        pl.len().alias("n"), pl.col("step").get(excess.arg_max()), excess.max().alias("excess")
    )
