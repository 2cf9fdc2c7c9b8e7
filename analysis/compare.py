"""Two plans side by side: all their arms against one baseline, and what differs between them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.curves import val_points
from analysis.frames import arms_of, configs_of, runs_frame
from analysis.provenance import Provenance, attempts_frame, listed, provenance
from analysis.select import Plan
from analysis.stats import NoiseFloor
from analysis.table import judged_json, rows_of
from analysis.tuning_runs import joined, tuning_runs
from analysis.verdict import Rules, VerdictError
from analysis.verdict_sweep import BITS, Evidence, judge_runs

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAMES = ("A", "B")


@dataclass(frozen=True)
class Comparison:
    """`rows` as from `table.rows_of`, arms called A:name and B:name; `differs` and `notes` are sentences."""

    rows: list[dict[str, Any]]
    differs: list[str]
    notes: list[str]
    answer: dict[str, Any]


def compare(
    con: "DuckDBPyConnection",
    a: Plan,
    b: Plan,
    baseline: str | None = None,
    floor: NoiseFloor | None = None,
    alpha: float = 0.05,
) -> Comparison:
    """Judge the arms of both plans against `baseline` (A:arm or B:arm), by default A's own.

    An arm that is the same runs in both plans stands once, under A. Raises VerdictError without a baseline.
    """
    base = baseline or (f"A:{a.baseline}" if a.baseline else None)
    plans = dict(zip(NAMES, (a, b), strict=True))
    evidence, same = _without_twins(_joined([_evidence(con, plan, name) for name, plan in plans.items()]))
    evidence = replace(evidence, tuned=joined({name: tuning_runs(con, plan) for name, plan in plans.items()}))
    names = arms_of(evidence.runs)
    base = same.get(base or "", base)
    if base not in names:
        raise VerdictError(f"no arm {base!r} to be the baseline (--baseline); arms: {', '.join(names)}")
    smallest = [plan.smallest_effect for plan in (a, b) if plan.smallest_effect]
    judged = judge_runs(evidence, base, Rules(alpha, max(smallest, default=None), floor))
    rows = rows_of(evidence.runs, judged)
    notes = [f"{twin} is the same runs as {kept}" for twin, kept in same.items()]
    if judged.unit == BITS:
        notes.append("The tokenizers differ and the text is the same: compared in bits per byte, not in nats.")
    differs = _differences(con, a, b)
    named = {name: {"name": p.name, "plan_id": p.plan_id} for name, p in plans.items()}
    answer = {"plans": named, "differs": differs, "notes": notes} | judged_json(rows, judged)
    return Comparison(rows, differs, notes, answer)


def _evidence(con: "DuckDBPyConnection", plan: Plan, name: str) -> Evidence:
    runs, attempts, points = (
        part.with_columns(arm=pl.format("{}:{}", pl.lit(name), "arm"))
        for part in (runs_frame(con, plan), attempts_frame(con, plan), val_points(con, plan))
    )
    return Evidence(runs, attempts, points, plan.match_tolerance)


def _joined(evidence: list[Evidence]) -> Evidence:
    runs, attempts, points = (
        pl.concat([getattr(e, part) for e in evidence]) for part in ("runs", "attempts", "points")
    )
    return Evidence(
        runs,
        attempts,
        points,
        min((e.match_tolerance for e in evidence if e.match_tolerance is not None), default=None),
    )


def _without_twins(evidence: Evidence) -> tuple[Evidence, dict[str, str]]:
    """Arms of B that are the same runs as an arm of A left out, and {left out: kept}."""
    kept: dict[frozenset[str], str] = {}
    same = {}
    for (arm,), part in evidence.runs.group_by("arm", maintain_order=True):
        first = kept.setdefault(frozenset(part["run_id"]), str(arm))
        if first != arm:
            same[str(arm)] = first
    runs, attempts, points = (
        part.filter(~pl.col("arm").is_in(list(same))) for part in (evidence.runs, evidence.attempts, evidence.points)
    )
    return replace(evidence, runs=runs, attempts=attempts, points=points), same


def _differences(con: "DuckDBPyConnection", a: Plan, b: Plan) -> list[str]:
    """What the two plans do not share: configuration of their baselines, code, data, hardware, numerics, seeds."""
    one, other = provenance(con, a), provenance(con, b)
    said = [
        _between("code", _code(one), _code(other)),
        *(_shares(kind, getattr(one, kind), getattr(other, kind)) for kind in ("data", "hardware", "numerics")),
        _between("seeds", _joined_words(one.seeds), _joined_words(other.seeds)),
    ]
    return [*_config_differences(con, a, b), *(text for text in said if text)]


def _joined_words(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _code(origin: Provenance) -> str:
    return ", ".join(sorted(str(code["code_hash"]) for code in origin.code)) or "not recorded"


def _shares(what: str, one: dict[str, int], other: dict[str, int]) -> str | None:
    """Mentioned where other values occur, whatever the number of runs."""
    return None if one.keys() == other.keys() else _between(what, listed(one), listed(other))


def _between(what: str, one: str, other: str) -> str | None:
    return None if one == other else f"{what}: A {one}; B {other}"


def _config_differences(con: "DuckDBPyConnection", a: Plan, b: Plan) -> list[str]:
    """Of the two baselines, or of the first arms where a plan has none."""
    configs = []
    for plan in (a, b):
        known = configs_of(runs_frame(con, plan))
        configs.append(known.get(plan.baseline or "", next(iter(known.values()), {})))
    keys = sorted(key for key in configs[0] | configs[1] if configs[0].get(key) != configs[1].get(key))
    return [f"config of the baselines, {key}: A {configs[0].get(key)}; B {configs[1].get(key)}" for key in keys]
