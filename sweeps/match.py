"""Equal budgets: solve d_ff so that an arm costs what the baseline costs."""

from collections.abc import Callable

from lmcore import count
from lmcore.config import ModelConfig, replace
from sweeps.spec import Match, SweepError

Cost = Callable[[ModelConfig], int]

AIM = 0.2  # of the tolerance; see Match

COSTS: dict[str, Cost] = {
    "params": count.params,
    "params_non_embedding": count.params_non_embedding,
    "flops": lambda m: count.forward_flops(m, m.context),
}


def residual(arm: ModelConfig, baseline: ModelConfig, match: Match) -> float:
    """(arm - baseline) / baseline in the matched quantity."""
    cost = COSTS[match.by]
    return (cost(arm) - cost(baseline)) / cost(baseline)


def solve(arm: ModelConfig, baseline: ModelConfig, match: Match) -> ModelConfig:
    """`arm` with the d_ff that matches `baseline`. Raises SweepError with the nearest solutions when none is close."""
    multiple = 2 ** (match.multiple.bit_length() - 1)
    while True:
        best = min(_neighbours(arm, baseline, match, multiple), key=lambda m: abs(residual(m, baseline, match)))
        if abs(residual(best, baseline, match)) <= AIM * match.tolerance or multiple == 1:
            break
        multiple //= 2
    if abs(residual(best, baseline, match)) <= match.tolerance:
        return best
    raise SweepError(_refusal(arm, baseline, match))


def _neighbours(arm: ModelConfig, baseline: ModelConfig, match: Match, multiple: int) -> list[ModelConfig]:
    """The widest FFN not above the target and the narrowest above it; cost is linear in d_ff."""
    cost, target = COSTS[match.by], COSTS[match.by](baseline)
    one, two = replace(arm, {"d_ff": 1}), replace(arm, {"d_ff": 2})
    exact = 1 + (target - cost(one)) / (cost(two) - cost(one))
    below = max(multiple, int(exact // multiple) * multiple)
    return [replace(arm, {"d_ff": d_ff}) for d_ff in (below, below + multiple)]


def _refusal(arm: ModelConfig, baseline: ModelConfig, match: Match) -> str:
    options = ", ".join(
        f"d_ff {m.d_ff}: {COSTS[match.by](m):,} ({residual(m, baseline, match):+.2%})"
        for m in _neighbours(arm, baseline, match, 1)
    )
    return (
        f"no d_ff brings {match.by} within {match.tolerance:.2%} of the baseline's "
        f"{COSTS[match.by](baseline):,}; nearest: {options}"
    )
