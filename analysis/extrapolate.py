"""Does the fit hold where it was not made? Rolling extrapolation, and the same fit under other Huber widths."""

from dataclasses import replace
from typing import Any

import numpy as np

from analysis.fit import Fit, FitError, Spec, fit, predict
from analysis.huber import Floats
from analysis.infer import LEVEL, bootstrap

CUTS = (0.5, 0.6, 0.7, 0.8, 0.9)  # shares of the rows, by compute
DRAWS, DRAWS_REPEATED = 100, 30  # bootstrap fits behind each prediction interval
DELTAS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, float("inf"))
FEW_STARTS = 4


def rolling(
    spec: Spec, logs: dict[str, Floats], loss: Floats, log_c: Floats, clusters: list[int], seed: int = 0
) -> list[dict[str, Any]]:
    """For each cut in compute: fit the rows below it, predict those above.

    Errors are (predicted - observed) / observed in per cent; coverage is the share of observed losses inside the 95 %
    prediction interval (parameters from a cluster bootstrap times residuals of the rows below). Cuts that leave too
    few rows to fit are left out.
    """
    records, seen = [], set()
    for share in CUTS:
        cut = float(np.quantile(log_c, share))
        below = log_c <= cut + 1e-9
        if below.all() or not below.any() or (size := int(below.sum())) in seen:
            continue
        seen.add(size)
        try:
            records.append(_at(spec, logs, loss, log_c, np.asarray(clusters), below, seed))
        except FitError:
            continue
    return records


def _at(
    spec: Spec, logs: dict[str, Floats], loss: Floats, log_c: Floats, clusters: Any, below: Any, seed: int
) -> dict[str, Any]:
    under, over = ({name: values[rows] for name, values in logs.items()} for rows in (below, ~below))
    found = fit(spec, under, loss[below], FEW_STARTS)
    predicted, observed = predict(spec.form, found.values, over), loss[~below]
    low, high = _interval(found, np.unique(clusters[below], return_inverse=True)[1], over, seed)
    errors = 100 * (predicted / observed - 1)
    return {
        "cut_flops": float(np.exp(log_c[below].max())),
        "rows_below": int(below.sum()),
        "rows_above": int((~below).sum()),
        "times_largest": float(np.exp(log_c[~below].max() - log_c[below].max())),
        "mean_error_pct": float(errors.mean()),
        "mean_abs_error_pct": float(np.abs(errors).mean()),
        "worst_error_pct": float(errors[np.argmax(np.abs(errors))]),
        "coverage": float(((observed >= low) & (observed <= high)).mean()),
    }


def _interval(found: Fit, clusters: Any, logs: dict[str, Floats], seed: int) -> tuple[Floats, Floats]:
    boot = bootstrap(found, clusters, DRAWS_REPEATED if found.spec.form == "ndu" else DRAWS, seed)
    if not boot.done:
        raise FitError("no resample could be fitted")
    draws = [{name: float(values[i]) for name, values in boot.draws.items()} for i in range(boot.done)]
    lines = np.log([predict(found.spec.form, values, logs) for values in draws])
    generator = np.random.default_rng(seed)
    # Residuals shrink by the parameters spent on them.
    rows, free = len(found.residuals), len(found.names)
    noise = generator.choice(found.residuals, size=lines.shape) * np.sqrt(rows / max(rows - free, 1))
    low, high = np.quantile(lines - noise, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.exp(low), np.exp(high)


def delta_sensitivity(found: Fit, loss: Floats) -> list[dict[str, Any]]:
    """The same fit under each of `DELTAS`; infinite is least squares of log loss, given as null."""
    records = []
    for delta in DELTAS:
        other = fit(replace(found.spec, delta=delta), dict(found.model.logs), loss, FEW_STARTS)
        shown = delta if np.isfinite(delta) else None
        records.append({"delta": shown, **other.values, "objective": other.objective})
    return records
