"""The learning rate that a search recommends: from the curve through its trials, not the luckiest of them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analysis.lr import LrError
from analysis.lr_curve import recommend
from results.home import Home
from results.query import rows

LR = "train.lr"
FEWEST = 5  # finished trials of one combination from which a curve can be told
_TRIALS = """
SELECT t.params, t.outcome, r.val_loss FROM trials t JOIN runs r USING (run_id)
WHERE t.sweep = ? AND t.plan_id = ? AND t.state = 'COMPLETE' ORDER BY t.trial
"""
# Not to have trained at all: what a run that ends above it has not learnt.
_INITIAL = """
SELECT min(e.loss) AS loss FROM evals e JOIN trials t USING (run_id)
WHERE t.sweep = ? AND t.plan_id = ? AND e.step = 0 AND e.split = 'val'
"""


def recommended(home: Home, name: str) -> list[dict[str, Any]]:
    """The optimum of every combination of the other parameters, that of the lowest loss first.

    `name` is sweep/plan. A combination counts if five trials came to their end with it, so a search over further
    ranges recommends nothing. Trials that were pruned say nothing about the loss at the end.
    """
    key = name.split("/")
    initial = rows(home, _INITIAL, key)[0]["loss"]
    found = []
    for others, lrs, losses in _groups(rows(home, _TRIALS, key)):
        if len(lrs) < FEWEST:
            continue
        try:
            fit = recommend(lrs, losses, initial)
        except LrError:
            continue
        stable = [lr for lr, loss in zip(lrs, losses, strict=True) if math.isfinite(loss)]
        enclosed = min(stable) < fit.lr < max(stable)
        found.append({"at": others, "trials": len(lrs), **asdict(fit), "enclosed": enclosed})
    return sorted(found, key=lambda one: float(one["loss"]))


def _groups(trials: Sequence[Mapping[str, Any]]) -> Iterator[tuple[dict[str, Any], list[float], list[float]]]:
    """(other parameters, learning rates, losses with NaN for a divergence) of trials that share the others."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for trial in trials:
        params = json.loads(trial["params"])
        if LR not in params:
            continue
        lr = params.pop(LR)
        diverged = trial["outcome"] != "done" or trial["val_loss"] is None
        loss = math.nan if diverged else trial["val_loss"]
        groups.setdefault(json.dumps(params, sort_keys=True), []).append((lr, loss))
    for others, points in groups.items():
        yield json.loads(others), [lr for lr, _ in points], [loss for _, loss in points]


def sentence(found: Mapping[str, Any]) -> str:
    """What one optimum says, in words."""
    where = "".join(f" {key}={value}" for key, value in found["at"].items())
    line = f"recommended{where} {LR}={found['lr']:.3g}"
    if found["low"] is not None:
        line += f" (95 % interval {found['low']:.3g} to {found['high']:.3g}), from {found['trials']} trials"
    elif found["enclosed"]:
        line += f", from {found['trials']} trials: too few near it for an interval; try more"
    else:
        line += f", from {found['trials']} trials: the best lies at an end of what was tried; widen the range"
    return line + (f"; {found['diverges_from']:.3g} diverged" if found["diverges_from"] else "")
