"""One row per arm: what it is, what it cost, what it reached."""

import math
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis import stats
from analysis.frames import arms_of, final_losses, runs_frame
from analysis.select import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from rich.table import Table

# Columns and their polars types. Losses are nats per token, intervals 95 %, `difference` is arm minus baseline.
SCHEMA: dict[str, type[pl.DataType]] = {
    "arm": pl.String,
    "baseline": pl.Boolean,
    "planned": pl.Int64,
    "done": pl.Int64,
    "diverged": pl.Int64,
    "failed": pl.Int64,
    "unfinished": pl.Int64,
    "params": pl.Int64,
    "params_non_embedding": pl.Int64,
    "match_residual": pl.Float64,  # the residual of largest size among the arm's runs, as a fraction
    "flops_per_token": pl.Float64,  # training: forward and backward
    "train_flops": pl.Float64,  # of one run
    "tokens": pl.Int64,  # of one run
    "tokens_per_s": pl.Float64,  # median over runs
    "val_loss": pl.Float64,
    "val_loss_low": pl.Float64,
    "val_loss_high": pl.Float64,
    "bits_per_byte": pl.Float64,
    "perplexity": pl.Float64,
    "difference": pl.Float64,
    "difference_low": pl.Float64,
    "difference_high": pl.Float64,
    "difference_n": pl.Int64,
    "difference_method": pl.String,
}


def summary(con: "DuckDBPyConnection", plan: Plan) -> list[dict[str, Any]]:
    """The table as JSON-ready rows in plan order, keys as in `SCHEMA`; what does not exist is None.

    Means are over finished runs with a finite loss; `diverged`, `failed` and `unfinished` count the others.
    """
    runs = runs_frame(con, plan)
    return [_row(runs, arm, plan.baseline) for arm in arms_of(runs)]


def summary_frame(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """The same as a polars frame."""
    return pl.DataFrame(summary(con, plan), schema=SCHEMA)


def _row(runs: pl.DataFrame, arm: str, baseline: str | None) -> dict[str, Any]:
    mine = runs.filter(pl.col("arm") == arm)
    done = mine.filter(pl.col("outcome") == "done")
    row: dict[str, Any] = {"arm": arm, "baseline": arm == baseline, "planned": len(mine)}
    row |= {kind: (mine["outcome"] == kind).sum() for kind in ("done", "diverged", "failed", "unfinished")}
    # One configuration, many seeds: every run of the arm has the same size.
    row |= {key: mine[key].max() for key in ("params", "params_non_embedding")}
    row["match_residual"] = max(mine["match_residual"].drop_nulls(), key=abs, default=None)
    row |= {key: mine[key].max() for key in ("flops_per_token", "train_flops", "tokens")}
    row["tokens_per_s"] = done["tokens_per_s"].median()
    row |= _losses(runs, arm)
    row |= {"bits_per_byte": done["val_bits_per_byte"].mean(), "perplexity": done["val_perplexity"].mean()}
    row |= _gap(runs, arm, baseline)
    return {key: none_if_not_finite(row[key]) for key in SCHEMA}


def _losses(runs: pl.DataFrame, arm: str) -> dict[str, Any]:
    mean = stats.mean_interval(list(final_losses(runs, arm).values()))
    return {"val_loss": mean.estimate, "val_loss_low": mean.low, "val_loss_high": mean.high}


def _gap(runs: pl.DataFrame, arm: str, baseline: str | None) -> dict[str, Any]:
    if baseline is None or arm == baseline:
        return {key: None for key in SCHEMA if key.startswith("difference")}
    gap = stats.difference(final_losses(runs, arm), final_losses(runs, baseline))
    return {
        "difference": gap.estimate,
        "difference_low": gap.low,
        "difference_high": gap.high,
        "difference_n": gap.n,
        "difference_method": gap.method,
    }


def none_if_not_finite(value: Any) -> Any:
    """JSON has no NaN: None stands for a number that does not exist."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def terminal_table(rows: list[dict[str, Any]]) -> "Table":
    """The rows as a rich table for a terminal; the keys that a person compares first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        "arm", *("runs", "params", "residual", "FLOPs/token", "tokens/s", "validation loss", "minus baseline")
    )
    for row in rows:
        cells = (
            f"{row['done']}/{row['planned']}" + "".join(f", {n} {kind}" for kind, n in troubles(row).items()),
            number(row["params"], ","),
            number(row["match_residual"], "+.2%"),
            number(row["flops_per_token"], ".3g"),
            number(row["tokens_per_s"], ",.0f"),
            with_interval(row, "val_loss", ".4f"),
            "baseline" if row["baseline"] else with_interval(row, "difference", "+.4f"),
        )
        # Text, not markup: an arm may be called "[red]".
        table.add_row(Text(row["arm"]), *cells)
    return table


def troubles(row: dict[str, Any]) -> dict[str, int]:
    """{what went wrong: how many runs}, only what did."""
    return {kind: row[kind] for kind in ("diverged", "failed", "unfinished") if row[kind]}


def number(value: float | None, spec: str) -> str:
    """`value` in the given format, or a dash."""
    return "–" if value is None else format(value, spec)


def with_interval(row: dict[str, Any], key: str, spec: str) -> str:
    """`estimate [low, high]`; without the brackets where there is no interval."""
    if row[f"{key}_low"] is None:
        return number(row[key], spec)
    return f"{row[key]:{spec}} [{row[f'{key}_low']:{spec}}, {row[f'{key}_high']:{spec}}]"
