"""Verdicts about the arms of a plan."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from analysis.curves import val_points
from analysis.frames import arms_of, configs_of, final_losses, runs_frame
from analysis.gain import Gain, compute_gain
from analysis.select import Plan
from analysis.stats import NoiseFloor, pooled_sd
from analysis.validity import other_tokens, refusals
from analysis.verdict import Arm, Rules, Verdict, judge

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NATS, BITS = "nats per token", "bits per byte"
LOSS_COLUMNS = {NATS: "val_loss", BITS: "val_bits_per_byte"}


@dataclass(frozen=True)
class Judged:
    """The verdicts of a plan. `unit` is bits per byte where arms cut the same text into different tokens."""

    baseline: str | None
    unit: str
    verdicts: dict[str, Verdict]  # of every arm but the baseline
    gains: dict[str, Gain]
    pooled: NoiseFloor | None
    smallest_effect: float | None  # in `unit`

    @property
    def column(self) -> str:
        """The column of `runs` that the verdicts are about."""
        return LOSS_COLUMNS[self.unit]


def judge_plan(con: "DuckDBPyConnection", plan: Plan, floor: NoiseFloor | None = None, alpha: float = 0.05) -> Judged:
    """Judge every arm against the plan's baseline; without one there are no verdicts. `floor` is in the unit."""
    runs = runs_frame(con, plan)
    names = arms_of(runs)
    unit = _unit(runs, plan)
    smallest = _smallest(runs, plan, unit)
    refused = refusals(con, plan)
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
    if plan.baseline not in names:
        return Judged(None, unit, {}, {}, pooled, smallest)
    verdicts = {v.arm: v for v in judge(arms, str(plan.baseline), Rules(alpha, smallest, floor))}
    return Judged(plan.baseline, unit, verdicts, _gains(con, plan, runs, verdicts, unit), pooled, smallest)


def _count(runs: pl.DataFrame, arm: str, outcome: str) -> int:
    return len(runs.filter((pl.col("arm") == arm) & (pl.col("outcome") == outcome)))


def _unit(runs: pl.DataFrame, plan: Plan) -> str:
    configs, base = configs_of(runs), plan.baseline or ""
    return BITS if any(other_tokens(arm, base, runs, configs) for arm in configs if base in configs) else NATS


def _smallest(runs: pl.DataFrame, plan: Plan, unit: str) -> float | None:
    """The declared nats per token of the baseline, in the unit."""
    if unit == NATS or plan.smallest_effect is None:
        return plan.smallest_effect
    scale = bits_per_nat(runs, str(plan.baseline))
    return None if scale is None else plan.smallest_effect * scale


def bits_per_nat(runs: pl.DataFrame, arm: str) -> float | None:
    """Bits per byte of text that one nat per token is, with the arm's tokenizer."""
    done = runs.filter((pl.col("arm") == arm) & (pl.col("outcome") == "done") & (pl.col("val_loss") > 0))
    known = done.filter(pl.col("val_bits_per_byte").is_not_null())
    return known["val_bits_per_byte"][0] / known["val_loss"][0] if len(known) else None


def _gains(
    con: "DuckDBPyConnection", plan: Plan, runs: pl.DataFrame, verdicts: dict[str, Verdict], unit: str
) -> dict[str, Gain]:
    points = val_points(con, plan).filter(pl.col("arm") == plan.baseline, pl.col("flops") > 0).sort("seed", "step")
    done = set(final_losses(runs, str(plan.baseline)))
    curves = {
        seed: list(part.select("flops", "loss").iter_rows())
        for (seed,), part in points.group_by("seed", maintain_order=True)
        if seed in done
    }
    costs = dict(runs.unique("arm", keep="first").select("arm", "train_flops").iter_rows())
    return {arm: _gain(curves, verdict, costs, plan.baseline or "", unit) for arm, verdict in verdicts.items()}


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
