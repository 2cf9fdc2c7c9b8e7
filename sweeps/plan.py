"""From a sweep to an immutable plan: every run, its matched size and its cost, before anything starts."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from lmcore import auto, count, data
from lmcore.config import ConfigError, DataConfig, RunConfig, flatten, read_config, replace, stored_form
from lmcore.corpus import DataError
from lmcore.data import DataInfo
from results import planned
from results.files import BadFile, encode_json, now, write_bytes
from results.home import Home
from results.record import CHECKPOINTS_KEPT
from sweeps.load import Loaded
from sweeps.match import residual, solve
from sweeps.spec import Overrides, Sweep, SweepError, Tune

SWEEP_KEYS = ("seeds", "smallest_effect", "tune")  # of a scale: the sweep's own, not the run's
ROW_BYTES = 120  # one logged step in the run folder and again in the database
MATCHED_SIZES = ("d_ff", "n_layer", "d_model", "n_head")  # of the model: what a match may have solved


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan. `match_residual` is (arm - baseline) / baseline; None where nothing was matched.

    Of a tuning run `tunes` is the arm that it tunes, and `params` what is tried.
    """

    arm: str
    config: RunConfig
    data: DataInfo
    account: count.Account
    match_residual: float | None
    tunes: str | None = None
    params: Mapping[str, Any] | None = None

    @cached_property
    def run_id(self) -> str:
        return self.config.run_id

    def with_seed(self, offset: int) -> "PlannedRun":
        """The same run with another seed: sizes and costs do not depend on it."""
        return dataclasses.replace(self, config=replace(self.config, {"seed": self.config.seed + offset}))

    def row(self) -> dict[str, Any]:
        """What the plan file and `--json` say about it."""
        a = self.account
        return {
            "run_id": self.run_id,
            "group_id": self.config.group_id,
            "arm": self.arm,
            "seed": self.config.seed,
            "params": a.params,
            "params_non_embedding": a.params_non_embedding,
            "match_residual": self.match_residual,
            "flops_per_token": a.flops_per_token,
            "train_flops": a.train_flops,
            "tokens": a.tokens,
            "steps": a.steps,
            **{name: getattr(self.config.model, name) for name in MATCHED_SIZES},
            **({"tunes": self.tunes, "params": dict(self.params or {})} if self.tunes else {}),
        }

    def spec(self) -> dict[str, Any]:
        """What `spec.json` of the run says."""
        return {
            "format": 1,
            "run_id": self.run_id,
            "group_id": self.config.group_id,
            "seed": self.config.seed,
            "config": stored_form(self.config),
            "account": dict(vars(self.account)),  # not asdict, whose deep copies take ten times as long
            "data": asdict(self.data),
        }


@dataclass(frozen=True)
class Plan:
    """All runs of one sweep at one scale, in order."""

    sweep: str
    scale: str | None
    question: str
    baseline: str | None
    smallest_effect: float | None
    match_tolerance: float | None
    source: Mapping[str, str]
    overrides: Mapping[str, Any]
    runs: tuple[PlannedRun, ...]
    resolved: tuple[str, ...]  # what `auto` became and why, a line each

    @cached_property
    def plan_id(self) -> str:
        """Named after what is compared, so that the same question asked twice is the same plan."""
        content = [self.sweep, self.scale, self.baseline, [(r.run_id, r.arm) for r in self.runs]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def folder(self, home: Home) -> Path:
        return home.sweeps / self.sweep / self.plan_id

    def totals(self) -> dict[str, Any]:
        """Sums over the plan. Disk: checkpoints kept per run, and the logged rows."""
        checkpoints = sum(CHECKPOINTS_KEPT * count.checkpoint_bytes(r.config.model) for r in self.runs)
        rows = sum(r.config.train.steps // r.config.train.log_every for r in self.runs)
        return {
            "runs": len(self.runs),
            "tokens": sum(r.account.tokens for r in self.runs),
            "train_flops": sum(r.account.train_flops for r in self.runs),
            "disk_bytes": checkpoints + rows * ROW_BYTES,
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as stored and as printed by `lab sweep --dry-run --json`."""
        return {
            "format": 1,
            "sweep": self.sweep,
            "plan_id": self.plan_id,
            "scale": self.scale,
            "question": self.question,
            "baseline": self.baseline,
            "smallest_effect": self.smallest_effect,
            "match_tolerance": self.match_tolerance,
            "source": dict(self.source),
            "overrides": dict(self.overrides),
            "resolved": list(self.resolved),
            "runs": [run.row() for run in self.runs],
            "totals": self.totals(),
        }

    def write(self, home: Home) -> None:
        """Store plan and specs, once; what exists already stays as it is. Raises SweepError on a changed default."""
        folder = self.folder(home)
        self.refuse_changed_defaults(home)
        if not _is_whole(folder, {run.run_id for run in self.runs}):
            self.store(folder, now())

    def refuse_changed_defaults(self, home: Home) -> None:
        """Raise SweepError if a run is stored with another config than it would have today."""
        stored = _stored_specs(home, self.folder(home), self.runs)
        for run in self.runs:
            if run.run_id in stored and encode_json(stored[run.run_id]) != encode_json(run.spec()):
                _refuse_changed_default(stored[run.run_id], run)

    def store(self, folder: Path, created_at: str) -> None:
        """Write specs, then plan.json: who sees a run in the plan finds its spec."""
        planned.write(folder, [run.spec() for run in self.runs])
        plan = encode_json(self.to_json() | {"created_at": created_at}, indent=None)
        write_bytes(folder / "plan.json", plan.encode())


def _is_whole(plan_folder: Path, run_ids: Set[str]) -> bool:
    """Whether both files are there and name every run: one that was cut between two lines is whole JSON still."""
    try:
        return planned.plan(plan_folder) is not None and planned.specs(plan_folder).keys() >= run_ids
    except BadFile:
        return False  # damaged: the same plan is at hand to write it again


def _stored_specs(home: Home, plan_folder: Path, runs: Iterable[PlannedRun]) -> dict[str, dict[str, Any]]:
    """Specs that earlier calls stored: with the plan, or with a run that has begun."""
    try:
        found = planned.specs(plan_folder)
    except BadFile:
        found = {}
    begun = set(home.run_ids())
    for run in runs:
        if run.run_id in begun:
            try:
                found[run.run_id] = home.run(run.run_id).spec()
            except (BadFile, FileNotFoundError):  # torn or gone: the plan knows what it said
                # Something else that stands in its place harms that run alone, and its state names it.
                with contextlib.suppress(FileExistsError, IsADirectoryError):
                    home.run(run.run_id).create(run.spec())
    return found


def _refuse_changed_default(spec: Mapping[str, Any], run: PlannedRun) -> None:
    """A field that is new since the run was stored takes its default; a stored value that differs is refused."""
    run_id = run.run_id
    try:
        stored = read_config(spec)
    except ConfigError as error:
        raise SweepError(f"run {run_id} was stored by another version of lab: {error}") from None
    old, new = flatten(stored), flatten(read_config(run.spec()))
    changed = [f"{key} was {old[key]!r}, is {new[key]!r}" for key in sorted(new) if old[key] != new[key]]
    if changed:
        raise SweepError(
            f"run {run_id} exists, but a default has changed since it was planned: {'; '.join(changed)}. "
            "Set the old value explicitly to go on with the old run, or move its folder away to train it anew."
        )


def plan(loaded: Loaded, home: Home, scale: str | None, overrides: Overrides, seeds: int | None) -> Plan:
    """Resolve every run: data prepared, vocabulary filled in, sizes matched, costs counted. Raises SweepError."""
    sweep = loaded.sweep
    scale, at_scale = _scale(sweep, scale)
    own = {key: at_scale[key] for key in SWEEP_KEYS if key in at_scale}
    changes = {k: v for k, v in at_scale.items() if k not in SWEEP_KEYS}
    n_seeds = seeds or own.get("seeds", sweep.seeds)
    prepared = cache(lambda config: data.prepare(config, home.data))  # arms mostly share their data
    arms = {arm: _arm_config(sweep, arm, changes, overrides, prepared) for arm in sweep.arms}
    configs, resolved = auto.resolve({arm: config for arm, (config, _) in arms.items()})
    baseline = configs[sweep.baseline] if sweep.baseline else None
    first = [_planned(arm, configs[arm], info, sweep, baseline) for arm, (_, info) in arms.items()]
    runs = [run.with_seed(offset) for offset in range(n_seeds) for run in first]
    _refuse_twins(runs)
    effect = own.get("smallest_effect", sweep.smallest_effect)
    source = {"path": str(loaded.path), "sha256": loaded.sha256}
    tolerance = sweep.match.tolerance if sweep.match else None
    asked = (loaded.name, scale, sweep.question, sweep.baseline, effect, tolerance, source, overrides)
    return Plan(*asked, tuple(runs), tuple(resolved))


def _scale(sweep: Sweep, scale: str | None) -> tuple[str | None, Overrides]:
    scale = scale or sweep.default_scale
    if scale is None:
        return None, {}
    if scale not in sweep.scales:
        raise SweepError(f"unknown scale {scale!r}; this sweep has {', '.join(sweep.scales) or 'none'}")
    return scale, sweep.scales[scale]


def tune_at(sweep: Sweep, scale: str | None) -> Tune | None:
    """How the arms are tuned at a scale, if they are. Raises SweepError."""
    tune: Tune | None = _scale(sweep, scale)[1].get("tune", sweep.tune)
    return tune


def _arm_config(
    sweep: Sweep, arm: str, scale: Overrides, shell: Overrides, prepared: Callable[[DataConfig], DataInfo]
) -> tuple[RunConfig, DataInfo]:
    """base, then scale, then the shell's --set, then the arm: what an arm is about cannot be overridden by accident."""
    try:
        clash = sorted(set(shell) & set(sweep.arms[arm]))
        if clash:
            raise ConfigError(f"--set {clash[0]}: this is what the arms vary; edit the sweep instead")
        return resolve(replace(sweep.base, {**scale, **shell, **sweep.arms[arm]}), prepared)
    except (ConfigError, DataError) as error:
        raise SweepError(f"arm {arm!r}: {error}") from None


def resolve(config: RunConfig, prepared: Callable[[DataConfig], DataInfo]) -> tuple[RunConfig, DataInfo]:
    """The config with fingerprint and vocabulary of its data. Raises ConfigError, DataError."""
    info = prepared(config.data)
    config = replace(config, {"data.fingerprint": info.fingerprint} | _vocab(config, info))
    _check_length(config, info)
    return config, info


def _vocab(config: RunConfig, info: DataInfo) -> dict[str, int]:
    """The tokenizer decides the vocabulary unless the config asks for a larger one (padding to a round number)."""
    if "vocab" not in config.model.model_fields_set:
        return {"model.vocab": info.vocab}
    if config.model.vocab < info.vocab:
        raise ConfigError(f"model.vocab {config.model.vocab} is below the tokenizer's {info.vocab}")
    return {}


def _check_length(config: RunConfig, info: DataInfo) -> None:
    for part, tokens in (("training", info.train_tokens), ("validation", info.val_tokens)):
        if tokens <= config.model.context:
            raise DataError(
                f"{info.name} has {tokens} {part} tokens, too few for one sequence of context "
                f"{config.model.context}; give more text or a smaller model.context"
            )


def _planned(arm: str, config: RunConfig, info: DataInfo, sweep: Sweep, baseline: RunConfig | None) -> PlannedRun:
    difference = None
    if sweep.match and baseline and (sweep.match.covers(arm) or arm == sweep.baseline):
        if arm != sweep.baseline:
            try:
                config = replace(config, {"model": solve(config.model, baseline.model, sweep.match)})
            except SweepError as error:
                raise SweepError(f"arm {arm!r} cannot be matched to {sweep.baseline!r}: {error}") from None
        difference = residual(config.model, baseline.model, sweep.match)
    return PlannedRun(arm, config, info, count.account(config), difference)


def _refuse_twins(runs: list[PlannedRun]) -> None:
    """Two arms that are the same run would be counted as two pieces of evidence."""
    seen: dict[str, str] = {}
    for run in runs:
        other = seen.setdefault(run.run_id, run.arm)
        if other != run.arm:
            raise SweepError(f"arms {other!r} and {run.arm!r} are the same configuration")
