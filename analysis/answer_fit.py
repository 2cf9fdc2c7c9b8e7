"""Everything `lab fit` says, as one record: parameters, intervals, flags, sensitivity, extrapolation, lint."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from analysis.allocate import allocation_record
from analysis.extrapolate import delta_sensitivity, rolling
from analysis.fit import EQUATIONS, NEEDS, Fit, FitError, Spec, fit
from analysis.huber import DELTA
from analysis.infer import Bootstrap, Profile, bootstrap, identified, profile
from analysis.ladder import Ladder
from analysis.lint import Finding
from analysis.lint_table import Facts, lint_table

RESAMPLES, RESAMPLES_LINT = 1000, 50
RESAMPLES_REPEATED = 200  # two stages with several starts: a resample costs ten times as much


@dataclass(frozen=True)
class Question:
    """What is asked beside the fit itself: budgets in FLOPs, resamples of the bootstrap (None: the default), its seed,
    whether N counts embeddings (None: not said)."""

    budgets: tuple[float, ...] = ()
    resamples: int | None = None
    seed: int = 0
    embeddings: bool | None = None


@dataclass(frozen=True)
class Answer:
    """A fit and what surrounds it."""

    ladder: Ladder
    fit: Fit
    boot: Bootstrap | None
    profiles: dict[str, Profile]
    identified: dict[str, bool]
    budgets: list[dict[str, Any]]
    deltas: list[dict[str, Any]]
    extrapolation: list[dict[str, Any]]
    findings: list[Finding]

    def record(self) -> dict[str, Any]:
        """For --json. Intervals are [low, high]; an end that the data does not bound is null."""
        values = self.fit.values
        return {
            "equation": EQUATIONS[self.fit.spec.form],
            "form": self.fit.spec.form,
            **values,
            "objective": self.fit.objective,
            "delta": self.fit.spec.delta if np.isfinite(self.fit.spec.delta) else None,
            "fixed": dict(self.fit.spec.fixed),
            "tied": self.fit.spec.tied,
            "ci": {name: ends(*self.boot.interval(name)) for name in self.free} if self.boot else {},
            "ci_profile": {name: ends(found.low, found.high) for name, found in self.profiles.items()},
            "identified": self.identified,
            "at_bound": list(self.fit.at_bound),
            "converged": self.fit.converged,
            "starts": self.fit.starts,
            "starts_at_optimum": self.fit.reached / self.fit.starts,
            "rows": len(self.ladder.loss),
            "left_out": self.ladder.left_out,
            "columns": self.ladder.columns,
            "residual_sd": float(np.std(self.fit.residuals)),
            "bootstrap": None if self.boot is None else self._bootstrap(self.boot),
            "budgets": self.budgets,
            "delta_sensitivity": self.deltas,
            "extrapolation": self.extrapolation,
            "lint": [asdict(finding) for finding in self.findings],
        }

    @property
    def free(self) -> list[str]:
        """Natural parameters that the fit was free to choose, a among them."""
        fixed = self.fit.spec.fixed
        free_a = "a" in self.fit.values and not self.fit.spec.tied and not {"alpha", "beta"} <= fixed.keys()
        return [name for name in self.fit.values if name not in fixed and (name != "a" or free_a)]

    @staticmethod
    def _bootstrap(boot: Bootstrap) -> dict[str, Any]:
        return {"resamples": boot.done + boot.failed, "failed": boot.failed, "clusters": boot.clusters}


def ends(low: float, high: float) -> list[float | None]:
    """[low, high] with None for an end that the data does not bound."""
    return [low if np.isfinite(low) and low > 0 else None, high if np.isfinite(high) else None]


def make_spec(
    ladder: Ladder, form: str | None, tied: bool, fixed: Sequence[str], joint: bool = False, delta: float = DELTA
) -> Spec:
    """What the options of `lab fit` mean. Without a form: all that the columns allow. Raises FitError."""
    known = set(ladder.rows.columns)
    if form is None:
        form = (
            "ndu" if {"n", "d", "u"} <= known else "nd" if {"n", "d"} <= known else next(iter(known & set("ndc")), "nd")
        )
    if form not in NEEDS:
        raise FitError(f"there is no form {form!r}; the forms are {', '.join(NEEDS)}")
    if not delta > 0:
        raise FitError(f"delta must be above 0, not {delta:g}")
    held = {}
    for text in fixed:
        name, _, value = text.partition("=")
        try:
            held[_parameter(name.strip())] = float(value)
        except ValueError:
            raise FitError(f"--fix {text!r}: write NAME=NUMBER, such as alpha=0.34") from None
    return Spec(form, held, tied, delta, joint)


def _parameter(name: str) -> str:
    return {"R_D": "R_D*", "R_N": "R_N*"}.get(name, name)


def answer(ladder: Ladder, spec: Spec, question: Question) -> Answer:
    """Fit and everything around it. Raises FitError where the table cannot carry the fit."""
    logs = ladder.logs()
    lacking = [name.upper() for name in NEEDS[spec.form] if name not in logs]
    if lacking:
        raise FitError(
            f"{EQUATIONS[spec.form]} needs {', '.join(lacking)}: name its column (--n, --d, --flops, --unique)"
        )
    found = fit(spec, logs, ladder.loss)
    clusters = ladder.clusters
    boot = _boot(found, clusters, question)
    profiles = {name: profile(found, name) for name in found.names}
    flags = {name: identified(walked, boot) for name, walked in profiles.items()}
    if spec.joint:
        flags = _in_stages_too(flags, spec, ladder, clusters, question)
    if spec.tied and "alpha" in flags:
        flags["beta"] = flags["alpha"]
    shown = {name: flags[name] for name in found.values if name in flags}
    largest = float(np.exp(logs["c"].max())) if "c" in logs else np.nan
    budgets = [allocation_record(found, boot, c, ladder.rules.per_pair, largest) for c in question.budgets]
    by = logs.get("c", logs[NEEDS[spec.form][0]])
    facts = Facts(
        ladder,
        found,
        max(question.budgets, default=None),
        question.embeddings,
        tuple(name for name, known in shown.items() if not known),
    )
    return Answer(
        ladder,
        found,
        boot,
        profiles,
        shown,
        budgets,
        delta_sensitivity(found, ladder.loss),
        rolling(spec, logs, ladder.loss, by, clusters, question.seed),
        lint_table(facts),
    )


def lint_ladder(ladder: Ladder, budget: float | None, embeddings: bool | None) -> list[Finding]:
    """Findings of a table, with those of its fit where it carries one."""
    try:
        spec = make_spec(ladder, None, False, ())
        lacking = set(NEEDS[spec.form]) - ladder.logs().keys()
        found = None if lacking else fit(spec, ladder.logs(), ladder.loss)
    except FitError as error:
        refused = Finding("no_fit", "error", f"The table carries no fit: {error}.", "See the reason.")
        return [refused, *lint_table(Facts(ladder, None, budget, embeddings))]
    if found is None:
        return lint_table(Facts(ladder, None, budget, embeddings))
    boot = _boot(found, ladder.clusters, Question(resamples=RESAMPLES_LINT))
    loose = [name for name in found.names if not identified(profile(found, name), boot)]
    return lint_table(Facts(ladder, found, budget, embeddings, tuple(loose)))


def _in_stages_too(
    flags: dict[str, bool], spec: Spec, ladder: Ladder, clusters: list[int], question: Question
) -> dict[str, bool]:
    """R_D* and R_N* of a joint fit lean on its surface; they count as identified only if the published way of fitting,
    in two stages, bounds them as well."""
    staged = fit(replace(spec, joint=False), ladder.logs(), ladder.loss)
    if staged.base is None:
        return flags
    boot = _boot(staged, clusters, question)
    return flags | {name: flags[name] and identified(profile(staged, name), boot) for name in staged.model.names}


def _boot(found: Fit, clusters: list[int], question: Question) -> Bootstrap | None:
    resamples = question.resamples
    if resamples is None:
        resamples = RESAMPLES_REPEATED if found.spec.form == "ndu" else RESAMPLES
    if not resamples or not found.names or max(clusters) < 1:
        return None
    return bootstrap(found, clusters, resamples, question.seed)
