"""What a person sees of a plan and of its runs: tables for the terminal."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lmcore.data import DataInfo
from results.state import RunState, State
from sweeps.estimate import Estimate
from sweeps.plan import Plan, PlannedRun

MOST_ROWS = 60  # of a table that a person reads
WANTS_A_LOOK = (State.FAILED, State.LOST, State.HELD, State.UNKNOWN, State.DIVERGED)
STYLES = {
    State.DONE: "green",
    State.RUNNING: "cyan",
    State.FAILED: "red",
    State.DIVERGED: "magenta",
    State.LOST: "yellow",
    State.HELD: "yellow",
}


def quantity(value: float) -> str:
    """Three significant digits with a unit prefix: 810624 is 811k."""
    for limit, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Two units at most: 3725 is 1 h 2 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"


def plan_table(plan: Plan, estimate: Estimate | None) -> RenderableType:
    """One row per arm, then what the whole plan costs, if its time is given."""
    scale = f" at scale {plan.scale}" if plan.scale else ""
    table = Table(title=f"{plan.sweep}{scale}: {plan.question}", title_justify="left", title_style="bold")
    for name in ("arm", "seeds", "params", "non-emb.", "d_ff", "match", "FLOPs/token", "tokens", "FLOPs"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    arms = dict.fromkeys(run.arm for run in plan.runs)
    for arm in arms:
        table.add_row(*_arm_cells(arm, [run for run in plan.runs if run.arm == arm], plan.baseline))
    costs = [Text(cost_line([plan], [estimate]))] if estimate else []
    resolved = (Text(f"auto: {line}") for line in plan.resolved)
    return Group(table, *costs, Text(f"data: {_data_line(plan.runs)}"), *resolved)


def several(number: int, noun: str) -> str:
    """'1 run', '2 runs'."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def cost_line(plans: Sequence[Plan], estimates: Sequence[Estimate]) -> str:
    """What plans cost together."""
    totals = [plan.totals() for plan in plans]
    runs, tokens, flops, disk = (sum(t[key] for t in totals) for key in ("runs", "tokens", "train_flops", "disk_bytes"))
    time = f"about {duration(sum(e.seconds for e in estimates))} for what is left"
    how = f"{max(e.workers for e in estimates)} at once ({estimates[0].basis})"
    work = f"{several(runs, 'run')}, {quantity(tokens)} tokens, {quantity(flops)} FLOPs"
    return f"{work}, {time}, {how}, {quantity(disk)}B of disk"


def stage_lines(names: Sequence[str], plans: Sequence[Plan], estimates: Sequence[Estimate]) -> Iterator[str]:
    """What each stage of a tuned sweep costs, and all together."""
    for name, plan, time in zip(names, plans, estimates, strict=True):
        t = plan.totals()
        costs = f"{quantity(t['tokens'])} tokens, {quantity(t['train_flops'])} FLOPs, about {duration(time.seconds)}"
        yield f"{name}: {several(t['runs'], 'run')}, {costs}"
    yield f"all stages at most: {cost_line(plans, estimates)}"


def _arm_cells(arm: str, runs: Sequence[PlannedRun], baseline: str | None) -> list[str]:
    first = runs[0]
    a, match = first.account, first.match_residual
    return [
        f"{arm} (baseline)" if arm == baseline else arm,
        ",".join(str(run.config.seed) for run in runs) if len(runs) <= 5 else f"{len(runs)}",
        f"{a.params:,}",
        f"{a.params_non_embedding:,}",
        str(first.config.model.d_ff),
        "" if match is None else f"{match:+.2%}",
        quantity(a.flops_per_token),
        quantity(a.tokens),
        quantity(a.train_flops),
    ]


def _data_line(runs: Iterable[PlannedRun]) -> str:
    longest: dict[DataInfo, int] = {}
    for run in runs:
        longest[run.data] = max(run.account.tokens, longest.get(run.data, 0))
    return "; ".join(_of_data(data, longest[data]) for data in sorted(longest, key=lambda data: data.fingerprint))


def _of_data(data: DataInfo, tokens: int) -> str:
    """What there is to read, and how often a run of so many tokens reads it where that is more than once."""
    epochs = tokens / max(1, data.train_tokens)
    again = f" (up to {epochs:.3g} epochs a run)" if epochs > 1 else ""
    return (
        f"{data.name}, tokenizer {data.tokenizer}, {quantity(data.train_tokens)} training{again} and "
        f"{quantity(data.val_tokens)} validation tokens"
    )


def status_table(title: str, rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row per run; of a large sweep one per arm, and those runs that want a look."""
    if len(rows) <= MOST_ROWS:
        return _runs_table(title, rows)
    wanted = [row for row in rows if State(row["state"]) in WANTS_A_LOOK]
    more = [] if len(wanted) <= MOST_ROWS else [Text(f"... and {len(wanted) - MOST_ROWS} more; --json has all")]
    runs = [_runs_table("", wanted[:MOST_ROWS])] if wanted else []
    return Group(_arms_table(title, rows), *runs, *more)


def _runs_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = empty_table(title, "run", "arm", "seed>", "state", "step>", "val loss>", "tokens/s>", "")
    for row in rows:
        state = State(row["state"])
        table.add_row(
            row["run_id"],
            row["arm"],
            str(row["seed"]),
            Text(state.value, style=STYLES.get(state, "")),
            f"{row['step']}/{row['steps']}",
            "" if row["val_loss"] is None else f"{row['val_loss']:.4f}",
            "" if row["tokens_per_s"] is None else quantity(row["tokens_per_s"]),
            Text(str(row["detail"] or "")[:80]),
        )
    return table


def _arms_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = empty_table(title, "arm", "runs>", "states", "steps done>", "median val loss>")
    arms: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        arms.setdefault(row["arm"], []).append(row)
    for arm, mine in arms.items():
        found = Counter(row["state"] for row in mine)
        losses = [row["val_loss"] for row in mine if row["val_loss"] is not None]
        table.add_row(
            arm,
            str(len(mine)),
            ", ".join(f"{n} {state.lower()}" for state, n in found.most_common()),
            f"{sum(row['step'] for row in mine) / sum(row['steps'] for row in mine):.0%}",
            f"{statistics.median(losses):.4f}" if losses else "",
        )
    return table


def empty_table(title: str, *columns: str) -> Table:
    """An empty table whose columns ending in > are aligned right."""
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for name in columns:
        table.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left", overflow="fold")
    return table


def failure_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What `lab failures` says to a person."""
    if not found["groups"]:
        yield "nothing failed"
    if found["left"]:
        yield f"{found['left']} runs are left, and no worker is at work on them; the same command goes on"
    for group in found["groups"]:
        where = f" on {group['host']}" if group["host"] else ""
        runs = group["runs"]
        yield f"{len(runs)} x {group['kind']}{where} at step {group['step']}: {group['error']}"
        yield f"  {', '.join(runs[:6])}{' ...' if len(runs) > 6 else ''}"
        yield from (f"  | {line}" for line in group["log"])
        yield f"  -> {group['remedy']}"
    for host in found["bad_hosts"]:
        yield f"host {host['name']} fails everything at once ({host['failures']} times); further jobs avoid it"
    yield from (f"$ {command}" for command in found["commands"])


def counts(states: Iterable[RunState]) -> dict[str, int]:
    """How many runs are in each state, only those that occur."""
    return dict(sorted(Counter(state.state.value for state in states).items()))


def counts_line(states: Sequence[RunState]) -> str:
    """'12 of 15 done, 2 running, 1 failed'."""
    found = counts(states)
    done = found.pop("DONE", 0)
    rest = "".join(f", {n} {state.lower()}" for state, n in found.items())
    return f"{done} of {len(states)} done{rest}"
