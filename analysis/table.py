"""One row per arm: what it is, what it cost, what it reached."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis import stats
from analysis.frames import arms_of, final_losses, runs_frame
from analysis.select import Plan
from analysis.units import si
from analysis.verdict_sweep import BITS, Judged, bits_per_nat, judge_plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from rich.table import Table

# Columns and their polars types. Losses are nats per token, intervals 95 %; `difference` is arm minus baseline, in
# `difference_unit`.
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
    "kv_bytes_per_token": pl.Float64,
    "step_s": pl.Float64,  # median over runs
    "tokens_per_s": pl.Float64,  # median over runs
    "peak_memory_bytes": pl.Int64,  # the largest of the runs
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
    "difference_unit": pl.String,
    "difference_percent": pl.Float64,
    "difference_bits_per_byte": pl.Float64,
    "p_holm": pl.Float64,
    "compute_gain": pl.Float64,
    "compute_gain_low": pl.Float64,
    "compute_gain_high": pl.Float64,
    "compute_gain_reason": pl.String,
    "verdict": pl.String,
    "reason": pl.String,
    "tuned": pl.String,  # where tuning put the arm
}
# What stands beside a verdict: costs.
COSTS = (
    "params",
    "params_non_embedding",
    "train_flops",
    "flops_per_token",
    "kv_bytes_per_token",
    "step_s",
    "tokens_per_s",
    "peak_memory_bytes",
    "match_residual",
)


def summary(con: "DuckDBPyConnection", plan: Plan, judged: Judged | None = None) -> list[dict[str, Any]]:
    """The table as JSON-ready rows in plan order, keys as in `SCHEMA`; what does not exist is None.

    Means are over finished runs with a finite loss; `diverged`, `failed` and `unfinished` count the others.
    """
    return rows_of(runs_frame(con, plan), judged or judge_plan(con, plan))


def rows_of(runs: pl.DataFrame, judged: Judged) -> list[dict[str, Any]]:
    """The same of runs that were judged."""
    return [_row(runs, arm, judged) for arm in arms_of(runs)]


def summary_frame(con: "DuckDBPyConnection", plan: Plan) -> pl.DataFrame:
    """The same as a polars frame."""
    return pl.DataFrame(summary(con, plan), schema=SCHEMA)


def _row(runs: pl.DataFrame, arm: str, judged: Judged) -> dict[str, Any]:
    mine = runs.filter(pl.col("arm") == arm)
    done = mine.filter(pl.col("outcome") == "done")
    row: dict[str, Any] = {"arm": arm, "baseline": arm == judged.baseline, "planned": len(mine)}
    row |= {kind: (mine["outcome"] == kind).sum() for kind in ("done", "diverged", "failed", "unfinished")}
    # One configuration, many seeds: every run of the arm has the same size.
    row |= {key: mine[key].max() for key in ("params", "params_non_embedding")}
    row["match_residual"] = max(mine["match_residual"].drop_nulls(), key=abs, default=None)
    row |= {key: mine[key].max() for key in ("flops_per_token", "train_flops", "tokens", "kv_bytes_per_token")}
    row["step_s"] = (done["wall_s"] / done["steps"]).median()
    row |= {"tokens_per_s": done["tokens_per_s"].median(), "peak_memory_bytes": done["peak_memory_bytes"].max()}
    row |= _losses(runs, arm)
    row |= {"bits_per_byte": done["val_bits_per_byte"].mean(), "perplexity": done["val_perplexity"].mean()}
    row |= _gap(runs, arm, judged) | {"tuned": judged.tuned and judged.tuned.sentence(arm)}
    return {key: none_if_not_finite(row.get(key)) for key in SCHEMA}


def _losses(runs: pl.DataFrame, arm: str) -> dict[str, Any]:
    mean = stats.mean_interval(list(final_losses(runs, arm).values()))
    return {"val_loss": mean.estimate, "val_loss_low": mean.low, "val_loss_high": mean.high}


def _gap(runs: pl.DataFrame, arm: str, judged: Judged) -> dict[str, Any]:
    if arm not in judged.verdicts:
        return {}
    verdict, gain, base = judged.verdicts[arm], judged.gains[arm], judged.baseline or ""
    gap = verdict.gap
    level = stats.mean_interval(list(final_losses(runs, base, judged.column).values())).estimate
    scale = 1.0 if judged.unit == BITS else bits_per_nat(runs, base) or math.nan
    return {
        "difference": gap.estimate,
        "difference_low": gap.low,
        "difference_high": gap.high,
        "difference_n": gap.n,
        "difference_method": gap.method,
        "difference_unit": judged.unit,
        "difference_percent": 100 * gap.estimate / abs(level) if level else math.nan,
        "difference_bits_per_byte": gap.estimate * scale,
        "p_holm": verdict.p_holm,
        "compute_gain": gain.ratio,
        "compute_gain_low": gain.low,
        "compute_gain_high": gain.high,
        "compute_gain_reason": gain.reason,
        "verdict": verdict.word,
        "reason": verdict.reason,
    }


def verdict_json(con: "DuckDBPyConnection", plan: Plan, judged: Judged) -> dict[str, Any]:
    """The answer of `lab verdict NAME --json`: verdicts, each with what the arm costs, and the baseline's costs."""
    rows = summary(con, plan, judged)
    return {
        "sweep": plan.sweep,
        "plan_id": plan.plan_id,
        "scale": plan.scale,
        "question": plan.question,
        **judged_json(rows, judged),
    }


def judged_json(rows: list[dict[str, Any]], judged: Judged) -> dict[str, Any]:
    """Verdicts and costs of the rows of `rows_of`, keys as in docs/verdicts.md."""
    by_arm = {row["arm"]: row for row in rows}
    keys = {"difference_percent": "effect_percent", "difference_bits_per_byte": "effect_bits_per_byte"}
    gains = ("compute_gain", "compute_gain_low", "compute_gain_high", "compute_gain_reason")
    arms = [
        verdict.to_json()
        | {new: by_arm[arm][old] for old, new in keys.items()}
        | {key: by_arm[arm][key] for key in (*gains, "failed", "unfinished", "val_loss", *COSTS)}
        for arm, verdict in judged.verdicts.items()
    ]
    base = by_arm.get(judged.baseline or "", {})
    return {
        "baseline": judged.baseline,
        "unit": judged.unit,
        "smallest_effect": judged.smallest_effect,
        "arms": arms,
        "baseline_costs": {key: base.get(key) for key in ("val_loss", "done", "diverged", *COSTS)},
        "pooled_sd": judged.pooled and judged.pooled.sd,
        "pooled_df": judged.pooled and judged.pooled.freedom,
    }


def none_if_not_finite(value: Any) -> Any:
    """JSON has no NaN: None stands for a number that does not exist."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def terminal_table(rows: list[dict[str, Any]]) -> "Table":
    """The rows as a rich table for a terminal; the keys that a person compares first."""
    titles = ("runs", "params", "residual", "FLOPs/token", "tokens/s", "validation loss", "minus baseline", "verdict")
    return _table(titles, rows, lambda row: (*_start(row), *_sizes(row), *_end(row)))


def verdict_tables(rows: list[dict[str, Any]]) -> tuple["Table", "Table"]:
    """Two tables for a terminal: what each arm reached against the baseline, and what it costs."""
    titles = ("runs", "validation loss", "minus baseline", "%", "bits per byte", "p (Holm)", "compute gain", "verdict")
    costs = ("params", "residual", "FLOPs/token", "tokens/s", "s/step", "KV bytes/token", "peak memory")
    return (
        _table(titles, rows, lambda row: (*_start(row), *_end(row)[:2], *_effect(row), *_end(row)[2:])),
        _table(costs, rows, lambda row: (*_sizes(row), *_memory(row))),
    )


def _table(
    titles: Sequence[str], rows: list[dict[str, Any]], cells: Callable[[dict[str, Any]], Iterable[str]]
) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table("arm", *titles)
    for row in rows:
        table.add_row(Text(row["arm"]), *cells(row))  # Text, not markup: an arm may be called "[red]"
    return table


def _start(row: dict[str, Any]) -> tuple[str, ...]:
    lost = "".join(f", {n} {kind}" for kind, n in troubles(row).items())
    return (f"{row['done']}/{row['planned']}{lost}",)


def _sizes(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        number(row["params"], ","),
        number(row["match_residual"], "+.2%"),
        number(row["flops_per_token"], ".3g"),
        number(row["tokens_per_s"], ",.0f"),
    )


def _end(row: dict[str, Any]) -> tuple[str, ...]:
    unit = f" {BITS}" if row["difference_unit"] == BITS else ""  # the losses beside it are in nats
    gap = "baseline" if row["baseline"] else with_interval(row, "difference", "+.4f") + unit
    return with_interval(row, "val_loss", ".4f"), gap, row["verdict"] or ""


def _effect(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        number(row["difference_percent"], "+.2f"),
        number(row["difference_bits_per_byte"], "+.4f"),
        number(row["p_holm"], ".2g"),
        with_interval(row, "compute_gain", ".2f"),
    )


def _memory(row: dict[str, Any]) -> tuple[str, ...]:
    return number(row["step_s"], ".3g"), number(row["kv_bytes_per_token"], ",.0f"), si(row["peak_memory_bytes"], "B")


def troubles(row: dict[str, Any]) -> dict[str, int]:
    """{what went wrong: how many runs}, only what did."""
    return {kind: row[kind] for kind in ("diverged", "failed", "unfinished") if row[kind]}


def number(value: float | None, spec: str) -> str:
    """`value` in the given format, or a dash."""
    return "–" if value is None else format(value, spec)


def with_interval(row: dict[str, Any], key: str, spec: str) -> str:
    """`estimate [low, high]`; without the brackets where there is no interval, an end that is open left out."""
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    if low is None:
        return number(row[key], spec)
    return f"{row[key]:{spec}} [{low:{spec}}, {'…' if high is None else format(high, spec)}]"
