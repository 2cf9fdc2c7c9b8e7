"""Loss curves per arm: seeds aggregated, spikes kept, values that are not finite counted.

A curve frame has one row per (arm, step): `step`, `tokens`, `flops`, `wall_s` (mean over seeds), `mean`, `low`, `high`
(min and max over seeds), `n` seeds with a finite value there and `n_bad` seeds whose value is NaN or infinite.
"""

from typing import TYPE_CHECKING

import polars as pl

from analysis.frames import query
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

AXES = ("step", "tokens", "flops", "wall_s")
WINDOW = 0.02  # of a run's rows, in the smoothed line of a picture

TRAIN_SQL = """
SELECT p.arm, p.seed, t.step, t.tokens, t.flops, t.wall_s, t.loss
FROM plan_runs p JOIN train t USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id
"""

# Evaluations carry no clock: theirs is that of the last training row before them, and 0 before the first.
VAL_SQL = """
SELECT p.arm, p.seed, e.step, e.tokens, e.tokens * r.flops_per_token AS flops,
    coalesce(t.wall_s, 0) AS wall_s, e.loss
FROM plan_runs p JOIN evals e USING (run_id) JOIN runs r USING (run_id)
    ASOF LEFT JOIN train t ON t.run_id = e.run_id AND t.step <= e.step
WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND e.split = 'val'
"""


def train_points(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """Every logged training loss (nats per token) of every run: arm, seed, step, tokens, flops, wall_s, loss."""
    return query(con, TRAIN_SQL, plan)


def val_points(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """Every validation loss of every run, columns as in `train_points`."""
    return query(con, VAL_SQL, plan)


def over_seeds(points: pl.DataFrame) -> pl.DataFrame:
    """Points of single runs to a curve frame, sorted by arm and step."""
    finite = pl.col("loss").is_finite().fill_null(False)
    loss = pl.col("loss").filter(finite)
    return (
        points.group_by("arm", "step")
        .agg(
            pl.col("tokens", "flops", "wall_s").mean(),
            loss.mean().alias("mean"),
            loss.min().alias("low"),
            loss.max().alias("high"),
            finite.sum().cast(pl.Int64).alias("n"),
            (~finite).sum().cast(pl.Int64).alias("n_bad"),
        )
        .sort("arm", "step")
    )


def minus_baseline(points: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """Points whose loss is arm minus baseline at the same seed and the same number of tokens.

    Arms see the same batches in the same order per seed, so most of the noise of a curve cancels here.
    """
    base = points.filter(pl.col("arm") == baseline).select("seed", "tokens", pl.col("loss").alias("base"))
    others = points.filter(pl.col("arm") != baseline)
    return others.join(base, on=["seed", "tokens"]).with_columns(loss=pl.col("loss") - pl.col("base")).drop("base")


def thin(curve: pl.DataFrame, bins: int = 300) -> pl.DataFrame:
    """At most a handful of rows per arm and bin of steps, among them the lowest and the highest: no spike is lost."""
    first, last = pl.col("step").min().over("arm"), pl.col("step").max().over("arm")
    curve = curve.with_columns(bin=(pl.col("step") - first) * bins // (last - first + 1))
    cell = ["arm", "bin"]
    keep = (
        (pl.col("step") == first)
        | (pl.col("step") == last)
        | (pl.col("low") == pl.col("low").min().over(cell))
        | (pl.col("high") == pl.col("high").max().over(cell))
        | ((pl.col("n_bad") > 0) & (pl.col("n_bad") == pl.col("n_bad").max().over(cell)))
    )
    return curve.filter(keep.fill_null(False)).drop("bin")


def smooth(curve: pl.DataFrame, fraction: float = WINDOW) -> pl.DataFrame:
    """Adds `smoothed`, a centred running mean over `fraction` of an arm's rows. For the eye, never for a number."""
    parts = []
    for part in curve.partition_by("arm", maintain_order=True):
        window = max(1, round(len(part) * fraction))
        parts.append(part.with_columns(smoothed=pl.col("mean").rolling_mean(window, min_samples=1, center=True)))
    return pl.concat(parts) if parts else curve.with_columns(smoothed=pl.col("mean"))
