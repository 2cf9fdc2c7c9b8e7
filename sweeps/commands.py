"""What the `lab` commands about sweeps do, in terms of the other modules of this room."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.console import RenderableType

from lmcore.config import ConfigError, RunConfig, parse_assignment
from results import planned, views
from results.home import Home
from results.process import user
from results.state import run_state
from sweeps import accounts, advances, show, slurm, stored, tune
from sweeps.launch import Cluster, Options
from sweeps.load import load
from sweeps.plan import Plan, plan, tune_at
from sweeps.spec import SweepError


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
    return silent + queue.remarks


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
    granted = [stored.grants(plan.folder) for plan in stored.all_plans(home) if run_id in plan.run_ids]
    if not any(stored.may_go_on(run_state(home.run(run_id)), one) for one in [{}, *granted]):
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
    import torch

    from lmcore.coords import check

    if len(set(widths)) < 2:
        raise SweepError("a slope needs two widths or more")
    rows = []
    for name, run in models(model, None, sets, home).items():
        torch.set_num_threads(run.train.means.threads)
        for kind in ("standard", "transfer"):
            print(f"{name}, {kind} parametrisation: d_model {', '.join(map(str, widths))}", file=sys.stderr, flush=True)
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
