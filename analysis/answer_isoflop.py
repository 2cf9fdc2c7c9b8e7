"""Everything `lab isoflop` says: per group of the table the optima, the exponents, the bias, the warnings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from analysis.allocate import allocation_record
from analysis.fit import Fit, FitError, Spec, fit
from analysis.huber import Floats
from analysis.infer import Bootstrap, bootstrap
from analysis.isoflop import (
    FEWEST,
    NARROW,
    OFF_CENTRE,
    Line,
    Optimum,
    Profile,
    by_akima,
    by_parabola,
    by_surface,
    line,
    parabola_bias,
    profiles,
)
from analysis.ladder import Ladder
from analysis.lint import Finding
from analysis.lint_table import Facts, lint_table
from analysis.tables import TableError, column

RESAMPLES = 200
MOST_GROUPS = 50
LOOSE = 0.01  # spread of log C above which rows share no budget


@dataclass(frozen=True)
class Group:
    """One group of rows. `optima` maps a method to one optimum per profile; a table that holds one row per budget is
    read as optima already, under the method `points`."""

    name: dict[str, str]
    ladder: Ladder
    profiles: list[Profile]
    optima: dict[str, list[Optimum | None]]
    lines: dict[str, tuple[Line | None, Line | None]]
    surface: Fit | None
    boot: Bootstrap | None
    biases: list[dict[str, float | None]]
    budgets: tuple[float, ...]
    findings: list[Finding]

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {
            "group": self.name,
            "rows": len(self.ladder.loss),
            "budgets": [self._budget(i) for i in range(len(self.profiles))],
            "exponents": {method: self._exponents(*pair) for method, pair in self.lines.items()} | self._of_surface(),
            "surface": self.surface.values if self.surface else None,
            "targets": [self._target(flops) for flops in self.budgets],
            "parabola_bias": self.biases,
            "lint": [asdict(found) for found in self.findings],
        }

    def _budget(self, i: int) -> dict[str, Any]:
        found = {method: self._point(optima[i]) for method, optima in self.optima.items()}
        return {"flops": self.profiles[i].flops, "sizes": len(self.profiles[i].log_n), **found}

    @staticmethod
    def _point(optimum: Optimum | None) -> dict[str, Any] | None:
        if optimum is None:
            return None
        n, d = float(np.exp(optimum.log_n)), float(np.exp(optimum.log_d))
        return {"n": n, "d": d, "loss": optimum.loss, "interior": optimum.interior, "sd_log_n": optimum.sd}

    @staticmethod
    def _exponents(of_n: Line | None, of_d: Line | None) -> dict[str, Any] | None:
        if of_n is None or of_d is None:
            return None
        record: dict[str, Any] = {"budgets": of_n.points}
        for name, found in (("a", of_n), ("b", of_d)):
            record[name] = found.slope
            known = np.isfinite([found.slope_low, found.slope_high]).all()
            record[f"{name}_ci"] = [found.slope_low, found.slope_high] if known else None
        return record

    def _of_surface(self) -> dict[str, Any]:
        """Exponents of the surface; its line is exact, so that its interval comes from refits."""
        if self.surface is None or self.boot is None:
            return {}
        a, (low, high) = self.surface.values["a"], self.boot.interval("a")
        return {
            "surface": {
                "budgets": len(self.profiles),
                "a": a,
                "a_ci": [low, high],
                "b": 1 - a,
                "b_ci": [1 - high, 1 - low],
            }
        }

    def _target(self, flops: float) -> dict[str, Any]:
        record: dict[str, Any] = {"flops": flops}
        if self.surface and self.boot:
            rules, largest = self.ladder.rules, max(profile.flops for profile in self.profiles)
            record["surface"] = allocation_record(self.surface, self.boot, flops, rules.per_pair, largest)
        for method, (of_n, of_d) in self.lines.items():
            if of_n and of_d:
                n, *n_ci = of_n.at(flops)
                d, *d_ci = of_d.at(flops)
                known = of_n.points > 2
                record[method] = {"n": n, "n_ci": n_ci if known else None, "d": d, "d_ci": d_ci if known else None}
        return record


def isoflop(
    ladder: Ladder,
    by: Sequence[str] = (),
    budgets: Sequence[float] = (),
    embeddings: bool | None = None,
    resamples: int = RESAMPLES,
) -> list[Group]:
    """One `Group` per distinct value of the source columns `by`. Raises TableError where there are no budgets."""
    logs = ladder.logs()
    if not {"n", "c", "d"} <= logs.keys():
        raise TableError("isoFLOP profiles need N and FLOPs (or N and D): name the columns with --n and --flops")
    names = [column(ladder.source, name, "--group") for name in by]
    if not names:
        return [_group({}, ladder, tuple(budgets), embeddings, resamples)]
    keys = ladder.source.select(names).unique(maintain_order=True)
    if len(keys) > MOST_GROUPS:
        raise TableError(f"--group {' --group '.join(names)} makes {len(keys)} groups; {MOST_GROUPS} are the most")
    groups = []
    for key in keys.iter_rows():
        mine = np.all(
            [ladder.source[name].eq_missing(value).to_numpy() for name, value in zip(names, key, strict=True)], axis=0
        )
        groups.append(
            _group(
                dict(zip(names, map(str, key), strict=True)),
                ladder.take(mine.tolist()),
                tuple(budgets),
                embeddings,
                resamples,
            )
        )
    return groups


def _group(
    name: dict[str, str], ladder: Ladder, budgets: tuple[float, ...], embeddings: bool | None, resamples: int
) -> Group:
    logs = ladder.logs()
    found = profiles(logs["c"], logs["n"], logs["d"], ladder.loss)
    log_c = np.log([profile.flops for profile in found])
    if all(len(profile.log_n) == 1 for profile in found) and len(found) > 1:
        return _of_points(name, ladder, found, log_c, budgets)
    if not any(len(profile.log_n) >= 3 for profile in found):
        raise TableError(
            f"no budget{_in(name)} has three sizes of model, which a profile needs; there are {len(found)} budgets of "
            f"{max(len(profile.log_n) for profile in found)} sizes at most"
        )
    thin = [profile.flops for profile in found if len(profile.log_n) < 3]
    found = [profile for profile in found if len(profile.log_n) >= 3]
    log_c = np.log([profile.flops for profile in found])
    try:
        surface = fit(Spec(), logs, ladder.loss)
    except FitError:
        surface = None
    optima: dict[str, list[Optimum | None]] = {
        "parabola": [by_parabola(profile) for profile in found],
        "akima": [by_akima(profile) for profile in found],
    }
    if surface:
        optima["surface"] = [by_surface(profile, surface.values, ladder.rules.per_pair) for profile in found]
    lines = {method: _lines(log_c, points) for method, points in optima.items() if method != "surface"}
    boot = bootstrap(surface, ladder.clusters, resamples) if surface and resamples and max(ladder.clusters) else None
    targets = budgets or (10 * max(profile.flops for profile in found),)
    grids = [(profile.flops, profile.log_n) for profile in found]
    biases = [parabola_bias(surface.values, grids, t, ladder.rules.per_pair) for t in targets] if surface else []
    facts = Facts(ladder, surface, max(budgets, default=None), embeddings)
    findings = [*_budget_findings(found, thin), *_grid_findings(found, optima), *lint_table(facts)]
    return Group(name, ladder, found, optima, lines, surface, boot, biases, targets, findings)


def _of_points(
    name: dict[str, str], ladder: Ladder, found: list[Profile], log_c: Floats, budgets: tuple[float, ...]
) -> Group:
    """A table of optima: weighted by 1/sd^2 where --sd names a column of standard deviations of log N."""
    sd = None
    if "sd" in ladder.rows.columns:
        sd = ladder.rows.sort("c")["sd"].to_numpy()
    points: list[Optimum | None] = [Optimum(p.log_n[0], p.log_d[0], float(np.exp(p.log_loss[0])), True) for p in found]
    log_n, log_d = (np.array([getattr(p, key)[0] for p in found]) for key in ("log_n", "log_d"))
    lines = {"points": (line(log_c, log_n, sd), line(log_c, log_d, sd))}
    reason = "The table has one row per budget: they are taken for the optima."
    note = Finding("optima_given", "note", reason, "Give all runs of each budget to have the optima estimated.")
    targets = budgets or (10 * max(profile.flops for profile in found),)
    return Group(name, ladder, found, {"points": points}, lines, None, None, [], targets, [note])


def _in(name: dict[str, str]) -> str:
    return " in " + ", ".join(f"{key}={value}" for key, value in name.items()) if name else ""


def _lines(log_c: Floats, optima: list[Optimum | None]) -> tuple[Line | None, Line | None]:
    """(N, D) against C over the budgets whose optimum lies inside their grid."""
    good = [(c, o.log_n, o.log_d) for c, o in zip(log_c, optima, strict=True) if o and o.interior]
    if not good:
        return None, None
    c, n, d = np.array(good).T
    return line(c, n), line(c, d)


def _budget_findings(found: list[Profile], thin: list[float]) -> list[Finding]:
    """Warnings about budgets that are none: too few sizes, or FLOPs that differ inside a profile."""
    findings = []
    loose = [profile.flops for profile in found if profile.spread > LOOSE]
    if thin:
        reason = f"{len(thin)} of {len(thin) + len(found)} budgets have fewer than three sizes and are left out."
        findings.append(Finding("budgets_left_out", "note", reason, "Train three or more sizes at each budget."))
    if loose:
        reason = f"FLOPs differ by more than 1 % inside {len(loose)} of {len(found)} profiles ({_some(loose)} FLOPs)."
        remedy = "These rows share no budget: trust the surface (lab fit) more than parabola and spline."
        findings.append(Finding("loose_budgets", "warning", reason, remedy))
    return findings


def _grid_findings(found: list[Profile], optima: dict[str, list[Optimum | None]]) -> list[Finding]:
    """Warnings about the grids of N, each with the budgets it concerns."""
    edge, off, narrow, few, down = list[float](), list[float](), list[float](), list[float](), list[float]()
    for profile, parabola in zip(found, optima["parabola"], strict=True):
        low, high = profile.log_n[0], profile.log_n[-1]
        at_edge = profile.best in (0, len(profile.log_n) - 1)
        best = parabola.log_n if parabola and parabola.interior else profile.log_n[profile.best]
        if at_edge:
            edge.append(profile.flops)
        elif abs(best - (low + high) / 2) > OFF_CENTRE * (high - low) / 2:
            off.append(profile.flops)
        if high - low < np.log(NARROW):
            narrow.append(profile.flops)
        if len(profile.log_n) < FEWEST:
            few.append(profile.flops)
        if parabola is None:
            down.append(profile.flops)
    kinds = (
        ("edge_minimum", edge, "lowest loss at the smallest or largest N", "Extend these grids of N past the minimum."),
        (
            "off_centre",
            off,
            "optimum far from the middle of its grid",
            "Centre the grid; a parabola is biased otherwise.",
        ),
        ("narrow_grid", narrow, "N spans less than a factor 4", "Widen the grid: noise moves a flat minimum far."),
        ("few_points", few, "fewer than 4 sizes", "Add sizes: three points always fit a parabola."),
        ("not_convex", down, "the parabola opens downward", "Add sizes on both sides of the minimum."),
    )
    return [
        Finding(code, "warning", f"{len(hit)} of {len(found)} budgets: {reason} ({_some(hit)} FLOPs).", remedy)
        for code, hit, reason, remedy in kinds
        if hit
    ]


def _some(budgets: list[float]) -> str:
    return ", ".join(f"{flops:.3g}" for flops in budgets[:4]) + (", ..." if len(budgets) > 4 else "")
