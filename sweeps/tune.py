"""Equal tuning: the same trials for every arm, then the best of each on fresh seeds.

Three plans follow each other, each immutable as any plan: `tune` has every arm at every point of the grid, on tuning
seeds; `widen` more points for all arms, if the best of one lies at an end; `verdict` the best of each arm, on the seeds
of the sweep. What comes next follows from the first plan and the run folders: nothing has to be remembered in between,
and whoever asks, here or in a job, gets the same answer.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lmcore import count
from lmcore.config import ConfigError, read_config
from lmcore.config import replace as changed
from lmcore.data import DataInfo
from results import planned
from results.home import Home
from results.state import SETTLED
from sweeps import slurm, space, stored
from sweeps.plan import Plan, PlannedRun
from sweeps.spec import TUNING_SEED, Range, Sweep, SweepError, Tune


class Impossible(SweepError):
    """An arm that the config refuses at a point."""


Stage = Literal["tune", "widen", "verdict"]
Params = tuple[Any, ...]  # one value per axis
DIGITS = 6  # of a point between the ends of a range, so that it reads well
FEWEST_POINTS = 3  # fewer have no inside
BARELY = 1e-6  # of a range


@dataclass(frozen=True)
class Axis:
    """The values of one key, in rising order if they are `ordered` (those of a range). `bounds`: its ends, low or high,
    past which no arm can go, so that a best value there is inside."""

    key: str
    values: tuple[Any, ...]
    ordered: bool
    log: bool
    bounds: tuple[str, ...] = ()

    def beyond(self, side: str) -> list[Any]:
        """As many values as half the axis has, past one end and as far apart as there."""
        near, end = self.values[:2][::-1] if side == "low" else self.values[-2:]
        steps = range(1, len(self.values) // 2 + 1)
        found = [end * (end / near) ** i if self.log else end + i * (end - near) for i in steps]
        return [round(value) if space.is_whole(self.key) else _rounded(value) for value in found]

    def just_past(self, side: str) -> Any:
        """A value hardly beyond one end."""
        end = self.values[0] if side == "low" else self.values[-1]
        step = 1 if space.is_whole(self.key) else BARELY * (self.values[-1] - self.values[0])
        return end - step if side == "low" else end + step


@dataclass(frozen=True)
class Tuning:
    """How a sweep is tuned and what follows: the same in all plans of it."""

    axes: tuple[Axis, ...]
    seeds: int
    verdict_seeds: int
    baseline: str | None
    smallest_effect: float | None


@dataclass(frozen=True)
class StagePlan(Plan):
    """One stage of a tuned sweep. `first`: the id of its first plan; None if this is the first."""

    stage: Stage
    tuning: Tuning
    first: str | None

    @cached_property
    def plan_id(self) -> str:
        """Named after its runs and all that follows from them."""
        content = [self.stage, self.first, asdict(self.tuning), self.sweep, self.scale]
        runs = [(run.run_id, run.arm) for run in self.runs]
        return hashlib.sha256(json.dumps([*content, runs]).encode()).hexdigest()[:12]

    @property
    def root(self) -> str:
        """The id of the first plan, under which all stages belong together."""
        return self.first or self.plan_id

    def root_folder(self, home: Home) -> Path:
        """The folder of the first plan."""
        return self.folder(home).with_name(self.root)

    def to_json(self) -> dict[str, Any]:
        """As of any plan, with its stage, the id of the first plan and how the arms are tuned."""
        return super().to_json() | {"stage": self.stage, "tuning": self.root, "tune": asdict(self.tuning)}


def first_stage(plan: Plan, tune: Tune, sweep: Sweep) -> StagePlan:
    """The tuning runs of a sweep whose ordinary plan is `plan`. Raises SweepError for what cannot be tuned."""
    if not tune.space:
        raise SweepError("tune: the space is empty: name a key, such as {'train.lr': Range(1e-4, 1e-2, log=True)}")
    for key, part in tune.space.items():
        space.check_part("tune", key, part)
        if key in plan.overrides or any(key in overrides for overrides in sweep.arms.values()):
            raise SweepError(f"tune: {key!r} is also set by an arm or --set: it cannot be tuned as well")
        if key == "train.lr" and not isinstance(part, Range):
            raise SweepError("tune: 'train.lr' is a Range, so that a best rate at its end is seen")
    axes = tuple(_bounded(_axis(key, part), _arms(plan.runs)) for key, part in tune.space.items())
    seeds = len({run.config.seed for run in plan.runs})
    if seeds > TUNING_SEED:
        raise SweepError(f"a tuned sweep has at most {TUNING_SEED:,} seeds: those above are for tuning")
    tuning = Tuning(axes, tune.seeds, seeds, plan.baseline, plan.smallest_effect)
    points = list(itertools.product(*(axis.values for axis in axes)))
    runs = _trials(_arms(plan.runs), tuning, points)
    return _stage(plan, "tune", tuning, runs, None)


def stages(first: StagePlan, home: Home) -> list[StagePlan]:
    """The plans of a tuned sweep so far; the last is the one to be at work on."""
    found = [first]
    if _settled(first, home) and (wider := _widened(first, _edges(first, home))):
        found.append(wider)
    if all(_settled(plan, home) for plan in found):
        found.append(_verdict(first, home, found))
    return found


def imagined(first: StagePlan) -> Iterator[StagePlan]:
    """Plans that cost what the stages cost, the widened one at its largest; for the budget, nothing is known yet."""
    yield first
    everywhere = {axis.key: {"low", "high"} - {*axis.bounds} for axis in first.tuning.axes if axis.ordered}
    if wider := _widened(first, everywhere):
        yield wider
    yield _stage(first, "verdict", first.tuning, _fresh(first, {}), first.plan_id, first.tuning.baseline)


def read(home: Home, folder: Path) -> StagePlan:
    """A first plan as it was stored. Raises SweepError, BadFile."""
    content, specs = planned.plan(folder), planned.specs(folder)
    if content is None or content.get("stage") != "tune":
        raise SweepError(f"{folder} is not the first plan of a tuned sweep")
    runs = tuple(_stored_run(row, specs[row["run_id"]]) for row in content["runs"])
    told = content["tune"]
    axes = tuple(Axis(**axis | {name: tuple(axis[name]) for name in ("values", "bounds")}) for axis in told["axes"])
    kept = {part.name: content[part.name] for part in fields(Plan) if part.name != "runs"}
    plain = Plan(**kept, runs=runs)
    found = _stage(plain, "tune", Tuning(**told | {"axes": axes}), runs, None)
    if found.plan_id != content["plan_id"]:
        raise SweepError(f"{folder} was stored by another version of lab; `lab sweep` plans it anew")
    return found


def budget_line(plan: StagePlan) -> str:
    """What a planned stage tries, in words."""
    arms, axes = _arms(plan.runs), plan.tuning.axes
    if plan.stage == "verdict":
        return f"verdict: the best of each arm on {plan.tuning.verdict_seeds} fresh seeds"
    each = len(plan.runs) // len(arms)
    if plan.stage == "widen":
        return f"widen, if the best of an arm lies at an end: at most {each} more runs per arm"
    tried = "; ".join(f"{axis.key} {', '.join(map(word, axis.values))}" for axis in axes)
    seeds = f"{plan.tuning.seeds} tuning seed{'s' if plan.tuning.seeds > 1 else ''}"
    return f"tune: {each} runs per arm ({tried}; {seeds})"


def word(value: Any) -> str:
    """A tried value as a person reads it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _axis(key: str, part: Any) -> Axis:
    values = space.points(key, part)
    if not isinstance(part, Range):
        return Axis(key, tuple(values), False, False)
    if len(values) < FEWEST_POINTS:  # of whole numbers there may be fewer than it asks for
        raise SweepError(f"tune: {key!r}: a range needs {FEWEST_POINTS} points, or none of them is inside")
    return Axis(key, tuple(_rounded(value) for value in values), True, part.log)


def _bounded(axis: Axis, arms: Mapping[str, PlannedRun]) -> Axis:
    """The axis with its `bounds`. Raises SweepError for a range that does not end there and yet cannot be widened."""

    def possible(value: Any, run: PlannedRun) -> bool:
        try:
            changed(run.config, {axis.key: value})
        except ConfigError:
            return False
        return True

    bounds = []
    for side in ("low", "high") if axis.ordered else ():
        if not any(possible(axis.just_past(side), run) for run in arms.values()):
            bounds.append(side)
        elif not any(all(possible(value, run) for run in arms.values()) for value in axis.beyond(side)):
            why = f"cannot be widened at its {side} end, should the best value lie there"
            raise SweepError(f"tune: {axis.key!r} {why}; use log=True, or another end")
    return replace(axis, bounds=tuple(bounds))


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def _stage(
    plan: Plan,
    stage: Stage,
    tuning: Tuning,
    runs: Sequence[PlannedRun],
    first: str | None,
    baseline: str | None = None,
) -> StagePlan:
    """A stage of the sweep that `plan` belongs to. Only a verdict has a baseline: tuning runs are not compared."""
    effect = tuning.smallest_effect if baseline else None
    return StagePlan(
        plan.sweep, plan.scale, plan.question, baseline, effect, plan.match_tolerance, plan.source, plan.overrides,
        tuple(runs), tuple(plan.resolved), stage, tuning, first,
    )  # fmt: skip


def _stored_run(row: Mapping[str, Any], spec: Mapping[str, Any]) -> PlannedRun:
    config = read_config(spec)
    info = DataInfo(**spec["data"])
    return PlannedRun(
        row["arm"], config, info, count.account(config), row["match_residual"], row["tunes"], row["params"]
    )


def _arms(runs: Sequence[PlannedRun]) -> dict[str, PlannedRun]:
    """The first run of every arm, or of every arm that is tuned, by its name."""
    found: dict[str, PlannedRun] = {}
    for run in runs:
        found.setdefault(run.tunes or run.arm, run)
    return found


def _trials(arms: Mapping[str, PlannedRun], tuning: Tuning, points: Sequence[Params]) -> list[PlannedRun]:
    """Every arm at every point on every tuning seed. Raises SweepError where an arm cannot be there."""
    runs, seen = [], set[str]()
    keys = [axis.key for axis in tuning.axes]
    for seed, point, (arm, run) in itertools.product(range(tuning.seeds), points, arms.items()):
        params = dict(zip(keys, point, strict=True))
        name = " ".join([arm, *(f"{key}={word(value)}" for key, value in params.items())])
        start = run.config.seed if run.tunes is None else run.config.seed - TUNING_SEED
        trial = _at(replace(run, arm=name, tunes=arm, params=params), params, start + TUNING_SEED + seed)
        if trial.run_id in seen:
            raise SweepError(f"tune: {name} is the same run as another point of the grid")
        seen.add(trial.run_id)
        runs.append(trial)
    return runs


def _at(run: PlannedRun, params: Mapping[str, Any], seed: int) -> PlannedRun:
    """The run with other settings, at the same cost. Raises SweepError."""
    try:
        config = changed(run.config, {**params, "seed": seed})
    except ConfigError as error:
        raise Impossible(f"tune: {run.arm} cannot be: {error}") from None
    if count.account(config) != run.account:
        raise SweepError(f"tune: {run.arm} costs something else than the arm: only what leaves size and tokens alone")
    return replace(run, config=config)


def _settled(plan: StagePlan, home: Home) -> bool:
    states = stored.run_states(home, [run.run_id for run in plan.runs], slurm.Queue())
    return all(state.state in SETTLED for state in states)


def _losses(plans: Sequence[StagePlan], home: Home) -> dict[str, dict[Params, list[float]]]:
    """{arm: {point: final losses}}; NaN stands for a run that diverged."""
    found: dict[str, dict[Params, list[float]]] = {}
    for run in (run for plan in plans for run in plan.runs):
        loss = (home.run(run.run_id).done() or {}).get("val_loss")
        point = tuple((run.params or {}).values())
        found.setdefault(run.tunes or run.arm, {}).setdefault(point, []).append(
            math.nan if loss is None else float(loss)
        )
    return found


def best(points: Mapping[Params, Sequence[float]]) -> Params:
    """The point of lowest mean loss among those that lost fewest runs; of equal ones the smallest, as of a range whose
    runs all diverged, so that it is widened to that side."""

    def rank(point: Params) -> tuple[bool, int, float]:
        finite = [loss for loss in points[point] if math.isfinite(loss)]
        # An exact sum: the order of the seeds must not decide between equal means, nor another point than the verdict.
        return not finite, len(points[point]) - len(finite), math.fsum(finite) / max(1, len(finite))

    ordered = sorted(points, key=lambda point: [value if isinstance(value, int | float) else 0 for value in point])
    return min(ordered, key=rank)


def _edges(first: StagePlan, home: Home) -> dict[str, set[str]]:
    """Ends of ranges at which the best of some arm lies: {key: {"low", "high"}}."""
    found: dict[str, set[str]] = {}
    for points in _losses([first], home).values():
        for axis, value in zip(first.tuning.axes, best(points), strict=True):
            for side, end in (("low", axis.values[0]), ("high", axis.values[-1])):
                if axis.ordered and value == end and side not in axis.bounds:
                    found.setdefault(axis.key, set()).add(side)
    return found


def _widened(first: StagePlan, sides: Mapping[str, set[str]]) -> StagePlan | None:
    """The points that are new when the grid grows at these ends, for all arms; None if there are none.

    A point that the config refuses for one arm (a warmup longer than its training) is left out for all.
    """
    axes = first.tuning.axes
    more = [[value for side in sorted(sides.get(axis.key, ())) for value in axis.beyond(side)] for axis in axes]
    old = set(itertools.product(*(axis.values for axis in axes)))
    arms, runs = _arms(first.runs), list[PlannedRun]()
    grid = itertools.product(*(dict.fromkeys((*axis.values, *new)) for axis, new in zip(axes, more, strict=True)))
    for point in (point for point in grid if point not in old):
        try:
            runs += _trials(arms, first.tuning, [point])
        except Impossible:
            continue
    return _stage(first, "widen", first.tuning, runs, first.plan_id) if runs else None


def _verdict(first: StagePlan, home: Home, plans: Sequence[StagePlan]) -> StagePlan:
    chosen = {arm: best(points) for arm, points in _losses(plans, home).items()}
    return _stage(first, "verdict", first.tuning, _fresh(first, chosen), first.plan_id, first.tuning.baseline)


def _fresh(first: StagePlan, chosen: Mapping[str, Params]) -> list[PlannedRun]:
    """The arms at their chosen points (else as they are in the first trials) on the sweep's own seeds."""
    keys = [axis.key for axis in first.tuning.axes]
    runs = []
    for seed, (arm, run) in itertools.product(range(first.tuning.verdict_seeds), _arms(first.runs).items()):
        params = dict(zip(keys, chosen.get(arm, ()), strict=False))
        plain = replace(run, arm=arm, tunes=None, params=None)
        runs.append(_at(plain, params, run.config.seed - TUNING_SEED + seed))
    return runs
