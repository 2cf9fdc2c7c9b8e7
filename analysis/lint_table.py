"""What can make a scaling fit mislead: one table of rules over the facts of a ladder and of its fit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analysis.fit import Fit
from analysis.ladder import Ladder
from analysis.lint import Finding
from analysis.tables import plain

FEWEST_SIZES, FEWEST_DECADES = 5, 1.5
COLLINEAR = 0.95  # |correlation| of log N and log D from which their exponents can hardly be told apart
OFF = 0.1  # relative spread of C / (6 N D) that rounding does not explain
FARTHEST = 10.0  # times the largest budget of the table
FEWEST_REACHED = 0.5
SAME = 0.01  # relative difference within which two Ns count as one size
ONE_VALUE = {
    "tokenizer": ("tokenizer", "vocab", "vocabsize"),
    "evaluation set": (
        "evalset",
        "valset",
        "evaldata",
        "losssplit",
        "split",
        "dataset",
        "data",
        "datafingerprint",
        "corpus",
    ),
}
SCHEDULE = ("decay", "schedule", "lrschedule", "scheduler")
WARMUP = ("warmupsteps", "warmup", "warmuptokens", "warmupfraction", "trainwarmup")
HORIZON = (
    "totalsteps",
    "maxsteps",
    "trainsteps",
    "scheduletokens",
    "horizon",
    "schedulesteps",
    "plannedtokens",
    "steps",
)
STEP = ("step", "finalstep", "currentstep")


@dataclass(frozen=True)
class Facts:
    """What a rule may look at. `budget` is the compute that somebody wants to know about, in FLOPs; `embeddings` is
    whether N is declared to count embeddings."""

    ladder: Ladder
    fit: Fit | None = None
    budget: float | None = None
    embeddings: bool | None = None
    unidentified: tuple[str, ...] = ()

    def logs(self, name: str) -> Any:
        """Log of n, d, c or u (rows,), or None where the table does not know it."""
        return self.ladder.logs().get(name)

    def named(self, names: tuple[str, ...]) -> pl.Series | None:
        """The source column that goes by one of `names`."""
        for name in names:
            for column in self.ladder.source.columns:
                if plain(column) == name:
                    return self.ladder.source[column]
        return None


Rule = tuple[str, str, Callable[[Facts], str | None], str]


def lint_table(facts: Facts) -> list[Finding]:
    """Findings in the order of `RULES`, after those of reading the table."""
    found = list(facts.ladder.findings)
    for code, level, check, remedy in RULES:
        reason = check(facts)
        if reason:
            found.append(Finding(code, level, reason, remedy))
    return found


def sizes(log_n: Any) -> int:
    """How many distinct sizes, those within 1 % counted as one."""
    return 1 + int((np.diff(np.sort(log_n)) > SAME).sum())


def _left_out(facts: Facts) -> str | None:
    counted = ", ".join(f"{count} {reason}" for reason, count in facts.ladder.left_out.items())
    return f"Rows left out: {counted}." if counted else None


def _few_sizes(facts: Facts) -> str | None:
    log_n = facts.logs("n")
    if log_n is None or (count := sizes(log_n)) >= FEWEST_SIZES:
        return None
    return f"There are {count} model sizes; an exponent and an asymptote are three numbers per axis."


def _narrow(facts: Facts) -> str | None:
    spans = {name.upper(): float(np.ptp(logs)) / np.log(10) for name in "ndc" if (logs := facts.logs(name)) is not None}
    narrow = [f"{name} {span:.2f}" for name, span in spans.items() if span < FEWEST_DECADES]
    return f"The table spans few decades: {', '.join(narrow)} (1.5 is little)." if narrow else None


def _one_seed(facts: Facts) -> str | None:
    rows = facts.ladder.rows
    keys = [name for name in ("n", "d") if name in rows.columns]
    if "seed" in rows.columns and rows.group_by(keys).agg(pl.col("seed").n_unique())["seed"].max() != 1:
        return None
    if rows.group_by(keys).len()["len"].max() != 1:
        return None if "seed" not in rows.columns else "Every configuration has one seed."
    return "Every configuration was run once, so the noise between seeds is not known."


def _checkpoints(facts: Facts) -> str | None:
    rows = facts.ladder.rows
    if "run" not in rows.columns:
        return None
    counts = rows.group_by("run").agg(pl.len(), *[pl.col("d").n_unique().alias("stages") for _ in "d" if "d" in rows])
    several = int((counts["len"] > 1).sum())
    if not several:
        return None
    return f"{several} of {len(counts)} runs give several rows: all but the last of a run were taken before its end."


def _schedule(facts: Facts) -> str | None:
    step, horizon = facts.named(STEP), facts.named(HORIZON)
    if step is not None and horizon is not None and step.dtype == horizon.dtype == pl.Float64:
        early = int((step < 0.98 * horizon).sum())
        if early:
            return f"{early} of {len(step)} rows were taken before the end of their schedule."
    horizon = facts.named(("horizon", "scheduletokens", "plannedtokens"))
    if horizon is not None and horizon.dtype == pl.Float64 and "d" in facts.ladder.rows.columns:
        off = int(((facts.ladder.rows["d"] / horizon).log().abs() > 0.05).sum())
        return f"{off} rows trained for other lengths than their schedule was made for." if off else None
    return None


def _warmup(facts: Facts) -> str | None:
    warmup, total = facts.named(WARMUP), facts.named(("totalsteps", "maxsteps", "trainsteps", "steps"))
    if warmup is None or warmup.dtype != pl.Float64:
        return None
    whole = warmup.max()
    if isinstance(whole, float) and whole <= 1:
        share = warmup
    elif total is not None and total.dtype == pl.Float64:
        share = warmup / total
    else:
        return None
    large = int((share > 0.1).sum())
    return f"Warmup is more than a tenth of training in {large} of {len(share)} rows." if large else None


def _collinear(facts: Facts) -> str | None:
    log_n, log_d = facts.logs("n"), facts.logs("d")
    if log_n is None or log_d is None or len(log_n) < 3 or min(np.ptp(log_n), np.ptp(log_d)) < 1e-9:
        return None
    correlation = float(np.corrcoef(log_n, log_d)[0, 1])
    return f"log N and log D have a correlation of {correlation:+.3f}." if abs(correlation) > COLLINEAR else None


def _embeddings(facts: Facts) -> str | None:
    name = facts.ladder.columns.get("n")
    if name is None or facts.embeddings is not None or "embed" in name.lower():
        return None
    return f"Column {name!r} does not say whether N counts the embeddings."


def _conventions(facts: Facts) -> str | None:
    rows = facts.ladder.rows
    if not {"n", "d", "flops"} <= facts.ladder.columns.keys():
        return None
    ratio = np.log((rows["c"] / (facts.ladder.rules.per_pair * rows["n"] * rows["d"])).to_numpy())
    middle, spread = float(np.exp(np.median(ratio))), float(np.exp(np.quantile(ratio, 0.95) - np.quantile(ratio, 0.05)))
    if abs(middle - 1) < OFF and spread < 1 + OFF:
        return None
    return (
        f"C / ({facts.ladder.rules.per_pair:g} N D) is {middle:.3g} in the middle and spreads by a factor {spread:.3g}."
    )


def _magnitude(facts: Facts) -> str | None:
    rows = facts.ladder.rows
    small = [f"{name.upper()} up to {value:g}" for name in "nd" if name in rows and (value := rows[name].max()) < 1e4]  # type: ignore[operator,str-bytes-safe]
    return f"These are no plain counts: {', '.join(small)}." if small else None


def _repeated(facts: Facts) -> str | None:
    unique, epochs = facts.logs("u"), facts.named(("epochs", "epoch"))
    log_d = facts.logs("d")
    if unique is not None and log_d is not None:
        many = int((log_d > unique + np.log(1.01)).sum())
        fitted = facts.fit is not None and facts.fit.spec.form == "ndu"
        return f"{many} of {len(log_d)} rows see data more than once." if many and not fitted else None
    if epochs is not None and epochs.dtype == pl.Float64 and (many := int((epochs > 1.01).sum())):
        return f"{many} of {len(epochs)} rows see data more than once."
    return None


def _duplicates(facts: Facts) -> str | None:
    copies = int((~facts.ladder.source.select(pl.struct(pl.all()).is_first_distinct()).to_series()).sum())
    return f"{copies} rows are exact copies of others." if copies else None


def _several(kind: str) -> Callable[[Facts], str | None]:
    def check(facts: Facts) -> str | None:
        for alias in ONE_VALUE[kind]:
            column = facts.named((alias,))
            if column is not None and 1 < (count := column.n_unique()) <= 20:
                return f"Losses of {count} different values of {column.name!r} are in one fit."
        return None

    return check


def _bounds(facts: Facts) -> str | None:
    stuck = facts.fit.at_bound if facts.fit else ()
    return f"At the edge of the allowed range: {', '.join(stuck)}." if stuck else None


def _unconverged(facts: Facts) -> str | None:
    fit = facts.fit
    if fit is None or (fit.converged and fit.reached >= FEWEST_REACHED * fit.starts):
        return None
    if not fit.converged:
        return "The optimiser stopped before it reached an optimum."
    return f"Only {fit.reached} of {fit.starts} starts reach the best optimum: there are others nearly as good."


def _far(facts: Facts) -> str | None:
    log_c = facts.logs("c")
    if facts.budget is None or log_c is None:
        return None
    times = facts.budget / float(np.exp(log_c.max()))
    return f"The budget is {times:,.0f} times the largest of the table." if times > FARTHEST else None


def _unidentified(facts: Facts) -> str | None:
    return f"The data does not pin down {', '.join(facts.unidentified)}." if facts.unidentified else None


RULES: tuple[Rule, ...] = (
    ("rows_left_out", "note", _left_out, "Look at these rows; a diverged run is a result, not a gap."),
    ("few_sizes", "warning", _few_sizes, "Add sizes until there are five, or fix an exponent (--fix alpha=0.34)."),
    ("narrow_range", "warning", _narrow, "Add smaller or larger runs; a wider range is worth more than more runs."),
    ("one_seed", "note", _one_seed, "Repeat one or two configurations with three seeds."),
    ("mid_decay", "warning", _checkpoints, "Keep the last row of each run (--final), or train to each horizon."),
    ("schedule_horizon", "warning", _schedule, "Decay to the end of each run; else early stops lose too much."),
    ("long_warmup", "warning", _warmup, "Scale warmup with the run, about N tokens (Porian et al. 2024, section 3.3)."),
    ("collinear", "warning", _collinear, "Train some sizes for other lengths (isoFLOP); or tie exponents (--tie)."),
    ("embeddings_undeclared", "note", _embeddings, "Say --embeddings in or out: it moves exponents of small models."),
    ("mixed_conventions", "warning", _conventions, "Count C in one way for all rows, or leave --flops or --d out."),
    ("units", "warning", _magnitude, "Say the unit, such as --n-unit M or --d-unit B; else A, B and budgets are off."),
    ("data_repeated", "warning", _repeated, "Name the column of unique tokens (--unique), or leave such rows out."),
    ("duplicate_rows", "warning", _duplicates, "Leave copies out (--unique-rows); they are no evidence of their own."),
    ("tokenizers_differ", "error", _several("tokenizer"), "Fit one tokenizer at a time (--where), or bits per byte."),
    ("evaluations_differ", "warning", _several("evaluation set"), "Fit one set at a time: --where \"dataset = 'x'\"."),
    ("at_bound", "warning", _bounds, "The term has vanished or degenerated: use a form without it, or more range."),
    ("not_converged", "warning", _unconverged, "Do not quote these parameters; look at the profiles, fix or tie some."),
    ("not_identified", "warning", _unidentified, "Quote the interval, not the number; fix or tie it, or add range."),
    ("far_extrapolation", "warning", _far, "Look at the errors of the rolling extrapolation before trusting it."),
)  # fmt: skip
