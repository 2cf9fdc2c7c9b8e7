"""Learning rates tried per arm: the best of each, and whether the comparison of the best is fair."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from analysis.lint import Finding
from analysis.verdict import Arm

Setting = TypeVar("Setting", float, tuple[Any, ...])  # a learning rate, or several tuned values

GRID = 3  # rates; fewer are no grid, and have no inside


def best(grids: Mapping[str, Mapping[float, Arm]], baseline: str, higher_better: bool) -> list[Arm]:
    """Of each arm the runs at its best learning rate, refused where that proves nothing; {arm: {lr: evidence}}."""
    chosen = {name: best_rate(grid, higher_better) for name, grid in grids.items()}
    return [
        replace(grid[chosen[name]], refused=grid[chosen[name]].refused or _unfair(name, grids, chosen, baseline))
        for name, grid in grids.items()
    ]


def best_rate(grid: Mapping[Setting, Arm], higher_better: bool = False) -> Setting:
    """The rate with the best mean among those that lost fewest runs; of equal ones the first."""

    def rank(rate: Setting) -> tuple[bool, int, float]:
        arm = grid[rate]
        return arm.sample.n == 0, arm.diverged, -arm.sample.mean if higher_better else arm.sample.mean

    return min(grid, key=rank)


def _unfair(
    name: str, grids: Mapping[str, Mapping[float, Arm]], chosen: Mapping[str, float], baseline: str
) -> Finding | None:
    budgets = {arm: len(grids[arm]) for arm in (name, baseline)}
    if budgets[name] != budgets[baseline]:
        return unequal(f"{name} was tried at {budgets[name]} learning rates, {baseline} at {budgets[baseline]}")
    return edge(name, chosen[name], list(grids[name]))


def unequal(what: str) -> Finding:
    """The arms were not tuned with the same effort."""
    return Finding("unequal_tuning", "error", f"unequal tuning budget: {what}", "tune every arm over the same grid")


def edge(name: str, rate: float, grid: list[float], what: str = "LR", bounds: Sequence[str] = ()) -> Finding | None:
    """Whether the best rate, or `what` else was tuned, is the smallest or largest that was tried; not at those of
    `bounds` (low, high), past which nothing is possible."""
    if len(grid) < GRID or min(grid) < rate < max(grid):
        return None
    side = "largest" if rate == max(grid) else "smallest"
    if {"largest": "high", "smallest": "low"}[side] in bounds:
        return None
    return Finding(
        "lr_at_grid_edge",
        "error",
        f"{what} at the edge of its grid: {name} is best at {rate:g}, the {side} of {len(grid)} tried",
        f"try {'larger' if side == 'largest' else 'smaller'} {'learning rates' if what == 'LR' else 'values'}",
    )
