"""One self-contained HTML page per plan: question and answer first, then table, pictures, warnings, provenance."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import polars as pl

from analysis.answer import answer
from analysis.draw import Look, looks_for
from analysis.frames import arms_of, changes_between_arms, runs_frame
from analysis.lint_sweep import lint
from analysis.pictures import Picture, pictures_for
from analysis.provenance import listed, provenance
from analysis.select import Plan
from analysis.table import number, summary, troubles
from analysis.units import si

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]
AXIS_LABELS = [("step", "steps"), ("tokens", "tokens"), ("flops", "FLOPs"), ("wall_s", "time")]
RUN_COLUMNS = ("arm", "seed", "run_id", "state", "step", "steps", "val_loss", "tokens_per_s", "data_fingerprint")


@dataclass(frozen=True)
class ReportFiles:
    """The page, and every picture as PNG and SVG under `figures/` beside it."""

    html: Path
    images: list[Path]


@dataclass(frozen=True)
class Column:
    """A column of the page's table: what a row shows there, in small print, and what it sorts by."""

    title: str
    text: Callable[[Row], str]
    sort: str
    hint: str = ""
    small: Callable[[Row], str] = lambda row: ""


def _value(title: str, key: str, spec: str, hint: str = "") -> Column:
    return Column(title, lambda row: number(row[key], spec), key, hint)


def _estimate(title: str, key: str, spec: str, hint: str) -> Column:
    def interval(row: Row) -> str:
        low, high = row[f"{key}_low"], row[f"{key}_high"]
        return "" if low is None else f"{low:{spec}} … {high:{spec}}"

    return Column(title, lambda row: number(row[key], spec), key, hint, interval)


COLUMNS = [
    Column("arm", lambda row: row["arm"], "arm"),
    Column(
        "runs done",
        lambda row: f"{row['done']} / {row['planned']}",
        "done",
        "finished with a finite loss / planned",
        lambda row: ", ".join(f"{n} {kind}" for kind, n in troubles(row).items()),
    ),
    _estimate("validation loss", "val_loss", ".4f", "mean over seeds, nats per token"),
    _estimate("minus baseline", "difference", "+.4f", "paired by seed where seeds are shared"),
    _value("bits per byte", "bits_per_byte", ".4f"),
    _value("perplexity", "perplexity", ".3f", "mean over seeds, per token"),
    Column(
        "parameters",
        lambda row: number(row["params"], ","),
        "params",
        "total; small print: without the embedding",
        lambda row: number(row["params_non_embedding"], ",") + " non-emb.",
    ),
    _value("residual", "match_residual", "+.2%", "largest deviation of the matched quantity from its target"),
    Column(
        "compute / run",
        lambda row: si(row["train_flops"], "FLOPs"),
        "train_flops",
        "training FLOPs of one run, forward and backward; small print: of one token",
        lambda row: si(row["flops_per_token"], "FLOPs") + " / token",
    ),
    Column("tokens / run", lambda row: si(row["tokens"]), "tokens"),
    _value("tokens / s", "tokens_per_s", ",.0f", "median over runs"),
]


def write_report(con: "DuckDBPyConnection", plan: Plan, out: Path) -> ReportFiles:
    """Write `out`/index.html and `out`/figures/*.png, *.svg; `con` is only read."""
    looks = looks_for(arms_of(runs_frame(con, plan)), plan.baseline)
    pictures = pictures_for(con, plan, looks)
    images = [path for picture in pictures for path in picture.save(out / "figures")]
    out.mkdir(parents=True, exist_ok=True)
    html = out / "index.html"
    html.write_text(render(con, plan, looks, pictures), encoding="utf-8")
    return ReportFiles(html, images)


def render(con: "DuckDBPyConnection", plan: Plan, looks: dict[str, Look], pictures: list[Picture]) -> str:
    """The page. Every name and text of the record goes through autoescape; nothing is loaded from elsewhere."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    rows, runs, notices = summary(con, plan), runs_frame(con, plan), lint(con, plan)
    return environment.get_template("report.html").render(
        plan=plan,
        answer=answer(plan, rows),
        serious=sum(finding.level != "note" for finding in notices),
        columns=COLUMNS,
        rows=_table(rows, looks, _changes(runs, plan)),
        pictures=pictures,
        axes=AXIS_LABELS,
        notices=notices,
        origin=provenance(con, plan),
        counted=listed,
        run_columns=RUN_COLUMNS,
        runs=[["" if cell is None else cell for cell in row] for row in runs.select(RUN_COLUMNS).iter_rows()],
    )


def _table(rows: list[Row], looks: dict[str, Look], changes: dict[str, list[str]]) -> list[Row]:
    return [
        {
            "color": looks[row["arm"]].color,
            "changes": ["baseline"] if row["baseline"] else changes.get(row["arm"], []),
            "cells": [_cell(column, row) for column in COLUMNS],
        }
        for row in rows
    ]


def _cell(column: Column, row: Row) -> Row:
    sort = row[column.sort]
    alert = column.sort == "done"
    return {"text": column.text(row), "small": column.small(row), "sort": "" if sort is None else sort, "alert": alert}


def _changes(runs: pl.DataFrame, plan: Plan) -> dict[str, list[str]]:
    if plan.baseline is None:
        return {}
    changed = changes_between_arms(runs, plan.baseline)
    return {arm: [f"{key} {old} → {new}" for key, (old, new) in keys.items()] for arm, keys in changed.items()}
