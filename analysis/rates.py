"""Arms that differ in nothing but the learning rate, put together."""

from dataclasses import dataclass

import polars as pl

from analysis.frames import configs_of, final_losses
from analysis.tuning import best_rate
from analysis.tuning_runs import TuningRuns
from analysis.validity import families


@dataclass(frozen=True)
class Rate:
    """One arm of a grid: its rate, the final losses of its finished runs, how many diverged."""

    arm: str
    lr: float
    losses: list[float]
    diverged: int


@dataclass(frozen=True)
class Rates:
    """A grid of learning rates, in rising order; drawn in the colour of `arm`, its best."""

    name: str
    arm: str
    points: list[Rate]


def rate_grids(runs: pl.DataFrame) -> list[Rates]:
    """Every set of two or more arms that differ only in the learning rate, in plan order."""
    grids = {tuple(grid.values()): grid for grid in families(configs_of(runs)).values() if len(grid) > 1}
    return [_grid(grid, runs) for grid in grids.values()]


def tuned_rates(tuned: TuningRuns, arm: str, key: str) -> Rates:
    """What tuning tried of one key, at each value the best runs over whatever the other keys were."""
    place, rates = list(tuned.keys).index(key), []
    for value in sorted(tuned.values(arm, key)):
        here = {point: one for point, one in tuned.arms[arm].items() if point[place] == value}
        one = here[best_rate(here)]
        rates.append(Rate(arm, float(value), list(one.values.values()), one.diverged))
    return Rates(arm, arm, rates)


def _grid(grid: dict[float, str], runs: pl.DataFrame) -> Rates:
    points = [
        Rate(
            arm,
            lr,
            list(final_losses(runs, arm).values()),
            len(runs.filter((pl.col("arm") == arm) & (pl.col("outcome") == "diverged"))),
        )
        for lr, arm in sorted(grid.items())
    ]
    known = [point for point in points if point.losses]
    best = min(known, key=lambda point: sum(point.losses) / len(point.losses)) if known else points[0]
    return Rates(_name(list(grid.values())), best.arm, points)


def _name(arms: list[str]) -> str:
    """What the names of the arms begin with, where they agree in that; else the first."""
    start = arms[0]
    for arm in arms[1:]:
        while not arm.startswith(start):
            start = start[:-1]
    words = start.rstrip(" -_=0.").removesuffix(" lr").removesuffix("lr").rstrip(" -_=")
    return words or arms[0]
