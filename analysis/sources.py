"""Where rows come from: a file that somebody has, or the runs of a sweep in the database."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.frames import flatten, runs_frame
from analysis.ladder import Columns
from analysis.select import UnknownSweep, resolve_plan
from analysis.tables import SUFFIXES, TableError, read_table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from results.home import Home

# What a sweep's columns are for; options given by name win.
SWEEP_COLUMNS = Columns(
    n="params", d="tokens", loss="val_loss", run="run_id", seed="seed", lr="train.lr", width="model.d_model"
)
KEPT = ("arm", "seed", "run_id", "group_id", "outcome", "params", "params_non_embedding", "tokens", "train_flops")
LATER = ("val_loss", "val_bits_per_byte", "initial_loss", "step", "steps", "tokenizer", "vocab", "data_fingerprint")


def is_file(source: str) -> bool:
    """Whether `source` means a file rather than a sweep."""
    path = Path(source)
    return path.is_file() or path.suffix.lower() in SUFFIXES


def load(source: str, columns: Columns, home: "Home") -> tuple[pl.DataFrame, Columns]:
    """The table and which of its columns play which part. Raises TableError, UnknownSweep, OSError."""
    if is_file(source):
        return read_table(Path(source)), columns
    import results

    try:
        with results.open(home) as con:
            frame = sweep_table(con, source)
    except UnknownSweep as error:
        raise UnknownSweep(f"there is no file {source!r}, and {error}") from None
    given = {name: value for name, value in vars(columns).items() if value}
    return frame, replace(SWEEP_COLUMNS, **given)


def sweep_table(con: "DuckDBPyConnection", name: str) -> pl.DataFrame:
    """One row per run of the sweep's plan: counts, losses, and its configuration under dotted names.

    `val_loss` of a run that diverged is NaN; runs that have not finished are absent. Raises TableError without any.
    """
    plan = resolve_plan(con, name)
    runs = runs_frame(con, plan)
    first = con.sql(
        "SELECT run_id, first(loss ORDER BY step) AS initial_loss FROM evals WHERE step = 0 GROUP BY 1"
    ).pl()
    runs = runs.join(first, on="run_id", how="left").filter(pl.col("outcome").is_in(["done", "diverged"]))
    if runs.is_empty():
        raise TableError(f"no run of {plan.name} has finished yet")
    loss = pl.when(pl.col("outcome") == "done").then("val_loss").otherwise(float("nan"))
    configs = pl.DataFrame([_scalars(text) for text in runs["config"]], infer_schema_length=None)
    frame = runs.with_columns(loss.alias("val_loss")).select(*KEPT, *LATER).with_columns(pl.col("seed").cast(pl.String))
    frame = frame.with_columns(pl.col(pl.Int32, pl.Int64).cast(pl.Float64))
    return pl.concat([frame, configs.drop("seed", strict=False)], how="horizontal")


def _scalars(text: str | None) -> dict[str, Any]:
    """Numbers as floats, the rest as text."""
    flat = flatten(json.loads(text)) if text else {}
    return {
        key: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        for key, value in flat.items()
        if value is not None and not isinstance(value, list)
    }
