"""What the arms of a tuned sweep were tried at: whether all had the same, and whether each stands at its own best."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from analysis import tuning
from analysis.frames import query
from analysis.lint import Finding
from analysis.lr import LrError
from analysis.lr_curve import recommend
from analysis.select import Plan
from analysis.units import si
from analysis.verdict import Arm

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Point = tuple[Any, ...]  # one value per key
Value = TypeVar("Value")
LR = "train.lr"
NOT_TUNED = object()  # in a point: this key was tuned in the other sweep alone
FEWEST = 5  # learning rates from which a curve can be told
_RUNS = """
SELECT p.tunes AS arm, p.params, p.seed, r.tokens, r.val_loss, coalesce(r.state, 'PLANNED') AS state,
    (SELECT min(e.loss) FROM evals e WHERE e.run_id = p.run_id AND e.step = 0 AND e.split = 'val') AS initial
FROM plan_runs p JOIN plans q USING (sweep, plan_id) LEFT JOIN runs r USING (run_id)
WHERE q.sweep = $sweep AND p.tunes IS NOT NULL
    AND q.tuning = (SELECT tuning FROM plans WHERE sweep = $sweep AND plan_id = $plan_id)
ORDER BY q.stage, p.ord
"""
_HOW = "SELECT plan->'tune' AS tune FROM plans WHERE sweep = $sweep AND plan_id = $plan_id"


@dataclass(frozen=True)
class TuningRuns:
    """`keys` that were tuned, each with whether its values are ordered; {arm: {point: evidence}}, points rising;
    `bounds`: the ends (low, high) of a key past which no arm can go."""

    keys: Mapping[str, bool]
    arms: Mapping[str, Mapping[Point, Arm]]
    tokens: Mapping[str, int] = field(default_factory=dict)  # of all tuning runs of the arm
    initial: Mapping[str, float] = field(default_factory=dict)  # validation loss of the untrained arm
    bounds: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def best(self, arm: str) -> dict[str, Any]:
        """The setting of the arm's best runs."""
        point = zip(self.keys, tuning.best_rate(self.arms[arm]), strict=True)
        return {key: value for key, value in point if value is not NOT_TUNED}

    def refusal(self, arm: str, base: str, configs: Mapping[str, Mapping[str, Any]]) -> Finding | None:
        """Why the tuning makes the arm incomparable with the baseline."""
        if arm not in self.arms or base not in self.arms:
            return tuning.unequal(f"{arm if arm not in self.arms else base} was not tuned, other arms were")
        own, other = _effort(self.arms[arm]), _effort(self.arms[base])
        if own != other:
            runs = sum(own.values()), sum(other.values())
            what = f"at {len(own)} settings in {runs[0]} runs, {base} at {len(other)} in {runs[1]}"
            return tuning.unequal(f"{arm} was tried {what}" + (", not the same" if runs[0] == runs[1] else ""))
        best, config = self.best(arm), configs.get(arm, {})
        if other_than_best := {key: config.get(key) for key, value in best.items() if config.get(key) != value}:
            return tuning.unequal(f"{arm} is at {_words(other_than_best)}, its best was {_words(best)}")
        ranges = [key for key in best if self.keys[key]]
        found = (
            tuning.edge(arm, best[key], self.values(arm, key), _short(key), self.bounds.get(key, ())) for key in ranges
        )
        return next((finding for finding in found if finding), None)

    def over(self, keys: Iterable[str]) -> dict[str, dict[Point, Arm]]:
        """The arms with points over these keys, of which ours are some."""
        return {
            arm: {_over(keys, dict(zip(self.keys, point, strict=True))): one for point, one in points.items()}
            for arm, points in self.arms.items()
        }

    def values(self, arm: str, key: str) -> list[Any]:
        """What was tried of one key, each value once."""
        place = list(self.keys).index(key)
        return list(dict.fromkeys(point[place] for point in self.arms[arm]))

    def sentence(self, arm: str) -> str | None:
        """Where an arm ended up, and where the curve through its learning rates has its minimum."""
        if arm not in self.arms:
            return None
        runs = sum(one.sample.n + one.diverged for one in self.arms[arm].values())
        lost = sum(one.diverged for one in self.arms[arm].values())
        said = f"{arm} is best at {_words(self.best(arm))} of {len(self.arms[arm])} settings"
        costs = [f"{runs} runs", *([f"{lost} diverged"] if lost else []), f"{si(self.tokens.get(arm))} tokens"]
        return f"{said} ({', '.join(costs)})" + "".join(self._minimum(arm))

    def _minimum(self, arm: str) -> Iterator[str]:
        rates = self.values(arm, LR) if list(self.keys) == [LR] else []
        if len(rates) < FEWEST:
            return
        points = [(point[0], loss) for point, one in self.arms[arm].items() for loss in one.values.values()]
        points += [(point[0], math.nan) for point, one in self.arms[arm].items() for _ in range(one.diverged)]
        try:
            found = recommend([lr for lr, _ in points], [loss for _, loss in points], self.initial.get(arm))
        except LrError:
            return
        if found.low is not None and found.high is not None:
            yield f"; the curve through them is lowest at {found.lr:.3g} (95 % {found.low:.3g} to {found.high:.3g})"


def tuning_runs(con: "DuckDBPyConnection", plan: Plan) -> TuningRuns | None:
    """The tuning behind a verdict; None for a plan that none went before."""
    if plan.stage != "verdict":
        return None
    told = query(con, _HOW, plan)["tune"][0]
    axes = {axis["key"]: bool(axis["ordered"]) for axis in json.loads(told)["axes"]}
    bounds = {axis["key"]: axis["bounds"] for axis in json.loads(told)["axes"]}
    arms: dict[str, dict[Point, list[dict[str, Any]]]] = {}
    rows = query(con, _RUNS, plan).to_dicts()
    for row in rows:
        params = json.loads(row["params"])
        row["point"] = tuple(params[key] for key in axes)
    for row in sorted(rows, key=lambda row: _rank(row["point"])):
        arms.setdefault(row["arm"], {}).setdefault(row["point"], []).append(row)
    initial = {row["arm"]: row["initial"] for row in rows if row["initial"] is not None}
    tokens = {arm: sum(row["tokens"] or 0 for row in rows if row["arm"] == arm) for arm in arms}
    found = {arm: {point: _evidence(arm, some) for point, some in points.items()} for arm, points in arms.items()}
    return TuningRuns(axes, found, tokens, initial, bounds)


def joined(tunings: Mapping[str, TuningRuns | None]) -> TuningRuns | None:
    """Those of several sweeps, {prefix: tuning}, whose arms are called prefix:arm; None if none of them was tuned."""
    known = {name: one for name, one in tunings.items() if one}
    if not known:
        return None
    keys = {key: ordered for one in known.values() for key, ordered in one.keys.items()}
    return TuningRuns(
        keys,
        _prefixed({name: one.over(keys) for name, one in known.items()}),
        _prefixed({name: one.tokens for name, one in known.items()}),
        _prefixed({name: one.initial for name, one in known.items()}),
        {key: ends for one in known.values() for key, ends in one.bounds.items()},
    )


def _prefixed(of: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    return {f"{name}:{arm}": value for name, arms in of.items() for arm, value in arms.items()}


def _over(keys: Iterable[str], point: Mapping[str, Any]) -> Point:
    return tuple(point.get(key, NOT_TUNED) for key in keys)


def _rank(point: Point) -> list[float]:
    return [value if isinstance(value, int | float) else 0 for value in point]


def _evidence(arm: str, rows: Sequence[Mapping[str, Any]]) -> Arm:
    ended = [row for row in rows if row["state"] in ("DONE", "DIVERGED")]
    finite = {
        row["seed"]: row["val_loss"]
        for row in ended
        if row["state"] == "DONE" and row["val_loss"] is not None and math.isfinite(row["val_loss"])
    }
    return Arm(arm, finite, diverged=len(ended) - len(finite), missing=len(rows) - len(ended))


def _effort(points: Mapping[Point, Arm]) -> dict[Point, int]:
    """Runs with an outcome, by setting."""
    return {point: one.sample.n + one.diverged for point, one in points.items()}


def _words(params: Mapping[str, Any]) -> str:
    shown = {key: f"{value:g}" if isinstance(value, float) else value for key, value in params.items()}
    return ", ".join(f"{key}={value}" for key, value in shown.items())


def _short(key: str) -> str:
    return "LR" if key == LR else key
