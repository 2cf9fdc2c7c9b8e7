"""Equal budgets: solve one size of an arm so that it costs what the baseline costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lmcore import count
from lmcore.config import ConfigError, ModelConfig, replace
from sweeps.spec import Match, SweepError

Cost = Callable[[ModelConfig], int]

AIM = 0.2  # of the tolerance; see Match

COSTS: dict[str, Cost] = {
    "params": count.params,
    "params_non_embedding": count.params_non_embedding,
    "flops": lambda m: count.forward_flops(m, m.context),
    "kv_bytes": lambda m: count.kv_bytes(m, m.context),
}


@dataclass(frozen=True)
class Size:
    """A size that a match may solve: the arm with it set to a number, the largest number tried, and whether it is
    rounded to multiples. No cost falls when it grows.
    """

    resized: Callable[[ModelConfig, int], ModelConfig]
    largest: int
    rounded: bool


def _with_d_model(arm: ModelConfig, d_model: int) -> ModelConfig:
    """d_head stays; heads and d_ff keep their proportion to d_model."""
    grown = d_model / arm.d_model
    group = arm.n_head // arm.n_kv_head
    changes = {"d_model": d_model, "d_head": arm.d_head}
    if "d_ff" in arm.model_fields_set:
        changes["d_ff"] = max(1, round(arm.d_ff * grown))
    by_groups = arm.n_kv_head if arm.n_kv_head > 1 else group
    return _with_groups(replace(arm, changes), arm, max(1, round(by_groups * grown)))


def _with_n_head(arm: ModelConfig, groups: int) -> ModelConfig:
    """Number `groups` counts kv heads, each with as many query heads as before; in MQA it counts query heads."""
    return _with_groups(replace(arm, {"d_head": arm.d_head}), arm, groups)


def _with_groups(model: ModelConfig, arm: ModelConfig, groups: int) -> ModelConfig:
    shared = arm.n_head // arm.n_kv_head
    mqa = arm.n_kv_head == 1 and shared > 1
    return replace(model, {"n_head": groups if mqa else groups * shared, "n_kv_head": 1 if mqa else groups})


SIZES: dict[str, Size] = {
    "d_ff": Size(lambda m, n: replace(m, {"d_ff": n}), 2**24, rounded=True),
    "n_layer": Size(lambda m, n: replace(m, {"n_layer": n}), 2**12, rounded=False),
    "d_model": Size(_with_d_model, 2**20, rounded=True),
    "n_head": Size(_with_n_head, 2**14, rounded=False),
}


def residual(arm: ModelConfig, baseline: ModelConfig, match: Match) -> float:
    """(arm - baseline) / baseline in the matched quantity."""
    cost = COSTS[match.by]
    return (cost(arm) - cost(baseline)) / cost(baseline)


def solve(arm: ModelConfig, baseline: ModelConfig, match: Match) -> ModelConfig:
    """`arm` with the free size that matches `baseline`; an arm that costs the same already stays as it is.

    Raises SweepError with the nearest solutions on both sides when none is close.
    """
    if residual(arm, baseline, match) == 0:
        return arm
    multiple = 2 ** (match.multiple.bit_length() - 1) if SIZES[match.over].rounded else 1
    while True:
        near = neighbours(arm, baseline, match, multiple)
        best = min(near, key=lambda m: abs(residual(m, baseline, match)))
        if abs(residual(best, baseline, match)) <= AIM * match.tolerance or multiple == 1:
            break
        multiple //= 2
    if abs(residual(best, baseline, match)) <= match.tolerance:
        return best
    raise SweepError(_refusal(near, baseline, match))


def neighbours(arm: ModelConfig, baseline: ModelConfig, match: Match, multiple: int = 1) -> list[ModelConfig]:
    """The largest arm below the target and the smallest that reaches it, among multiples; one, where the other is not."""
    cost, target, size = COSTS[match.by], COSTS[match.by](baseline), SIZES[match.over]

    def at(k: int) -> ModelConfig:
        return size.resized(arm, k * multiple)

    first, last = _first(arm, size, multiple), max(1, size.largest // multiple)
    low, high = first - 1, first  # `low` is below the target, or nothing; doubled until `high` is not
    while cost(at(high)) < target:
        if high == last:
            return [at(last)]
        low, high = high, min(2 * high, last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(at(middle)) < target else (low, middle)
    return [at(k) for k in (low, high) if k >= first]


def _first(arm: ModelConfig, size: Size, multiple: int) -> int:
    """The smallest k that gives a model: a pattern of layers may need several to have an effect."""
    error: ConfigError | None = None
    for k in range(1, max(arm.n_layer, len(arm.window_pattern)) + 1):
        try:
            size.resized(arm, k * multiple)
        except ConfigError as refused:
            error = refused
        else:
            return k
    raise SweepError(f"no size at all can be set: {error}")


def _refusal(near: list[ModelConfig], baseline: ModelConfig, match: Match) -> str:
    cost, size = COSTS[match.by], SIZES[match.over]
    wanted = f"the baseline's {cost(baseline):,}"
    if cost(near[0]) == cost(near[-1]) == cost(size.resized(near[0], size.largest)):
        return f"{match.over} does not change {match.by} of this arm: {cost(near[0]):,}, not {wanted}"
    options = ", ".join(_options(near, baseline, match))
    return f"no {match.over} brings {match.by} within {match.tolerance:.2%} of {wanted}; nearest: {options}"


def _options(near: list[ModelConfig], baseline: ModelConfig, match: Match) -> Iterator[str]:
    for m in near:
        yield f"{match.over} {getattr(m, match.over)}: {COSTS[match.by](m):,} ({residual(m, baseline, match):+.2%})"
