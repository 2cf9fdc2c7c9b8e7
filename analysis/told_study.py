"""What `lab isoflop`, `lab multiverse` and `lab lr` show."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from analysis.told import Block, Table, interval, number

if TYPE_CHECKING:
    from analysis.answer_isoflop import Group
    from analysis.answer_lr import LrAnswer
    from analysis.multiverse import Universe


def isoflop_blocks(groups: "Sequence[Group]") -> Iterator[Block]:
    """Per group its optima, then the exponents of all groups, then what the targets get."""
    records = [group.record() for group in groups]
    if len(groups) == 1:
        yield _budgets(records[0])
    rows = []
    for record in records:
        for method, found in record["exponents"].items():
            ends = [interval(found[f"{key}_ci"]) for key in "ab"] if found else ["", ""]
            numbers = (
                [number(found["a"]), ends[0], number(found["b"]), ends[1], str(found["budgets"])]
                if found
                else ["–"] * 5
            )
            rows.append([*record["group"].values(), method, *numbers])
    names = list(records[0]["group"])
    yield Table([*names, "method", "a", "a, 95 %", "b", "b, 95 %", "budgets"], rows, "N* ∝ C^a, D* ∝ C^b")
    yield _targets(records)
    for group in groups:
        if group.name:
            yield ", ".join(f"{key}={value}" for key, value in group.name.items())
        yield from group.findings


def _budgets(record: dict[str, Any]) -> Table:
    methods = [m for m in ("parabola", "akima", "surface", "points") if m in record["budgets"][0]]
    rows = []
    for budget in record["budgets"]:
        cells = [
            "–" if budget[m] is None else number(budget[m]["n"]) + ("" if budget[m]["interior"] else " (edge)")
            for m in methods
        ]
        rows.append([number(budget["flops"]), str(budget["sizes"]), *cells])
    return Table(["budget (FLOPs)", "sizes", *(f"N*, {m}" for m in methods)], rows)


def _targets(records: list[dict[str, Any]]) -> Table:
    rows = []
    for record in records:
        for target, bias in zip(
            record["targets"], record["parabola_bias"] or [None] * len(record["targets"]), strict=True
        ):
            for method, found in target.items():
                if method == "flops":
                    continue
                error = ""
                if method == "parabola" and bias and bias["d_error_pct"] is not None:
                    error = f"{bias['n_error_pct']:+.4f} / {bias['d_error_pct']:+.4f}"
                cells = [f"{number(found[key])} {interval(found[f'{key}_ci'])}" for key in ("n", "d")]
                rows.append([*record["group"].values(), number(target["flops"]), method, *cells, error])
    header = [*records[0]["group"], "FLOPs", "method", "N*", "D*", "bias of parabolas, N / D %"]
    return Table(header, rows, "extrapolated to a budget; bias: noise-free on these grids, from the fitted surface")


def multiverse_blocks(
    summaries: dict[str, dict[str, Any]], found: "Sequence[Universe]", target: float
) -> Iterator[Block]:
    """The spread of each quantity, and its median under each option."""
    failed = [universe for universe in found if not universe.values]
    yield f"{len(found)} specifications" + (f", {len(failed)} without a fit ({failed[0].reason})" if failed else "")
    rows = []
    for name, s in summaries.items():
        share = "" if s["inside_reference_ci"] is None else f"{s['inside_reference_ci']:.0%}"
        numbers = [number(s[key]) for key in ("lowest", "median", "highest")]
        rows.append([name, number(s["reference"]), interval(s["reference_ci"]), *numbers, share])
    header = ("quantity", "reference", "95 %", "lowest", "median", "highest", "inside that interval")
    yield Table(header, rows, f"n, d_per_n and loss at {target:.3g} FLOPs")
    names = [name for name in ("a", "alpha", "beta", "E") if name in summaries]
    options = summaries[names[0]]["by_choice"]
    rows = [
        [axis, option, *(number(summaries[name]["by_choice"][axis][option]) for name in names)]
        for axis, some in options.items()
        for option in some
    ]
    yield Table(["choice", "option", *names], rows, "median under each option")


def lr_blocks(answer: "LrAnswer") -> Iterator[Block]:
    """A row per configuration, the law, the findings."""
    record = answer.record()
    first = record["configurations"][0]
    keys = [name for name in ("width", "n", "d") if name in first]
    rows = []
    for c in record["configurations"]:
        best = [number(c["lr"]), interval([c["low"], c["high"]]) if c["low"] or c["high"] else "–"]
        flag = "" if c["interior"] else "edge" if c["lr"] else "none"
        counts = [f"{c['rows']}" + (f" ({c['diverged']} diverged)" if c["diverged"] else "")]
        rows.append(
            [*c["group"].values(), *(number(c.get(k)) for k in keys), *best, flag, number(c["sensitivity"]), *counts]
        )
    header = [*first["group"], *keys, "best LR", "95 %", "", "LR sensitivity", "runs"]
    yield Table(header, rows)
    if answer.law:
        found = answer.law
        parts = " ".join(f"{name}^{p:.3f}" for name, p in found.exponents.items())
        yield f"LR* = {found.constant:.4g} {parts}"
        rows = [
            [name, number(p), interval(found.student[name]), interval(found.ci[name])]
            for name, p in found.exponents.items()
        ]
        yield Table(("exponent of", "value", "95 % Student", "95 % bootstrap"), rows)
    if told := answer.predicted:
        sizes = ", ".join(f"{name} {number(value)}" for name, value in told["at"].items())
        within = f" {interval([told['low'], told['high']])}" if told["low"] else ""
        yield f"At {sizes} the law says LR {told['lr']:.4g}{within}"
        if "check" in told:
            yield _checked(told["check"])
    yield from answer.findings


def _checked(check: dict[str, Any]) -> str:
    edge = "" if check["interior"] else ", at the edge of their grid"
    own = f"{number(check['lr'])} {interval([check['low'], check['high']])}{edge}" if check["lr"] else "not determined"
    best = f"{check['lowest']:.4f} at {number(check['best_tested'])}" if check["lowest"] else "none"
    beside = " and ".join(map(_beside, check["beside"]))
    said = f"Runs of that size: their own optimum is {own}; lowest tested loss {best}; beside the law's rate {beside}"
    if len(check["beside"]) < 2:
        return f"{said}, which lies outside of what was tested"
    if check["at_most"] is None:
        return said
    above = check["at_most"] - check["lowest"]
    return f"{said}, so at most {check['at_most']:.4f} at it, {above:+.4f} against the lowest tested"


def _beside(rate: dict[str, Any]) -> str:
    lost = f" ({rate['diverged']} of {rate['runs']} runs diverged)" if rate["diverged"] else ""
    return f"{'no loss' if rate['loss'] is None else format(rate['loss'], '.4f')} at {number(rate['lr'])}{lost}"
