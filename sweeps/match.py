"""Equal budgets: solve one size of an arm so that it costs what the baseline costs."""

from collections.abc import Callable, Iterator

from lmcore import count
from lmcore.config import ConfigError, ModelConfig
from lmcore.resize import RESIZE
from sweeps.spec import Match, SweepError

Cost = Callable[[ModelConfig], int]

AIM = 0.2  # of the tolerance; see Match

COSTS: dict[str, Cost] = {
    "params": count.params,
    "params_non_embedding": count.params_non_embedding,
    "flops": lambda m: count.forward_flops(m, m.context),
    "kv_bytes": lambda m: count.kv_bytes(m, m.context),
}


# The largest number tried of each size.
LARGEST = {"d_ff": 2**24, "d_model": 2**20, "n_layer": 2**12, "n_head": 2**14}
ROUNDED = ("d_ff", "d_model")  # to multiples; see Match


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
    multiple = 2 ** (match.multiple.bit_length() - 1) if match.over in ROUNDED else 1
    while True:
        near = neighbours(arm, baseline, match, multiple)
        best = min(near, key=lambda m: abs(residual(m, baseline, match)))
        if abs(residual(best, baseline, match)) <= AIM * match.tolerance or multiple == 1:
            break
        multiple //= 2
    if abs(residual(best, baseline, match)) <= match.tolerance:
        return best
    raise SweepError(_refusal(arm, near, baseline, match))


def neighbours(arm: ModelConfig, baseline: ModelConfig, match: Match, multiple: int = 1) -> list[ModelConfig]:
    """The largest arm below the target and the smallest that reaches it, of multiples; one, if not both exist."""
    cost, target, resized = COSTS[match.by], COSTS[match.by](baseline), RESIZE[match.over]

    def at(k: int) -> ModelConfig:
        return resized(arm, k * multiple)

    first, last = _first(arm, match, multiple), max(1, LARGEST[match.over] // multiple)
    low, high = first - 1, first  # `low` is below the target, or nothing; doubled until `high` is not
    while cost(at(high)) < target:
        if high == last:
            return [at(last)]
        low, high = high, min(2 * high, last)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(at(middle)) < target else (low, middle)
    return [at(k) for k in (low, high) if k >= first]


def _first(arm: ModelConfig, match: Match, multiple: int) -> int:
    """The smallest k that gives a model: a pattern of layers may need several to have an effect."""
    error: ConfigError | None = None
    for k in range(1, max(arm.n_layer, len(arm.window_pattern)) + 1):
        try:
            RESIZE[match.over](arm, k * multiple)
        except ConfigError as refused:
            error = refused
        else:
            return k
    raise SweepError(f"no size at all can be set: {error}")


def _refusal(arm: ModelConfig, near: list[ModelConfig], baseline: ModelConfig, match: Match) -> str:
    cost, largest = COSTS[match.by], RESIZE[match.over](arm, LARGEST[match.over])
    wanted = f"the baseline's {cost(baseline):,}"
    if cost(near[0]) == cost(near[-1]) == cost(largest):
        return f"{match.over} does not change {match.by} of this arm: {cost(near[0]):,}, not {wanted}"
    options = ", ".join(_options(near, baseline, match))
    return f"no {match.over} brings {match.by} within {match.tolerance:.2%} of {wanted}; nearest: {options}"


def _options(near: list[ModelConfig], baseline: ModelConfig, match: Match) -> Iterator[str]:
    for m in near:
        yield f"{match.over} {getattr(m, match.over)}: {COSTS[match.by](m):,} ({residual(m, baseline, match):+.2%})"
