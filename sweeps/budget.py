"""What a sweep costs before it starts, all stages of a tuned one included."""

import shutil
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from results.home import Home
from sweeps import show, tune
from sweeps.estimate import Estimate, estimate
from sweeps.launch import Options
from sweeps.plan import Plan

SUMMED = ("runs", "tokens", "train_flops", "disk_bytes", "estimated_s")


def stages_at_most(planned: Plan) -> Sequence[Plan]:
    """Plans that cost what all stages of a sweep may cost; of one that is not tuned, itself."""
    if isinstance(planned, tune.StagePlan) and planned.stage == "tune":
        return list(tune.imagined(planned))
    return [planned]


def runs_at_most(planned: Plan) -> int:
    """Runs in all stages together."""
    return sum(len(stage.runs) for stage in stages_at_most(planned))


def plan_json(planned: Plan, options: Options, home: Home) -> dict[str, Any]:
    """The plan with its estimate, as one JSON object; of a tuned sweep the sum over all stages, each at its largest."""
    out, stages = planned.to_json(), stages_at_most(planned)
    told = [stage.totals() | _time(estimate(stage, home, options.workers(stage))) for stage in stages]
    out["totals"] = told[0] | {key: sum(totals[key] for totals in told) for key in SUMMED}
    if len(stages) > 1:
        names = [stage.stage for stage in stages if isinstance(stage, tune.StagePlan)]
        out["stages"] = [{"stage": name, **totals} for name, totals in zip(names, told, strict=True)]
    return out


def _time(found: Estimate) -> dict[str, Any]:
    return {"estimated_s": found.seconds, "workers": found.workers, "estimate_basis": found.basis}


def show_plan(planned: Plan, options: Options, home: Home, console: Console) -> None:
    """What will run and what it costs."""
    stages = stages_at_most(planned)
    times = [estimate(stage, home, options.workers(stage)) for stage in stages]
    # The arms of a tuned sweep are those of its verdict: they cost the same wherever they are tuned.
    console.print(show.plan_table(stages[-1], None if len(stages) > 1 else times[0]))
    if len(stages) > 1:
        named = [tune.budget_line(stage) for stage in stages if isinstance(stage, tune.StagePlan)]
        for line in show.stage_lines(named, stages, times):
            console.print(line, highlight=False)
    need, free = sum(stage.totals()["disk_bytes"] for stage in stages), shutil.disk_usage(home.path).free
    if need > free:
        console.print(f"warning: {show.quantity(need)}B of disk may be needed, {show.quantity(free)}B are free")
