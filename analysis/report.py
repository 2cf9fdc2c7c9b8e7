"""One self-contained HTML page per plan: question and answer first, then table, pictures, warnings, provenance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
import polars as pl

from analysis.answer import headline, judged, own, sentence, terms
from analysis.draw import LOG, Look, looks_for
from analysis.frames import arms_of, changes_between_arms, runs_frame
from analysis.lint_sweep import lint
from analysis.pictures import Picture, pictures_for
from analysis.provenance import attempts_frame, listed, provenance
from analysis.report_text import Appendix, latex, latex_of_table, markdown, markdown_of_table
from analysis.sections import Section, StoredPicture, folder_of, kept
from analysis.select import Plan
from analysis.table import number, summary, troubles
from analysis.told import sort_key
from analysis.units import si
from results.files import write_bytes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from results.home import Home

Row = dict[str, Any]
Kind = Literal["html", "md", "latex"]
NAMES: dict[Kind, str] = {"html": "index.html", "md": "appendix.md", "latex": "appendix.tex"}
AXIS_LABELS = [("step", "steps"), ("tokens", "tokens"), ("flops", "FLOPs"), ("wall_s", "time"), (LOG, "steps, log")]
RUN_COLUMNS = ("arm", "seed", "run_id", "state", "step", "steps", "val_loss", "tokens_per_s", "data_fingerprint")


@dataclass(frozen=True)
class ReportFiles:
    """The page, and every picture as PNG and SVG under `figures/` beside it."""

    page: Path
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


def _gain(row: Row) -> str:
    low, high = row["compute_gain_low"], row["compute_gain_high"]
    return "" if low is None else f"{low:.2f} … {'' if high is None else format(high, '.2f')}"


COLUMNS = [
    Column("arm", lambda row: row["arm"], "arm"),
    Column("verdict", lambda row: row["verdict"] or "baseline", "verdict", "each word holds for the whole table"),
    _estimate("validation loss", "val_loss", ".4f", "mean over seeds, nats per token"),
    _estimate("minus baseline", "difference", "+.4f", "arm minus baseline with its own 95 % interval"),
    _value("%", "difference_percent", "+.2f", "of the baseline's loss"),
    _value("Δ bits / byte", "difference_bits_per_byte", "+.4f", "the difference in bits per byte of text"),
    _value("p", "p_holm", ".2g", "of no difference, after Holm over all arms"),
    Column(
        "compute gain",
        lambda row: number(row["compute_gain"], ".2f") + ("" if row["compute_gain"] is None else " ×"),
        "compute_gain",
        "how many times its compute the baseline would need, along its own loss curve",
        _gain,
    ),
    Column(
        "runs done",
        lambda row: f"{row['done']} / {row['planned']}",
        "done",
        "finished with a finite loss / planned",
        lambda row: ", ".join(f"{n} {kind}" for kind, n in troubles(row).items()),
    ),
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
    Column("KV cache", lambda row: si(row["kv_bytes_per_token"], "B"), "kv_bytes_per_token", "bytes of one token"),
    Column(
        "speed",
        lambda row: number(row["tokens_per_s"], ",.0f"),
        "tokens_per_s",
        "training tokens per second, median over runs; small print: of one step",
        lambda row: "" if row["step_s"] is None else f"{1000 * row['step_s']:.3g} ms / step",
    ),
    Column("memory", lambda row: si(row["peak_memory_bytes"], "B"), "peak_memory_bytes", "peak of any run"),
    _value("bits per byte", "bits_per_byte", ".4f"),
    _value("perplexity", "perplexity", ".3f", "mean over seeds, per token"),
]


def write_report(
    con: "DuckDBPyConnection", plan: Plan, out: Path, kind: Kind = "html", sections: Sequence[Section] = ()
) -> ReportFiles:
    """Write `out`/index.html (or appendix.md, appendix.tex) and `out`/figures/*.png, *.svg; `con` is only read."""
    looks = looks_for(arms_of(runs_frame(con, plan)), plan.baseline)
    rows = summary(con, plan)
    pictures = pictures_for(con, plan, looks, rows)
    images = _save([*pictures, *(picture for section in sections for picture in section.pictures)], out)
    if kind == "html":
        text = render(con, plan, looks, pictures, rows, sections)
    else:
        told = Appendix(plan, rows, lint(con, plan), provenance(con, plan), pictures, sections)
        text = {"md": markdown, "latex": latex}[kind](told)
    return ReportFiles(_write(out / NAMES[kind], text), images)


def write_in_home(
    con: "DuckDBPyConnection", plan: Plan, home: "Home", out: Path | None = None, kind: Kind = "html"
) -> ReportFiles:
    """The report with the sections kept for it, where it lies in the home, or in `out`."""
    folder = folder_of(home, plan)
    return write_report(con, plan, out or folder, kind, kept(folder, plan.plan_id))


def write_sections(table: Path, sections: Sequence[Section], out: Path) -> ReportFiles:
    """A report that is nothing but sections, as the page and as both texts: what there is to say of a table."""
    images = _save([picture for section in sections for picture in section.pictures], out)
    _write(out / NAMES["md"], markdown_of_table(table, sections))
    _write(out / NAMES["latex"], latex_of_table(table, sections))
    page = _template("sections.html").render(table=table, sections=sections)
    return ReportFiles(_write(out / NAMES["html"], page), images)


def _save(pictures: Sequence[Picture | StoredPicture], out: Path) -> list[Path]:
    return [path for picture in pictures for path in picture.save(out / "figures")]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode(), durable=False)
    return path


def _template(name: str) -> jinja2.Template:
    """Every text goes through autoescape; a page loads nothing from elsewhere."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template(name, globals={"sort_key": sort_key})


def render(
    con: "DuckDBPyConnection",
    plan: Plan,
    looks: dict[str, Look],
    pictures: list[Picture],
    rows: list[Row],
    sections: Sequence[Section] = (),
) -> str:
    """The page."""
    runs, findings = runs_frame(con, plan), lint(con, plan)
    return _template("report.html").render(
        plan=plan,
        headline=headline(rows),
        verdicts=[
            {"word": row["verdict"], "color": looks[row["arm"]].color, "text": sentence(row)} for row in judged(rows)
        ],
        notes=[*own(rows), *terms(plan, rows)],
        serious=sum(finding.level != "note" for finding in findings),
        columns=COLUMNS,
        rows=_table(rows, looks, _changes(runs, plan)),
        pictures=pictures,
        sections=sections,
        axes=AXIS_LABELS,
        colors={arm: look.color for arm, look in looks.items()},
        failures=_failures(runs, attempts_frame(con, plan)),
        findings=findings,
        origin=provenance(con, plan),
        counted=listed,
        run_columns=RUN_COLUMNS,
        runs=[["" if cell is None else cell for cell in row] for row in runs.select(RUN_COLUMNS).iter_rows()],
    )


def _failures(runs: pl.DataFrame, attempts: pl.DataFrame) -> list[Row]:
    """Runs that failed or diverged, with the error of their last attempt that has one."""
    errors = dict(attempts.filter(pl.col("error").is_not_null()).select("run_id", "error").iter_rows())
    lost = runs.filter(pl.col("outcome").is_in(["failed", "diverged"]))
    return [row | {"error": errors.get(row["run_id"], "").strip()} for row in lost.to_dicts()]


def _table(rows: list[Row], looks: dict[str, Look], changes: dict[str, list[str]]) -> list[Row]:
    return [
        {
            "color": looks[row["arm"]].color,
            "verdict": row["verdict"],
            "changes": ["baseline"] if row["baseline"] else changes.get(row["arm"], []),
            "cells": [_cell(column, row) for column in COLUMNS],
        }
        for row in rows
    ]


def _cell(column: Column, row: Row) -> Row:
    sort = row[column.sort]
    digits = repr(sort) if isinstance(sort, float) else ""
    hover = {"verdict": row["reason"], "compute_gain": row["compute_gain_reason"] or digits}.get(column.sort, digits)
    return {
        "text": column.text(row),
        "small": column.small(row),
        "sort": "" if sort is None else sort,
        "alert": column.sort == "done",
        "word": column.sort == "verdict",
        "hover": hover or "",
    }


def _changes(runs: pl.DataFrame, plan: Plan) -> dict[str, list[str]]:
    if plan.baseline is None:
        return {}
    changed = changes_between_arms(runs, plan.baseline)
    return {arm: [f"{key} {old} → {new}" for key, (old, new) in keys.items()] for arm, keys in changed.items()}
