"""Tables for the terminal: a fit, its budgets, its checks, and findings."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from analysis.lint import Finding

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.answer_fit import Answer


def number(value: Any, digits: int = 4) -> str:
    """Short, or a dash for None."""
    return "–" if value is None else f"{value:.{digits}g}"


def interval(ends: Sequence[float | None] | None) -> str:
    """[low, high]; an end that the data does not bound is a dash."""
    return "" if ends is None else f"[{number(ends[0])}, {number(ends[1])}]"


def print_table(console: "Console", header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """One table, the title above it."""
    from rich.table import Table

    table = Table(*header, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_findings(console: "Console", findings: Iterable[Finding]) -> None:
    """A line per finding and one for its remedy."""
    for found in findings:
        console.print(f"{found.level}: {found.reason} ({found.code})")
        console.print(f"    {found.remedy}")


def print_answer(console: "Console", answer: "Answer") -> None:
    """What `lab fit` shows."""
    record = answer.record()
    left = sum(record["left_out"].values())
    console.print(f"{record['equation']}, {record['rows']} rows" + (f", {left} left out" if left else ""))
    console.print(
        f"sum of Huber losses {record['objective']:.6g} (delta {number(record['delta'])} of log loss); "
        f"{answer.fit.reached} of {answer.fit.starts} starts reach it"
    )
    print_table(console, ("parameter", "value", "95 % bootstrap", "95 % profile", ""), _parameters(record))
    if record["bootstrap"]:
        boot = record["bootstrap"]
        failed = f", {boot['failed']} without a fit" if boot["failed"] else ""
        console.print(f"bootstrap: {boot['resamples']} resamples of {boot['clusters']} runs{failed}")
    if record["budgets"]:
        _print_budgets(console, record["budgets"])
    _print_deltas(console, record["delta_sensitivity"])
    _print_extrapolation(console, record["extrapolation"])
    print_findings(console, answer.findings)


def _parameters(record: dict[str, Any]) -> Iterable[Sequence[str]]:
    names = [n for n in ("E", "A", "B", "alpha", "beta", "R_D*", "R_N*", "a") if n in record]
    for name in names:
        remark = "fixed" if name in record["fixed"] else ""
        remark = "not identified" if record["identified"].get(name) is False else remark
        remark = "tied to alpha" if name == "beta" and record["tied"] else remark
        ends = [interval(record[key].get(name)) for key in ("ci", "ci_profile")]
        yield name, number(record[name], 5), *ends, remark


def _print_budgets(console: "Console", budgets: list[dict[str, Any]]) -> None:
    keys = [key for key in ("n", "d", "d_per_n", "loss") if key in budgets[0]]
    titles = {"n": "N", "d": "D", "d_per_n": "D/N", "loss": "loss"}
    rows = [
        [
            number(b["flops"]),
            *(f"{number(b[key])} {interval(b[f'{key}_ci'])}" for key in keys),
            number(b["times_largest"]),
        ]
        for b in budgets
    ]
    header = ["budget (FLOPs)", *(titles[key] for key in keys), "times largest"]
    print_table(console, header, rows, "optimum at a budget, 95 % bootstrap")


def _print_deltas(console: "Console", deltas: list[dict[str, Any]]) -> None:
    names = [name for name in deltas[0] if name not in ("delta", "objective")]
    rows = [
        ["least squares" if d["delta"] is None else number(d["delta"]), *(number(d[n]) for n in names)] for d in deltas
    ]
    print_table(console, ["delta", *names], rows, "the same fit at other widths of the Huber zone")


def _print_extrapolation(console: "Console", cuts: list[dict[str, Any]]) -> None:
    if not cuts:
        return
    rows = [
        [
            number(c["cut_flops"]),
            str(c["rows_below"]),
            str(c["rows_above"]),
            number(c["times_largest"], 3),
            f"{c['mean_error_pct']:+.2f}",
            f"{c['mean_abs_error_pct']:.2f}",
            f"{c['worst_error_pct']:+.2f}",
            f"{c['coverage']:.0%}",
        ]
        for c in cuts
    ]
    header = (
        "fit below (FLOPs)",
        "rows",
        "predicted",
        "reach",
        "mean error %",
        "mean |error| %",
        "worst %",
        "coverage",
    )
    print_table(console, header, rows, "rolling extrapolation: predicted minus observed loss, 95 % prediction interval")
