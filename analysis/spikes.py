"""Sudden jumps of the training loss, found against the run's own recent past."""

from typing import TYPE_CHECKING

import polars as pl

from analysis.frames import query
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PAST = 64  # logged steps that say what is usual
LEAST = 32  # of them that must be there: fewer do not tell how far a loss usually strays
LIMIT = 6.0  # robust standard deviations above the median
ROBUST_SD = 1.4826  # times the median absolute deviation is the standard deviation of normal noise

# The usual is what came before a step, the step itself left out; a loss that is not finite is no usual one.
SPIKES_SQL = f"""
WITH usual AS (
    SELECT p.arm, p.seed, p.run_id, t.step, t.loss, count(*) OVER past AS n,
        median(t.loss) OVER past AS median, {ROBUST_SD} * mad(t.loss) OVER past AS sd
    FROM plan_runs p JOIN train t USING (run_id)
    WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND isfinite(t.loss)
    WINDOW past AS (PARTITION BY p.run_id, p.arm, p.seed ORDER BY t.step ROWS BETWEEN {PAST} PRECEDING AND 1 PRECEDING)
)
SELECT arm, seed, run_id, step, loss, median, (loss - median) / sd AS deviations
FROM usual WHERE n >= {LEAST} AND loss > median + {LIMIT} * sd
ORDER BY arm, seed, step
"""


def spikes(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """Logged steps whose loss (nats per token) exceeds the running median by more than LIMIT robust deviations.

    Columns: arm, seed, run_id, step, loss, median of the PAST logged steps before it, deviations above that median.
    """
    return query(con, SPIKES_SQL, plan)


def by_run(found: pl.DataFrame) -> pl.DataFrame:
    """One row per run with spikes: arm, seed, run_id, how many steps `n`, and of the highest its step and excess."""
    excess = pl.col("loss") - pl.col("median")
    return found.group_by("arm", "seed", "run_id", maintain_order=True).agg(
        pl.len().alias("n"), pl.col("step").get(excess.arg_max()), excess.max().alias("excess")
    )
