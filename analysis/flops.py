"""Where the arithmetic of an arm goes: forward FLOPs per token by component."""

from typing import TYPE_CHECKING

import polars as pl

from analysis.frames import account_of, arms_of, runs_frame
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA: dict[str, type[pl.DataType]] = {
    "arm": pl.String,
    "component": pl.String,
    "flops_per_token": pl.Float64,
    "share": pl.Float64,
}


def flops_shares(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """One row per arm and component: forward FLOPs per token and their share of the arm's forward pass (0 to 1).

    Read from the account that was stored when the run was planned. Arms without an account are absent.
    """
    runs = runs_frame(con, plan)
    rows = []
    for arm in arms_of(runs):
        parts = account_of(runs, arm).get("forward_flops_by_component", {})
        total = sum(parts.values())
        rows += [(arm, component, float(flops), flops / total) for component, flops in parts.items() if flops]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")
