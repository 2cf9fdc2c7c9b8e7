"""What `lab fit` shows: a fit, its budgets, its checks, and findings."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from analysis.told import Block, Table, interval, number

if TYPE_CHECKING:
    from analysis.answer_fit import Answer


def fit_blocks(answer: "Answer") -> Iterator[Block]:
    """The fit first, then what follows from it, then what speaks against it."""
    record = answer.record()
    left = sum(record["left_out"].values())
    yield f"{record['equation']}, {record['rows']} rows" + (f", {left} left out" if left else "")
    yield (
        f"sum of Huber losses {record['objective']:.6g} (delta {number(record['delta'])} of log loss); "
        f"{answer.fit.reached} of {answer.fit.starts} starts reach it"
    )
    yield Table(("parameter", "value", "95 % bootstrap", "95 % profile", ""), list(_parameters(record)))
    if boot := record["bootstrap"]:
        failed = f", {boot['failed']} without a fit" if boot["failed"] else ""
        yield f"bootstrap: {boot['resamples']} resamples of {boot['clusters']} runs{failed}"
    if record["budgets"]:
        yield _budgets(record["budgets"])
    yield _deltas(record["delta_sensitivity"])
    if record["extrapolation"]:
        yield _extrapolation(record["extrapolation"])
    yield from answer.findings


def _parameters(record: dict[str, Any]) -> Iterator[Sequence[str]]:
    names = [n for n in ("E", "A", "B", "alpha", "beta", "R_D*", "R_N*", "a") if n in record]
    for name in names:
        remark = "fixed" if name in record["fixed"] else ""
        remark = "not identified" if record["identified"].get(name) is False else remark
        remark = "tied to alpha" if name == "beta" and record["tied"] else remark
        ends = [interval(record[key].get(name)) for key in ("ci", "ci_profile")]
        yield name, number(record[name], 5), *ends, remark


def _budgets(budgets: list[dict[str, Any]]) -> Table:
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
    return Table(header, rows, "optimum at a budget, 95 % bootstrap")


def _deltas(deltas: list[dict[str, Any]]) -> Table:
    names = [name for name in deltas[0] if name not in ("delta", "objective")]
    rows = [
        ["least squares" if d["delta"] is None else number(d["delta"]), *(number(d[n]) for n in names)] for d in deltas
    ]
    return Table(["delta", *names], rows, "the same fit at other widths of the Huber zone")


def _extrapolation(cuts: list[dict[str, Any]]) -> Table:
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
    return Table(header, rows, "rolling extrapolation: predicted minus observed loss, 95 % prediction interval")
