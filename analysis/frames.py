"""The runs of a plan as one polars frame: the ground that tables, pictures and checks stand on."""

import json
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# A run that says DONE but has no finite loss has diverged as well: it must not pass for a finished one.
RUNS_SQL = """
SELECT p.ord, p.arm, p.seed, p.run_id, p.match_residual, coalesce(r.state, 'PLANNED') AS state,
    r.* EXCLUDE (run_id, seed, state),
    CASE WHEN r.state = 'DONE' AND isfinite(r.val_loss) THEN 'done'
         WHEN r.state IN ('DONE', 'DIVERGED') THEN 'diverged'
         WHEN r.state = 'FAILED' THEN 'failed'
         ELSE 'unfinished' END AS outcome
FROM plan_runs p LEFT JOIN runs r USING (run_id)
WHERE p.sweep = $sweep AND p.plan_id = $plan_id
ORDER BY p.ord
"""


DECODE_SQL = """
WITH mine AS (SELECT p.arm, d.*, row_number() OVER (PARTITION BY p.arm ORDER BY d.batch DESC, p.ord) AS n
    FROM decode d JOIN plan_runs p USING (run_id) WHERE p.sweep = $sweep AND p.plan_id = $plan_id),
losses AS (SELECT p.arm, avg(r.val_loss) AS val_loss FROM plan_runs p JOIN runs r USING (run_id)
    WHERE p.sweep = $sweep AND p.plan_id = $plan_id AND r.state = 'DONE' AND isfinite(r.val_loss) GROUP BY p.arm)
SELECT arm, batch, tokens_per_s, cache_bytes, cache_bytes / max(cache_bytes) OVER () AS share, val_loss
FROM mine JOIN losses USING (arm) WHERE n = 1 ORDER BY arm
"""


def query(con: "DuckDBPyConnection", sql: str, plan: Plan) -> pl.DataFrame:
    """Run `sql`, in which $sweep and $plan_id stand for the plan."""
    rows: pl.DataFrame = con.sql(sql, params={"sweep": plan.sweep, "plan_id": plan.plan_id}).pl()
    return rows


def runs_frame(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """One row per planned run in plan order: the columns of `runs`, its arm, and its `outcome`.

    `outcome` is done, diverged, failed or unfinished. Only `done` runs have a final loss that counts.
    """
    return query(con, RUNS_SQL, plan)


def decode_costs(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """What `lab decode` measured at its largest batch, a row per arm: tokens_per_s, cache_bytes, their `share` of the
    largest, and the arm's mean final loss."""
    return query(con, DECODE_SQL, plan)


def arms_of(runs: pl.DataFrame) -> list[str]:
    """The arms in plan order."""
    return runs["arm"].unique(maintain_order=True).to_list()


def final_losses(runs: pl.DataFrame, arm: str, column: str = "val_loss") -> dict[int, float]:
    """{seed: final validation loss} of the finished runs of one arm; nats per token, or what `column` holds."""
    done = runs.filter((pl.col("arm") == arm) & (pl.col("outcome") == "done"))
    return dict(zip(done["seed"].to_list(), done[column].to_list(), strict=True))


def account_of(runs: pl.DataFrame, arm: str) -> dict[str, Any]:
    """The parameter and FLOPs account of an arm's first run that has one, or {}."""
    texts = runs.filter((pl.col("arm") == arm) & pl.col("account").is_not_null())["account"]
    return json.loads(texts[0]) if len(texts) else {}


def configs_of(runs: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """{arm: {dotted config key: value}}, the seed left out; arms without a stored configuration are absent."""
    known = runs.filter(pl.col("config").is_not_null()).unique("arm", keep="first", maintain_order=True)
    flat = {arm: flatten(json.loads(text)) for arm, text in known.select("arm", "config").iter_rows()}
    return {arm: {k: v for k, v in config.items() if k != "seed"} for arm, config in flat.items()}


def changes_between_arms(runs: pl.DataFrame, baseline: str) -> dict[str, dict[str, tuple[Any, Any]]]:
    """{arm: {dotted config key: (value in the baseline, value in the arm)}}, the seed left out."""
    configs = configs_of(runs)
    base = configs.get(baseline, {})
    return {
        arm: {k: (base.get(k), config.get(k)) for k in base | config if base.get(k) != config.get(k)}
        for arm, config in configs.items()
        if config and base
    }


def flatten(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} to {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
