"""What the `lab` commands about sweeps do, in terms of the other modules of this room."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.console import Console, RenderableType

from lmcore.config import ConfigError, RunConfig, parse_assignment
from lmcore.count import checkpoint_bytes
from results import planned, views
from results.home import Home
from results.process import user
from results.state import ENDED, SETTLED, RunState, State, run_state
from sweeps import accounts, advances, hosts, launch_local, show, slurm, stored, triage, tune
from sweeps.exits import DISK_FULL
from sweeps.launch import Cluster, Launched, Options, launch
from sweeps.load import load
from sweeps.plan import Plan, PlannedRun, plan, tune_at
from sweeps.spec import SweepError
from sweeps.watch import watch

MOST_NAMED = 10  # failed runs, one line each; `lab failures` groups them
SPARE_BYTES = 100_000  # a run also writes rows, a log and its ending


@dataclass(frozen=True)
class SweepRequest:
    """`lab sweep` as it was typed."""

    name: str
    scale: str | None = None
    sets: Sequence[str] = ()
    seeds: int | None = None
    cluster: str = "local"
    jobs: int | None = None
    slurm: Sequence[str] = ()
    retry_failed: bool = False
    take_over: bool = False
    runs_per_gpu: int | None = None

    def options(self) -> Options:
        """Typed; raises SweepError."""
        for cluster in get_args(Cluster):
            if cluster == self.cluster:
                given = dict(_slurm_option(text) for text in self.slurm)
                if given and cluster != "slurm":
                    raise SweepError("--slurm goes with --cluster slurm")
                return Options(cluster, self.jobs, self.retry_failed, self.take_over, given, self.runs_per_gpu)
        raise SweepError(f"--cluster is one of {', '.join(get_args(Cluster))}, not {self.cluster!r}")


def _slurm_option(text: str) -> tuple[str, Any]:
    """key=value with numbers as numbers; submitit checks the key."""
    key, separator, value = text.partition("=")
    if not separator:
        raise SweepError(f"--slurm expects key=value, got {text!r}")
    return key.replace("-", "_"), int(value) if value.isdigit() else value


def assignments(sets: Sequence[str]) -> dict[str, Any]:
    """--set options, typed like the config. Raises ConfigError; the same key twice is refused."""
    pairs = [parse_assignment(text) for text in sets]
    keys = [key for key, _ in pairs]
    if "data.fingerprint" in keys:
        raise ConfigError("data.fingerprint follows from the data, it cannot be set")
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"--set {key} was given twice")
    return dict(pairs)


def plan_sweep(asked: SweepRequest, home: Home) -> tuple[Plan, Options]:
    """The plan of a request, nothing started. Raises SweepError, ConfigError, OSError."""
    options, changes = asked.options(), assignments(asked.sets)
    if options.cluster == "slurm" and slurm.available():
        from sweeps.launch_slurm import check

        check(dict(options.slurm))
    loaded = load(asked.name)
    home.ensure()
    found, how = plan(loaded, home, asked.scale, changes, asked.seeds), tune_at(loaded.sweep, asked.scale)
    return (tune.first_stage(found, how, loaded.sweep) if how else found), options


def confirmed(runs: int) -> bool:
    """Ask a person; a script that gave no --yes has nobody to ask and goes on."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"Start {runs} runs? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def carry_out(planned: Plan, options: Options, home: Home, console: Console, wait: bool) -> tuple[Plan, dict[str, int]]:
    """Start what is missing, of a tuned sweep stage after stage; the last plan it came to and its states.

    A stage of which a run is missing for good ends it: there is nothing to choose from yet.
    """
    while True:
        stages = tune.stages(planned, home) if isinstance(planned, tune.StagePlan) else [planned]
        for earlier in stages[:-1]:
            earlier.write(home)
        stage = stages[-1]
        if isinstance(stage, tune.StagePlan):
            console.print(f"stage {advances.STAGES[stage.stage]}")
        with started(stage, options, home, console) as running:
            counts = running.wait() if wait else running.leave()
        if not wait or not all_well(counts) or not isinstance(stage, tune.StagePlan) or stage.stage == "verdict":
            return stage, counts


@contextmanager
def started(planned: Plan, options: Options, home: Home, console: Console) -> Iterator["Running"]:
    """Start what is missing. Ctrl-C inside the block asks local workers to save and stop before it goes on."""
    launched = _launch(planned, home, options)
    try:
        for line in started_lines(launched):
            console.print(line)
        yield Running(planned, launched, home, console)
    except KeyboardInterrupt:
        if launched.processes:
            console.print("stopping: each run saves first")
            stopped = launch_local.stop(launched.processes)
            console.print("saved; the same command continues" if stopped else "still saving; `lab status` tells")
        elif launched.busy or launched.job_ids:
            console.print("the workers go on; `lab cancel` stops them")
        raise


def _launch(planned: Plan, home: Home, options: Options) -> Launched:
    if options.cluster == "slurm" and isinstance(planned, tune.StagePlan):
        from sweeps.launch_stages import start

        return start(planned, home, options)
    return launch(planned, home, options)


def started_lines(launched: Launched) -> Iterator[str]:
    """What a call found and did, for a person."""
    for state in launched.unknown:
        yield f"run {state.run_id} is left alone, nobody here can tell whether it lives ({state.detail})"
    if launched.unknown:
        yield "if its worker is dead, `lab sweep ... --take-over` goes on with it"
    yield from (f"{bad}: avoided from now on" for bad in launched.avoided)
    if launched.other_code:
        listed = ", ".join(f"{n} by {code}" for code, n in launched.other_code.items())
        yield f"earlier runs were made by other code ({listed}; now it is {launched.code_hash}); see `lab lint`"
    if launched.held:
        yield launched.held
    if not launched.squeue_answers:
        yield "squeue does not answer, so nothing was started; try again later"
    if launched.busy:
        yield f"{launched.missing} runs to do, {launched.busy} workers are already at work on this sweep"
    if launched.job_ids:
        jobs = ", ".join(launched.job_ids)
        yield f"{launched.missing} runs to do, as SLURM job {jobs} with {launched.submitted} workers at most"
    if launched.refused:
        yield f"SLURM takes no more workers now ({launched.refused}); the same command later continues there"
    if launched.processes:
        yield f"{launched.missing} runs to do, with {len(launched.processes)} local workers"
    if launched.squeue_answers and not (launched.busy or launched.job_ids or launched.processes or launched.held):
        yield "nothing to start: no run is missing (--retry-failed starts failed ones again)"


@dataclass(frozen=True)
class Running:
    """A sweep under way."""

    plan: Plan
    launched: Launched
    home: Home
    console: Console

    def wait(self) -> dict[str, int]:
        """Show progress until the end; returns how many runs are in each state."""
        processes = self.launched.processes
        folder = self.plan.folder(self.home)

        def working() -> bool:
            return any(p.poll() is None for p in processes) or bool(launch_local.living(folder))

        on_slurm = self.launched.cluster == "slurm"
        states = watch(self._stored(), self.home, None if on_slurm else working, self.console)
        launch_local.ended(processes, launch_local.LEAVE_WITHIN_S)  # the runs have; nobody is to be left at work
        if self.console.is_terminal:  # elsewhere it was the last line of the progress
            self.console.print(show.counts_line(states))
        self._say_what_failed(states)
        left = {state.run_id for state in states if state.state not in SETTLED}
        self._say_if_the_disk_is_full([run for run in self.plan.runs if run.run_id in left])
        return show.counts(states)

    def _say_what_failed(self, states: Sequence[RunState]) -> None:
        failed = [state for state in states if state.state is State.FAILED]
        for state in failed[:MOST_NAMED]:
            self.console.print(f"{state.run_id} failed ({state.kind}): {state.detail}; `lab logs {state.run_id}`")
        folder, left = self.plan.folder(self.home), any(state.state not in ENDED for state in states)
        for group in triage.dead_workers(self.home, self._stored(), states) if left else ():
            where = f" on {group.host}" if group.host else ""
            self.console.print(
                f"{len(group.runs)} workers ended before they took a run{where} ({group.kind}): {group.error}"
            )
            self.console.print(group.remedy)
        for bad in hosts.bad_hosts(self.home, states, slurm.endings(folder)).values():
            self.console.print(f"{bad}; the next call avoids it")
        if failed or left:
            self.console.print(f"`lab failures {self.plan.sweep}` says what to do")

    def _say_if_the_disk_is_full(self, left: Sequence[PlannedRun]) -> None:
        need = min((checkpoint_bytes(run.config.model) for run in left), default=-SPARE_BYTES)
        free = shutil.disk_usage(self.home.path).free
        # What is free says nothing of a quota, nor of what was free when a worker met the end of it.
        met = any(process.poll() == DISK_FULL for process in self.launched.processes)
        if free < need + SPARE_BYTES or (met and left):
            self.console.print(
                f"no space left at {self.home.path}: {free:,} bytes are free, a checkpoint needs {need:,}; "
                "make room (or ask for quota) and call again"
            )

    def leave(self) -> dict[str, int]:
        """Return at once; the workers go on."""
        self.console.print(f"running in the background: lab status {self.plan.sweep}")
        if isinstance(self.plan, tune.StagePlan) and self.plan.stage != "verdict" and not self.launched.job_ids:
            self.console.print("the next stage begins with the next `lab sweep` after these runs have ended")
        return show.counts(stored.run_states(self.home, self._stored().run_ids, slurm.Queue()))

    def _stored(self) -> stored.StoredPlan:
        return stored.find_plan(self.home, f"{self.plan.sweep}/{self.plan.plan_id}")


def all_well(counts: dict[str, int]) -> bool:
    """Whether nothing needs care: a diverged or pruned run is a result, anything else unfinished is not."""
    return set(counts) <= SETTLED


def status(name: str, home: Home) -> dict[str, Any]:
    """Every run of a sweep with its state and its last losses, from the run folders."""
    found = stored.find_plan(home, name)
    queue, states = stored.judge(home, found.folder, found.run_ids)
    begun = home.folders()
    rows = [
        {key: run[key] for key in ("run_id", "arm", "seed", "steps")}
        | {"state": state.state.value, "kind": state.kind, "step": state.step, "detail": state.detail}
        | (views.progress(home.run(state.run_id)) if state.run_id in begun else views.NO_PROGRESS)
        for run, state in zip(found.runs, states, strict=True)
    ]
    names = {key: found.content[key] for key in ("sweep", "plan_id", "scale")} | {"stage": found.content.get("stage")}
    notes = [*advances.notes(found, states, home), *_notes(queue)]
    code = stored.code_of(states)
    return names | {"runs": rows, "counts": show.counts(states), "code": code, "notes": notes}


def _notes(queue: slurm.Queue) -> list[str]:
    """What SLURM says that no single run's state does."""
    silent = (
        [] if queue.answered else ["squeue does not answer: what runs on other hosts is known by its heartbeat only"]
    )
    return silent + ([queue.advice] if queue.advice else [])


def status_table(answer: dict[str, Any]) -> RenderableType:
    """The same for a person."""
    counts = ", ".join(f"{n} {state}" for state, n in answer["counts"].items())
    scale = f"@{answer['scale']}" if answer["scale"] else ""
    code = f"\ncode {_code_line(answer['code'])}" if answer["code"] else ""
    notes = "".join(f"\n{note}" for note in answer["notes"])
    return show.status_table(f"{answer['sweep']}{scale} ({answer['plan_id']}): {counts}{code}{notes}", answer["runs"])


def _code_line(code: Mapping[str, int]) -> str:
    """'1a2b3c4d5e6f', or which runs ran which of several."""
    return next(iter(code)) if len(code) == 1 else ", ".join(f"{name} ({n} runs)" for name, n in code.items())


def cancel(name: str, home: Home) -> list[str]:
    """Ask a sweep, or one run by (the beginning of) its id, to save and stop. Returns the runs asked."""
    try:
        run_id = views.resolve(home, name if len(name) >= 4 else "-")
    except views.UnknownRun as error:
        if error.found:
            raise
        return stored.stop(home, stored.find_plan(home, name), user())
    if run_state(home.run(run_id)).state in ENDED:
        return []
    planned.begin(home.run(run_id), planned.all_specs(home).get(run_id))
    home.run(run_id).request_cancel(user())
    return [run_id]


def decode(name: str, home: Home, batches: Sequence[int], prompt: int, new: int) -> list[dict[str, Any]]:
    """Cost of generating with the first finished run of every arm of a sweep. Raises SweepError."""
    from sweeps.sample import decode_costs

    found = stored.find_plan(home, name)
    arms: dict[str, str] = {}
    for run in found.runs:
        if run["arm"] not in arms.values() and home.run(run["run_id"]).done():
            arms[run["run_id"]] = run["arm"]
    if not arms:
        raise SweepError(f"no run of {name} is done yet")
    rows = decode_costs(home, list(arms), batches, prompt, new)
    return [{"arm": arms[row["run_id"]]} | row for row in rows]


def models(model: str | None, scale: str | None, sets: Sequence[str], home: Home) -> dict[str, RunConfig]:
    """What `lab flops` is about: a run per name; one per arm for an experiment."""
    return accounts.accounts(model, home, assignments(sets), scale)


def flops(found: Mapping[str, RunConfig], context: int | None, batch: int | None) -> dict[str, dict[str, Any]]:
    """Accounts by model name."""
    return {name: accounts.account(run, context, batch) for name, run in found.items()}


def coords(
    model: str | None, sets: Sequence[str], home: Home, widths: Sequence[int], lr: float, steps: int, seeds: int
) -> list[dict[str, Any]]:
    """A row per activation and parametrisation: its change at each width, and the slope of their logarithms."""
    from lmcore.coords import check

    if len(set(widths)) < 2:
        raise SweepError("a slope needs two widths or more")
    rows = []
    for name, run in models(model, None, sets, home).items():
        for kind in ("standard", "transfer"):
            found = check(run.model, sorted(set(widths)), kind == "transfer", lr, steps, seeds)
            for activation, slope in found.slopes().items():
                changes = dict(zip(map(str, found.widths), found.changes[activation], strict=True))
                what: dict[str, Any] = {
                    "model": name,
                    "parametrisation": kind,
                    "activation": activation,
                    "slope": slope,
                }
                rows.append(what | changes)
    return rows


def peak(threads: int, home: Home) -> dict[str, Any]:
    """What this machine's device can do at most, measured for a second, and the MFU that its recorded runs reached."""
    import torch

    from lmcore.peak import measure_peak

    measured = measure_peak("cuda" if torch.cuda.is_available() else "cpu", threads)
    return asdict(measured) | {"runs": accounts.runs_against(measured, home)}
