"""`lab search`: one controller asks and tells, ordinary workers run the trials.

The controller may die at any moment. What was asked and told is in the study, what runs is in the run folders, and a
trial's run follows from its parameters: calling the same command again continues.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from lmcore import count
from lmcore.config import ConfigError
from lmcore.corpus import DataError
from results.files import write_json
from results.home import Home
from results.lock import exclusive
from results.process import user
from results.state import ENDED, SETTLED, RunState, State, claimable
from sweeps import launch_local, search_prune, slurm, stored
from sweeps.launch import Launched, Options, launch
from sweeps.plan import PlannedRun
from sweeps.search_define import Definition
from sweeps.search_plan import SearchPlan
from sweeps.search_prune import Curve
from sweeps.search_study import Result, Trials, open_study
from sweeps.spec import SweepError

LOOK_EVERY_S = 0.5
SCHEDULER_EVERY_S = 10.0
CONTROLLER_WAIT_S = 5.0
MOST_FAILED = 3  # failed runs after which nothing more is asked: the next would fail, too
MOST_LAUNCHES = 3  # in a row without any step or ending between them
DONE, PRUNED, DIVERGED = "done", "pruned", "diverged"


@dataclass
class Looking:
    """What is known of the runs between two looks at the scheduler."""

    queue: slurm.Queue = field(default_factory=slurm.Queue)
    asked: float = -SCHEDULER_EVERY_S
    launches: int = 0
    seen: object = None


@dataclass(frozen=True)
class Trial:
    """One trial as a person sees it. `state`: of its run, or REFUSED; `value`: what the sampler was told."""

    trial: int
    run_id: str | None
    params: Mapping[str, Any]
    state: str
    step: int
    steps: int
    val_loss: float | None
    value: float | None


class Controller:
    """One search under way; use it while holding `held`."""

    def __init__(self, definition: Definition, trials: int, options: Options, home: Home) -> None:
        self.definition, self.options, self.home = definition, options, home
        grid = math.prod(len(points) for points in definition.space.grid.values())
        self.total = min(trials, grid) if definition.sampler == "grid" else trials
        self.folder = home.sweeps / definition.found.name / definition.search_id
        self.looking, self.launched = Looking(), list[Launched]()
        self.cache: dict[int, PlannedRun] = {}
        self.closed, self.written = False, list[dict[str, Any]]()
        self.curves: dict[str, Mapping[int, float]] = {}

    def open(self) -> None:
        """Read the study and bring plan and study together, whatever moment the last controller died at."""
        study = open_study(self.folder, self.definition.found.name)
        self.trials = Trials(study, self.definition.space, self.definition.sampler, self.definition.seed)
        self.trials.complete_asks()
        if not self.trials.all():
            self._ask_one()
        self._write()

    @property
    def jobs(self) -> int:
        """Trials at once: a quarter of all at most unless asked for, so that later ones learn from earlier ones."""
        return self.jobs_for(self.plan())

    def jobs_for(self, plan: SearchPlan) -> int:
        """The same before there is a study."""
        if self.options.jobs is not None:
            return self.options.jobs
        return min(self.options.workers(plan), math.ceil(self.total / 4))

    def plan(self) -> SearchPlan:
        """All trials so far as an ordinary plan."""
        d, trials = self.definition, self.trials.all()
        runs = tuple(self.cache[trial.number] for trial in trials if trial.number in self.cache)
        source = {"path": str(d.found.path), "sha256": d.found.sha256}
        more = len(trials) < self.total and not self.closed
        question = d.found.sweep.question
        return SearchPlan(
            d.found.name, None, question, None, None, None, source, d.overrides, runs, d.space.resolved,
            d.search_id, d.describe(self.total), more,
        )  # fmt: skip

    def step(self) -> bool:
        """Look once: tell what has ended, stop what is hopeless, ask for more, start workers. False when it is over."""
        states = self._states()
        self._tell(states)
        self._prune(states)
        open_runs = {self._run_id(trial): trial for trial in self.trials.running()}
        stuck = [run_id for run_id in open_runs if self._is_stuck(states.get(run_id))]
        active = len(open_runs) - len(stuck)
        stop = self._stop_asking(states, stuck)
        while not stop and active < self.jobs and len(self.trials.all()) < self.total:
            active += self._ask_one()
        self._write()
        if active and not stop:
            self._start_workers()
        if stop and not self.closed:
            self.close()  # workers that wait for more need not
        return bool(active) and not (stop and not self._workers())

    def start(self) -> None:
        """The first launch of a call: it grants what the caller grants, and withdraws cancel requests."""
        if self.trials.running():
            self._launch(self.options)

    def table(self) -> list[Trial]:
        """Every trial now."""
        states = self._states()
        return [self._row(trial, states) for trial in self.trials.all()]

    def close(self) -> None:
        """Nothing more will be asked: workers that wait may leave."""
        self.closed = True
        self.plan().write(self.home)

    def stop(self) -> bool:
        """Ask the local workers of this call to save and end."""
        return launch_local.stop([p for launched in self.launched for p in launched.processes])

    def _ask_one(self) -> int:
        """Ask for a trial and give it a run; 0 if no run can have its parameters."""
        trial = self.trials.ask()
        return int(self._plan_run(trial))

    def _plan_run(self, trial: FrozenTrial) -> bool:
        """The run of a trial: the same parameters again get another seed, so that no run counts as two trials."""
        earlier = sum(other.params == trial.params for other in self.trials.all()[: trial.number])
        space = self.definition.space
        try:
            config = space.config(trial.params, earlier)
        except (ConfigError, DataError) as error:
            if trial.state is TrialState.RUNNING:
                self.trials.refuse(trial, str(error))
            return False
        run = PlannedRun(f"trial {trial.number}", config, space.info, count.account(config), None)
        self.cache[trial.number] = run
        self.trials.note_run(trial, run.run_id)
        return True

    def _write(self) -> None:
        """The plan, and what the study says for those who do not read Optuna's files."""
        for trial in self.trials.all():
            if trial.number not in self.cache and trial.state is not TrialState.FAIL:
                self._plan_run(trial)
        rows = [
            {
                "trial": trial.number,
                "run_id": self._run_id(trial),
                "params": trial.params,
                "state": trial.state.name,
                "outcome": trial.user_attrs.get("outcome"),
                "value": trial.value if trial.state.is_finished() else None,
            }
            for trial in self.trials.all()
        ]
        if rows != self.written:
            self.plan().write(self.home)
            write_json(self.folder / "trials.json", {"trials": rows})
            self.written = rows

    def _run_id(self, trial: FrozenTrial) -> str | None:
        run = self.cache.get(trial.number)
        return run.run_id if run else None

    def _states(self) -> dict[str | None, RunState]:
        """The state of every run. SLURM is asked rarely."""
        ids = [run.run_id for run in self.cache.values()]
        now = time.monotonic()
        if self.options.cluster == "slurm" and now - self.looking.asked > SCHEDULER_EVERY_S:
            self.looking.queue, states = stored.judge(self.home, self.folder, ids)
            self.looking.asked = time.monotonic()
        else:
            states = stored.run_states(self.home, ids, self.looking.queue)
        return {state.run_id: state for state in states}

    def _tell(self, states: Mapping[str | None, RunState]) -> None:
        for trial in self.trials.running():
            state = states.get(self._run_id(trial))
            if state is not None and state.state in SETTLED:
                self.trials.tell(trial, self._result(self.cache[trial.number], state.state))

    def _result(self, run: PlannedRun, state: State) -> Result:
        """What an ending is worth. A divergence is as bad as not to have trained: finite, and the same each time."""
        curve = {self._tokens(run, step): loss for step, loss in self._losses(run.run_id).items()}
        finite = {tokens: loss for tokens, loss in curve.items() if math.isfinite(loss)}
        untrained = finite.get(0, math.log(run.config.model.vocab))
        if state is State.PRUNED:
            last = finite[max(finite)] if finite else None
            return Result(PRUNED, untrained, last, finite, pruned=bool(finite))
        loss = (self.home.run(run.run_id).done() or {}).get("val_loss") if state is State.DONE else None
        if loss is None or not math.isfinite(float(loss)):
            return Result(DIVERGED, untrained, None, finite)
        return Result(DONE, min(float(loss), untrained), float(loss), finite)

    def _losses(self, run_id: str) -> Mapping[int, float]:
        return self.home.run(run_id).validation_losses()

    def _tokens(self, run: PlannedRun, step: int) -> int:
        return step * run.config.train.batch * run.config.model.context

    def _prune(self, states: Mapping[str | None, RunState]) -> None:
        if self.definition.pruner == "none":
            return
        curves = list(self._curves(states))
        for number in search_prune.hopeless(self.definition.pruner, curves):
            run = self.home.run(self.cache[number].run_id)
            if not run.cancel_requested():
                run.request_cancel(user(), "pruned")

    def _curves(self, states: Mapping[str | None, RunState]) -> Iterator[Curve]:
        for number, run in self.cache.items():
            state = states.get(run.run_id)
            if state is None or not state.attempts:
                continue
            losses = self.curves.get(run.run_id) or self._losses(run.run_id)
            if state.state in SETTLED:
                self.curves[run.run_id] = losses
            found = {self._tokens(run, step): loss for step, loss in losses.items()}
            live = state.state not in ENDED
            yield Curve(number, found, run.config.tokens, live, state.state is State.DIVERGED)

    def _is_stuck(self, state: RunState | None) -> bool:
        """Failed or cancelled, unless a launch of ours has already allowed a worker to go on with it."""
        if state is None or state.state not in (State.FAILED, State.CANCELLED):
            return False
        if state.state is State.CANCELLED:
            return self.home.run(state.run_id).cancel_requested()
        return all(launched.granted.get(state.run_id) != state.attempts for launched in self.launched)

    def _stop_asking(self, states: Mapping[str | None, RunState], stuck: Sequence[str | None]) -> bool:
        """After a cancellation nothing new is wanted; after several failures the next would fail as well."""
        cancelled = any(states[run_id].state is State.CANCELLED for run_id in stuck)
        return cancelled or len(stuck) >= MOST_FAILED

    def _start_workers(self) -> None:
        """More workers where a trial waits for one. A launch that changes nothing is not repeated for ever."""
        states = self._states()
        settled = {run_id for run_id, state in states.items() if state.state in SETTLED}
        left = [state for state in states.values() if state.state not in SETTLED and not self._is_stuck(state)]
        waiting = [state for state in left if claimable(state.state) or state.state in ENDED]
        wanted = min(self.jobs, len(left))
        if not waiting or self._workers() >= wanted:
            return
        progress = (len(settled), sum(state.step for state in states.values()), len(states))
        self.looking.launches = self.looking.launches + 1 if progress == self.looking.seen else 1
        self.looking.seen = progress
        if self.looking.launches > MOST_LAUNCHES:
            raise SweepError(
                f"{MOST_LAUNCHES} times workers were started and ended without a step; "
                f"`lab failures {self.definition.found.name}` says why, the same command tries again"
            )
        self._launch(replace(self.options, retry_failed=False, take_over=False))

    def _workers(self) -> int:
        return len(launch_local.living(self.folder)) + len(self.looking.queue.live)

    def _launch(self, options: Options) -> None:
        self.launched.append(launch(self.plan(), self.home, replace(options, jobs=self.jobs)))
        self.looking.asked = -SCHEDULER_EVERY_S

    def _row(self, trial: FrozenTrial, states: Mapping[str | None, RunState]) -> Trial:
        run = self.cache.get(trial.number)
        state = states.get(run.run_id) if run else None
        return Trial(
            trial.number,
            run.run_id if run else None,
            trial.params,
            state.state.value if state else "REFUSED",
            state.step if state else 0,
            run.config.train.steps if run else 0,
            trial.user_attrs.get("val_loss"),
            trial.value if trial.state.is_finished() else None,
        )


def held(controller: Controller) -> Any:
    """The lock of the one controller; one that is dead is succeeded at once. Raises results.lock.Busy."""
    return exclusive(controller.folder / ".searching", CONTROLLER_WAIT_S, "search of this name")
