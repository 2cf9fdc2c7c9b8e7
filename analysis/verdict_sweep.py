"""Verdicts about the arms of a plan."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from analysis.curves import val_points
from analysis.frames import arms_of, configs_of, final_losses, runs_frame
from analysis.gain import Gain, compute_gain
from analysis.provenance import attempts_frame
from analysis.select import Plan
from analysis.stats import NoiseFloor, pooled_sd
from analysis.tuning_runs import TuningRuns, tuning_runs
from analysis.validity import other_tokens, refusals
from analysis.verdict import Arm, Rules, Verdict, judge

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NATS, BITS = "nats per token", "bits per byte"
LOSS_COLUMNS = {NATS: "val_loss", BITS: "val_bits_per_byte"}


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made from: runs, attempts and validation losses over training, each with the run's arm."""

    runs: pl.DataFrame  # as from `frames.runs_frame`
    attempts: pl.DataFrame  # as from `provenance.attempts_frame`
    points: pl.DataFrame  # as from `curves.val_points`
    match_tolerance: float | None = None  # of the plan's matched sizes, relative
    tuned: TuningRuns | None = None  # what went before; no run of it is among `runs`


@dataclass(frozen=True)
class Judged:
    """The verdicts of a plan. `unit` is bits per byte where arms cut the same text into different tokens."""

    baseline: str | None
    unit: str
    verdicts: dict[str, Verdict]  # of every arm but the baseline
    gains: dict[str, Gain]
    pooled: NoiseFloor | None
    smallest_effect: float | None  # in `unit`
    tuned: TuningRuns | None = None

    @property
    def column(self) -> str:
        """The column of `runs` that the verdicts are about."""
        return LOSS_COLUMNS[self.unit]


def judge_plan(con: "DuckDBPyConnection", plan: Plan, floor: NoiseFloor | None = None, alpha: float = 0.05) -> Judged:
    """Judge every arm against the plan's baseline; without one there are no verdicts. `floor` is in the unit."""
    runs, attempts, points = runs_frame(con, plan), attempts_frame(con, plan), val_points(con, plan)
    evidence = Evidence(runs, attempts, points, plan.match_tolerance, tuning_runs(con, plan))
    return judge_runs(evidence, plan.baseline, Rules(alpha, plan.smallest_effect, floor))


def judge_runs(evidence: Evidence, baseline: str | None, rules: Rules) -> Judged:
    """Judge every arm of the runs; `rules.smallest_effect` in nats per token of the baseline."""
    runs = evidence.runs
    names = arms_of(runs)
    base = baseline if baseline in names else None
    unit = _unit(runs, base)
    smallest = _smallest(runs, base, rules.smallest_effect, unit)
    refused = refusals(runs, evidence.attempts, base, evidence.match_tolerance, evidence.tuned)
    arms = [
        Arm(
            name,
            final_losses(runs, name, LOSS_COLUMNS[unit]),
            diverged=_count(runs, name, "diverged"),
            missing=_count(runs, name, "failed") + _count(runs, name, "unfinished"),
            refused=next(iter(refused.get(name, ())), None),
        )
        for name in names
    ]
    pooled = pooled_sd([arm.sample for arm in arms])
    if base is None:
        return Judged(None, unit, {}, {}, pooled, smallest, evidence.tuned)
    verdicts = {v.arm: v for v in judge(arms, base, replace(rules, smallest_effect=smallest))}
    return Judged(base, unit, verdicts, _gains(evidence, base, verdicts, unit), pooled, smallest, evidence.tuned)


def _count(runs: pl.DataFrame, arm: str, outcome: str) -> int:
    return len(runs.filter((pl.col("arm") == arm) & (pl.col("outcome") == outcome)))


def _unit(runs: pl.DataFrame, base: str | None) -> str:
    configs = configs_of(runs)
    return BITS if base in configs and any(other_tokens(arm, base, runs, configs) for arm in configs) else NATS


def _smallest(runs: pl.DataFrame, base: str | None, nats: float | None, unit: str) -> float | None:
    """The declared nats per token of the baseline, in the unit."""
    if unit == NATS or nats is None or base is None:
        return nats
    scale = bits_per_nat(runs, base)
    return None if scale is None else nats * scale


def bits_per_nat(runs: pl.DataFrame, arm: str) -> float | None:
    """Bits per byte of text that one nat per token is, with the arm's tokenizer."""
    done = runs.filter((pl.col("arm") == arm) & (pl.col("outcome") == "done") & (pl.col("val_loss") > 0))
    known = done.filter(pl.col("val_bits_per_byte").is_not_null())
    return known["val_bits_per_byte"][0] / known["val_loss"][0] if len(known) else None


def _gains(evidence: Evidence, base: str, verdicts: dict[str, Verdict], unit: str) -> dict[str, Gain]:
    runs, points = evidence.runs, evidence.points
    points = points.filter(pl.col("arm") == base, pl.col("flops") > 0).sort("seed", "step")
    done = set(final_losses(runs, base))
    curves = {
        seed: list(part.select("flops", "loss").iter_rows())
        for (seed,), part in points.group_by("seed", maintain_order=True)
        if seed in done
    }
    costs = dict(runs.unique("arm", keep="first").select("arm", "train_flops").iter_rows())
    return {arm: _gain(curves, verdict, costs, base, unit) for arm, verdict in verdicts.items()}


def _gain(
    curves: dict[int, list[tuple[float, float]]], verdict: Verdict, costs: dict[str, float | None], base: str, unit: str
) -> Gain:
    own, other = costs.get(verdict.arm), costs.get(base)
    if verdict.word == "invalid":
        return Gain(reason="the arms cannot be compared")
    if unit != NATS:
        return Gain(reason="the tokenizers differ")
    if not own or not other or verdict.n == 0:
        return Gain(reason="no cost or no finished run")
    return compute_gain(curves, verdict.gap, own / other)
