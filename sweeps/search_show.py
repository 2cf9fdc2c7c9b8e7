"""What a person sees of a search: trials with their parameters, the best so far, the budget."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from results.state import State
from sweeps.estimate import Estimate
from sweeps.plan import PlannedRun
from sweeps.search import Trial
from sweeps.show import MOST_ROWS, STYLES, duration, quantity

SHOWN_ASKS = 8


def best(trials: Sequence[Trial]) -> Trial | None:
    """The finished trial of lowest loss; pruned ones did not come to the end."""
    done = [trial for trial in trials if trial.state == State.DONE and trial.val_loss is not None]
    return min(done, key=lambda trial: (trial.val_loss, trial.trial), default=None)


def words(params: Mapping[str, Any]) -> str:
    """'train.lr=0.00312 model.d_model=64'."""
    return " ".join(
        f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}" for key, value in params.items()
    )


def budget_line(runs: Sequence[PlannedRun], estimate: Estimate) -> str:
    """What so many trials cost if none is pruned."""
    tokens, flops = sum(run.account.tokens for run in runs), sum(run.account.train_flops for run in runs)
    return (
        f"{len(runs)} trials, {quantity(tokens)} tokens, {quantity(flops)} FLOPs, about {duration(estimate.seconds)} "
        f"without pruning, {estimate.workers} at once ({estimate.basis})"
    )


def asks_table(title: str, asks: Sequence[tuple[str, Mapping[str, Any], PlannedRun]], line: str) -> RenderableType:
    """The first trials that would be asked for."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("trial", "parameters", "params", "tokens", "FLOPs"):
        table.add_column(name, justify="left" if name == "parameters" else "right")
    for name, params, run in asks[:SHOWN_ASKS]:
        a = run.account
        table.add_row(name, words(params), f"{a.params:,}", quantity(a.tokens), quantity(a.train_flops))
    return Group(table, Text(line))


def trials_table(name: str, trials: Sequence[Trial], total: int) -> RenderableType:
    """One row per trial, the newest last, and the best so far."""
    table = Table(title=f"{name}: {counts_line(trials, total)}", title_justify="left", title_style="bold")
    for column in ("trial", "run", "state", "step", "val loss", "parameters"):
        table.add_column(column, justify="right" if column in ("trial", "step", "val loss") else "left")
    for t in trials[-MOST_ROWS:]:
        loss = "" if t.val_loss is None else f"{t.val_loss:.4f}"
        state = Text(t.state, style=STYLES.get(State(t.state), "") if t.state in set(State) else "red")
        table.add_row(str(t.trial), t.run_id or "", state, f"{t.step}/{t.steps}", loss, words(t.params))
    return Group(table, Text(best_line(trials)))


def best_line(trials: Sequence[Trial]) -> str:
    """The best so far in words."""
    found = best(trials)
    if found is None:
        return "no trial is done yet"
    return f"best so far: trial {found.trial} ({found.run_id}), loss {found.val_loss:.4f} at {words(found.params)}"


def counts_line(trials: Sequence[Trial], total: int) -> str:
    """'12 of 24 trials told: 9 done, 2 diverged, 1 pruned; 4 running'."""
    told = [trial for trial in trials if trial.state in (State.DONE, State.DIVERGED, State.PRUNED, "REFUSED")]
    ended = Counter(trial.state.lower() for trial in told)
    others = Counter(trial.state.lower() for trial in trials if trial not in told)
    parts = [", ".join(f"{n} {state}" for state, n in some.items()) for some in (ended, others) if some]
    return f"{len(told)} of {total} trials told" + "".join(f"; {part}" for part in parts)
