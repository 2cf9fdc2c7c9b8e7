"""Loss curves per arm: seeds aggregated, spikes kept, values that are not finite counted.

A curve frame has one row per (arm, step): `step`, `tokens`, `flops`, `wall_s` (mean over seeds), `mean`, `low`, `high`
(min and max over seeds), `n` seeds with a finite value there and `n_bad` seeds whose value is NaN or infinite. That of
`train_curve` has a row per (arm, cell of steps) and more columns. Numbers of tables come from neither.
"""

import math
from typing import TYPE_CHECKING

import polars as pl

from analysis.frames import query
from analysis.select import Plan
from analysis.stats import t_quantile

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

AXES = ("step", "tokens", "flops", "wall_s")
WINDOW = 0.02  # of the rows of a curve frame, in the smoothed line of a picture

# Seeds in a cell of bins: widths are powers of two, so that each bin lies in one cell.
CELLS_SQL = """
WITH per_run AS (
    SELECT p.arm, p.seed, b.bin - b.bin % {width} AS cell, sum(b.total) / nullif(sum(b.n), 0) AS mean,
        min(b.low) AS low, max(b.high) AS high, min(b.bad_step) AS bad_step,
        min(b.first_step) AS first_step, max(b.last_step) AS last_step,
        min(b.first_tokens) AS first_tokens, max(b.last_tokens) AS last_tokens,
        min(b.first_flops) AS first_flops, max(b.last_flops) AS last_flops,
        min(b.first_wall_s) AS first_wall_s, max(b.last_wall_s) AS last_wall_s
    FROM plan_runs p JOIN train_bins b USING (run_id)
    WHERE p.sweep = $sweep AND p.plan_id = $plan_id GROUP BY ALL
)
SELECT arm, min(first_step) AS first_step, max(last_step) AS last_step,
    avg(first_tokens) AS first_tokens, avg(last_tokens) AS last_tokens, avg(first_flops) AS first_flops,
    avg(last_flops) AS last_flops, avg(first_wall_s) AS first_wall_s, avg(last_wall_s) AS last_wall_s,
    avg(mean) AS mean, stddev_samp(mean) AS sd, min(low) AS low, max(high) AS high,
    count(mean) AS n, count(bad_step) AS n_bad, min(bad_step) AS bad_step
FROM per_run GROUP BY arm, cell ORDER BY arm, cell
"""
LAST_SQL = """
SELECT max(b.last_step) AS last FROM plan_runs p JOIN train_bins b USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id
"""
LOG_WIDTH = "(1 << greatest(floor(log2(b.bin))::INTEGER - 4, 0))"  # 16 cells an octave

# The rows of a run in a cell that must not be lost, as they are: the ends, the lowest, the highest.
EXTREMES_SQL = """
WITH mine AS (
    SELECT p.seed, b.bin - b.bin % {width} AS cell, b.* FROM plan_runs p JOIN train_bins b USING (run_id)
    WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND p.arm = $arm
)
SELECT seed, low_step AS step, low AS loss FROM mine WHERE n > 0
    QUALIFY row_number() OVER (PARTITION BY seed, cell ORDER BY low, low_step) = 1
UNION SELECT seed, high_step, high FROM mine WHERE n > 0
    QUALIFY row_number() OVER (PARTITION BY seed, cell ORDER BY high DESC, high_step) = 1
UNION SELECT seed, min(bad_step), 'nan'::DOUBLE FROM mine WHERE n_bad > 0 GROUP BY seed, cell
ORDER BY seed, step
"""

# Evaluations carry no clock: theirs is that of training at their step, straight between the ends of its bin, for
# pictures; 0 before the first step.
VAL_SQL = """
SELECT p.arm, p.seed, e.step, e.tokens, e.tokens * r.flops_per_token AS flops,
    coalesce(b.first_wall_s + (b.last_wall_s - b.first_wall_s)
        * coalesce(least((e.step - b.first_step) / nullif(b.last_step - b.first_step, 0), 1), 0), 0) AS wall_s, e.loss
FROM plan_runs p JOIN evals e USING (run_id) JOIN runs r USING (run_id)
    ASOF LEFT JOIN train_bins b ON b.run_id = e.run_id AND b.first_step <= e.step
WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND e.split = 'val'
"""


def train_curve(con: "DuckDBPyConnection", plan: Plan, log: bool = False) -> pl.DataFrame:
    """A curve frame of the training loss (nats per token), a row per arm and cell of steps, from bins.

    A cell is a 128th to a 256th of the longest run; with `log`, a 16th to a 32nd of the steps before it. `mean` is over
    seeds, each the mean of its losses there; `mean_low` and `mean_high` are the 95 % t interval of that; `low` and
    `high` are the extremes of any seed at any step: no spike is lost. Each of AXES stands at the middle of the cell,
    goes from `first_` to `last_`, and `bad_` is where the first loss that is not finite lies.
    """
    width = LOG_WIDTH if log else _width(con, plan)
    cells = query(con, CELLS_SQL.format(width=width), plan)
    middles = [((pl.col(f"first_{axis}") + pl.col(f"last_{axis}")) / 2).alias(axis) for axis in AXES]
    inside = (pl.col("bad_step") - pl.col("first_step")) / (pl.col("last_step") - pl.col("first_step")).clip(1)
    bad = [
        (pl.col(f"first_{axis}") + inside * (pl.col(f"last_{axis}") - pl.col(f"first_{axis}"))).alias(f"bad_{axis}")
        for axis in AXES
    ]
    half = pl.col("sd") * pl.Series([_interval(n) for n in cells["n"].to_list()], dtype=pl.Float64)
    return cells.with_columns(*middles, *bad, mean_low=pl.col("mean") - half, mean_high=pl.col("mean") + half).drop(
        "sd"
    )


def run_extremes(con: "DuckDBPyConnection", plan: Plan, arm: str, log: bool = False) -> pl.DataFrame:
    """The losses of every run of one arm that downsampling by min-max keeps, where they were: seed, step, loss.

    Of every cell as in `train_curve` the lowest and the highest row, and a NaN at the first step that was not finite.
    """
    width = LOG_WIDTH if log else _width(con, plan)
    params = {"sweep": plan.sweep, "plan_id": plan.plan_id, "arm": arm}
    rows: pl.DataFrame = con.sql(EXTREMES_SQL.format(width=width), params=params).pl()
    return rows


def _width(con: "DuckDBPyConnection", plan: Plan) -> int:
    """Steps in a cell of a linear axis: the power of two that makes 128 to 256 cells of the longest run."""
    last = query(con, LAST_SQL, plan)["last"][0] or 1
    return 1 << max(0, int(last).bit_length() - 8)


def _interval(n: int) -> float | None:
    """Half of the 95 % t interval of a mean over n seeds, in standard deviations of a seed; None below two."""
    return t_quantile(0.95, n - 1) / math.sqrt(n) if n > 1 else None


def val_points(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """Every validation loss of every run, as arm, seed, step, tokens, flops, wall_s, loss (nats per token)."""
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


def thin(curve: pl.DataFrame, bins: int = 300, log: bool = False) -> pl.DataFrame:
    """At most a handful of rows per arm and bin of steps, among them the lowest and the highest: no spike is lost.

    With `log`, bins are equally wide on a logarithmic axis, on which there is no step 0.
    """
    first, last = pl.col("step").min().over("arm"), pl.col("step").max().over("arm")
    if log:
        curve = curve.filter(pl.col("step") > 0)
        place = (pl.col("step") / first).log() / (((last + 1) / first).log()) * bins
        curve = curve.with_columns(bin=place.cast(pl.Int64))
    else:
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
