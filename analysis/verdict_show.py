"""`lab verdict` for a terminal and for machines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.stats import NoiseFloor
from analysis.verdict import Rules, VerdictError
from analysis.verdict_table import Columns, TableVerdict, judge_table

if TYPE_CHECKING:
    from rich.table import Table

    from results.home import Home


def floor_of(sd: float | None, freedom: float | None) -> NoiseFloor | None:
    """The noise floor of --sd and --sd-df. Raises VerdictError where one comes without the other."""
    if (sd is None) != (freedom is None):
        raise VerdictError("--sd and --sd-df go together: a spread, and from how many degrees of freedom it is known")
    try:
        return None if sd is None or freedom is None else NoiseFloor(sd, freedom)
    except ValueError as error:
        raise VerdictError(str(error)) from None


def of_table(
    path: Path, columns: Columns, baseline: str, rules: Rules, final: bool
) -> tuple[dict[str, Any], list["Table"]]:
    """The JSON answer about anyone's table, and the same for a person."""
    judged = judge_table(path, columns, baseline, rules, final)
    return _json(judged, rules), [_table(judged)]


def _json(judged: TableVerdict, rules: Rules) -> dict[str, Any]:
    means = {arm.name: arm.sample for arm in judged.arms}
    base = means[judged.baseline]
    per_cent = 100 / abs(base.mean) if base.n and base.mean else None
    no_gain = {f"compute_gain{part}": None for part in ("", "_low", "_high")}
    arms = [
        verdict.to_json()
        | {"effect_percent": verdict.gap.estimate * per_cent if verdict.n and per_cent else None}
        | {"effect_bits_per_byte": None, **no_gain, "compute_gain_reason": "a table holds no loss curve"}
        for verdict in judged.verdicts
    ]
    return {
        "baseline": judged.baseline,
        "unit": "as in the table",
        "smallest_effect": rules.smallest_effect,
        "arms": arms,
        "pooled_sd": judged.pooled and judged.pooled.sd,
        "pooled_df": judged.pooled and judged.pooled.freedom,
        "left_out": dict(judged.left_out),
    }


def _table(judged: TableVerdict) -> "Table":
    from rich.table import Table
    from rich.text import Text

    base = next(arm for arm in judged.arms if arm.name == judged.baseline)
    spread = f", pooled sd {judged.pooled.sd:.4g} (df {judged.pooled.freedom:g})" if judged.pooled else ""
    spread += "".join(f", {count} rows {reason}" for reason, count in judged.left_out.items())
    title = f"against {base.name}: mean {base.sample.mean:.6g}, n {base.sample.n}{spread}"
    table = Table("arm", "n", "mean", "effect", "95 % interval", "p (Holm)", "verdict", "reason", title=Text(title))
    means = {arm.name: arm.sample.mean for arm in judged.arms}
    for verdict in judged.verdicts:
        row = verdict.to_json()
        lost = f", {verdict.diverged} diverged" if verdict.diverged else ""
        cells = (
            f"{verdict.n}{lost}",
            _number(means[verdict.arm] if verdict.n else None, ".6g"),
            _number(row["effect"], "+.4g"),
            "–" if row["ci_low"] is None else f"{row['ci_low']:+.4g} … {row['ci_high']:+.4g}",
            _number(row["p_holm"], ".2g"),
            verdict.word,
        )
        table.add_row(Text(verdict.arm), *cells, Text(verdict.reason))
    return table


def _number(value: float | None, spec: str) -> str:
    return "–" if value is None else format(value, spec)


def of_sweep(
    home: "Home", name: str, floor: NoiseFloor | None, alpha: float
) -> tuple[dict[str, Any], list["Table"], list[str]]:
    """The JSON answer about a sweep, its tables and its sentences. Raises VerdictError without a baseline."""
    import results
    from analysis.answer import answer
    from analysis.select import resolve_plan
    from analysis.table import summary, verdict_json, verdict_tables
    from analysis.verdict_sweep import judge_plan

    with results.open(home) as con:
        plan = resolve_plan(con, name)
        judged = judge_plan(con, plan, floor, alpha)
        if plan.stage in ("tune", "widen"):
            raise VerdictError(f"the arms of {plan.name} are still being tuned: `lab status {plan.sweep}`")
        if judged.baseline is None:
            raise VerdictError(f"{plan.name} has no baseline: no arm can be judged against it")
        rows = summary(con, plan, judged)
        return verdict_json(con, plan, judged), list(verdict_tables(rows)), answer(plan, rows)
