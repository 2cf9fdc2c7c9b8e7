"""`lab search` from its options to its answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.live import Live

from results.home import Home
from results.state import SETTLED, State
from sweeps import search_show, slurm
from sweeps.commands import SweepRequest, assignments
from sweeps.estimate import estimate
from sweeps.launch import Options
from sweeps.running import started_lines
from sweeps.search import LOOK_EVERY_S, Controller, Trial, held
from sweeps.search_define import Definition, define, first_asks
from sweeps.search_plan import SearchPlan

LINE_EVERY_S = 30.0


@dataclass(frozen=True)
class SearchRequest:
    """`lab search` as it was typed; `how` holds what it shares with `lab sweep`."""

    how: SweepRequest
    trials: int
    sampler: str
    pruner: str
    seed: int


class Session:
    """One call of `lab search`."""

    def __init__(self, asked: SearchRequest, home: Home) -> None:
        self.options: Options = asked.how.options()
        if self.options.cluster == "slurm" and slurm.available():
            from sweeps.launch_slurm import check

            check(dict(self.options.slurm))
        changes = assignments(asked.how.sets)
        self.definition: Definition = define(asked.how.name, asked.sampler, asked.pruner, asked.seed, changes, home)
        self.home = home
        self.controller = Controller(self.definition, asked.trials, self.options, home)
        self.name = f"{self.definition.found.name}/{self.definition.search_id}"

    def budget(self) -> dict[str, Any]:
        """The first asks and what all trials cost, nothing started: one JSON object."""
        plan, seconds = self._imagined()
        keys = list(self.definition.space.parts)
        asks = [
            {"trial": i, "params": _params(run.config, keys), "run_id": run.run_id} for i, run in enumerate(plan.runs)
        ]
        totals = plan.totals() | {"estimated_s": seconds.seconds, "workers": seconds.workers}
        return {
            "search": self.definition.found.name,
            "plan_id": self.definition.search_id,
            **self.definition.describe(self.controller.total),
            "first_asks": asks[: search_show.SHOWN_ASKS],
            "totals": totals | {"estimate_basis": seconds.basis},
        }

    def show_budget(self, console: Console) -> None:
        """The same for a person."""
        plan, seconds = self._imagined()
        keys = list(self.definition.space.parts)
        asks = [(str(i), _params(run.config, keys), run) for i, run in enumerate(plan.runs)]
        title = f"{self.definition.found.name}: {self.definition.found.sweep.question}"
        console.print(search_show.asks_table(title, asks, search_show.budget_line(plan.runs, seconds)))

    def run(self, console: Console) -> list[Trial]:
        """Search until every trial is told, or nothing more can be done."""
        with held(self.controller):
            self.controller.open()
            try:
                self.controller.start()
                for launched in self.controller.launched:
                    for line in started_lines(launched):
                        console.print(line)
                self._watch(console)
            except KeyboardInterrupt:
                console.print("stopping: each run saves first")
                self.controller.stop()
                console.print("the same command continues")
                raise
            finally:
                self.controller.close()
            return self.controller.table()

    def answer(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """The result as one JSON object."""
        found = search_show.best(trials)
        return {
            "search": self.definition.found.name,
            "plan_id": self.definition.search_id,
            **self.definition.describe(self.controller.total),
            "results": [asdict(trial) for trial in trials],
            "best": asdict(found) if found else None,
        }

    def show(self, trials: Sequence[Trial], console: Console) -> None:
        """The result for a person."""
        console.print(search_show.trials_table(self.name, trials, self.controller.total))
        if any(trial.state == State.FAILED for trial in trials):
            console.print(f"`lab failures {self.name}` says what to do; --retry-failed starts failed trials again")
        console.print(f"`lab report {self.name}` draws the trials against each parameter")

    def complete(self, trials: Sequence[Trial]) -> bool:
        """Whether every trial has an answer."""
        return len(trials) == self.controller.total and all(trial.state in {*SETTLED, "REFUSED"} for trial in trials)

    def _imagined(self) -> tuple[SearchPlan, Any]:
        runs = first_asks(self.definition, self.controller.total)
        found = self.definition.found
        plan = SearchPlan(
            found.name, None, found.sweep.question, None, None, None, {}, {}, tuple(runs),
            self.definition.space.resolved, self.definition.search_id, {}, True,
        )  # fmt: skip
        return plan, estimate(plan, self.home, self.controller.jobs_for(plan))

    def _watch(self, console: Console) -> None:
        if not console.is_terminal:
            self._loop(_Lines(console, self.controller.total))
            return
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            self._loop(lambda trials: live.update(search_show.trials_table(self.name, trials, self.controller.total)))

    def _loop(self, show: Callable[[Sequence[Trial]], None]) -> None:
        while self.controller.step():
            show(self.controller.table())
            time.sleep(LOOK_EVERY_S)
        show(self.controller.table())


class _Lines:
    """Without a terminal: a line per ending, and the counts now and then."""

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total = console, total
        self.told, self.said = set[int](), time.monotonic()

    def __call__(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            if trial.value is not None and trial.trial not in self.told:
                self.told.add(trial.trial)
                loss = "" if trial.val_loss is None else f", loss {trial.val_loss:.4f}"
                where = search_show.words(trial.params)
                self.console.print(f"trial {trial.trial} ({trial.run_id}): {trial.state}{loss} at {where}")
        if time.monotonic() - self.said > LINE_EVERY_S:
            self.said = time.monotonic()
            self.console.print(f"{search_show.counts_line(trials, self.total)}; {search_show.best_line(trials)}")


def _params(config: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    """Values of dotted keys."""
    found = {}
    for key in keys:
        value = config
        for name in key.split("."):
            value = getattr(value, name)
        found[key] = value
    return found
