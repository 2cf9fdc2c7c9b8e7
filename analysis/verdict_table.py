"""Verdicts about anyone's table: one row per run, or one row per arm with a published mean, sd and n."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path

import polars as pl

from analysis import tuning
from analysis.lint import Finding
from analysis.stats import NoiseFloor, Sample, pooled_sd
from analysis.tables import read_table
from analysis.verdict import Arm, Rules, Verdict, VerdictError, judge

# Columns that say which step of training a row is from, and which run; looked for where none is named.
STEP_NAMES = ("step", "steps", "iteration", "iterations", "iter", "tokens", "epoch", "checkpoint")
RUN_NAMES = ("run", "run_id", "seed")


@dataclass(frozen=True)
class Columns:
    """Which column of the table is what. `price` is what one unit of `cost` is worth, in the unit of the values."""

    arm: str
    value: str
    seed: str | None = None
    run: str | None = None
    step: str | None = None
    lr: str | None = None
    cost: str | None = None
    price: float = 0.0
    sd: str | None = None
    n: str | None = None  # a column, or the number itself


@dataclass(frozen=True)
class TableVerdict:
    """Verdicts in the order of the table, what was noticed, and the spread within all arms together."""

    baseline: str
    verdicts: list[Verdict]
    arms: list[Arm]
    pooled: NoiseFloor | None


def judge_table(path: Path, columns: Columns, baseline: str, rules: Rules, final: bool = False) -> TableVerdict:
    """Judge a CSV, TSV, Parquet or JSON-lines file. `final`: of each run take the row of the last step only.

    Raises VerdictError for a column or an arm that is not there, TableError and OSError for a file.
    """
    frame = read_table(path)
    known = _found(frame, columns)
    frame = _labelled(frame, known.arm)
    if final:
        frame = _last_rows(frame, known)
    names = frame[known.arm].unique(maintain_order=True).drop_nulls().to_list()
    if baseline not in names:
        raise VerdictError(f"no arm {baseline!r} in column {known.arm!r}; {_near(baseline, names)}")
    parts = {str(key[0]): part for key, part in frame.group_by(known.arm, maintain_order=True)}
    parts = {name: parts[name] for name in names}
    arms = [_published(parts[n], n, known) for n in names] if known.sd else _arms(parts, known, baseline, rules)
    arms = _with_cost(arms, parts, known, baseline, rules)
    return TableVerdict(
        baseline, judge(arms, baseline, rules), arms, pooled_sd([arm.sample for arm in arms if not arm.refused])
    )


def _labelled(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The arms as text; numbers that name arms without the point that all numbers of a table are read with."""
    arms = frame[column]
    if arms.dtype.is_float() and arms.drop_nulls().is_finite().all() and (arms.drop_nulls() % 1 == 0).all():
        arms = arms.cast(pl.Int64)
    return frame.with_columns(arms.cast(pl.String))


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:10]
    return f"near: {', '.join(near)}" if near else "it is empty"


def _found(frame: pl.DataFrame, columns: Columns) -> Columns:
    """The columns checked, those nobody named looked for. Raises VerdictError."""
    for option in ("arm", "value", "seed", "run", "step", "lr", "cost", "sd"):
        name = getattr(columns, option)
        if name is not None and name not in frame.columns:
            raise VerdictError(f"no column {name!r} (--{option}); {_near(name, frame.columns)}")
    if columns.n is not None and columns.n not in frame.columns and not columns.n.isdigit():
        raise VerdictError(f"--n is a column or a number, not {columns.n!r}; {_near(columns.n, frame.columns)}")
    if (columns.sd is None) != (columns.n is None):
        raise VerdictError("--sd-column and --n go together: a mean with its sd and how many runs it is of")
    used = {columns.arm, columns.value}
    lower = {name.lower(): name for name in frame.columns if name not in used}
    step = columns.step or next((lower[n] for n in STEP_NAMES if n in lower), None)
    run = columns.seed or columns.run or next((lower[n] for n in RUN_NAMES if n in lower), None)
    return replace(columns, step=step, run=run)


def _last_rows(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    if columns.step is None or columns.run is None:
        raise VerdictError("--final needs the column of the step and that of the run or the seed (--step, --run)")
    keys = [columns.arm, columns.run, *([columns.lr] if columns.lr else [])]
    return frame.sort(columns.step, maintain_order=True).group_by(keys, maintain_order=True).last()


def _arms(parts: Mapping[str, pl.DataFrame], columns: Columns, baseline: str, rules: Rules) -> list[Arm]:
    if columns.lr is None:
        return [_arm(part, name, columns) for name, part in parts.items()]
    grids = {
        name: {float(lr[0]): _arm(rows, name, columns) for lr, rows in part.group_by(columns.lr, maintain_order=True)}
        for name, part in parts.items()
    }
    return tuning.best(grids, baseline, rules.higher_better)


def _arm(part: pl.DataFrame, name: str, columns: Columns) -> Arm:
    values, missing = _numbers(part[columns.value])
    seeds = part[columns.seed].cast(pl.String).to_list() if columns.seed else list(range(len(part)))
    known = {seed: value for seed, value in zip(seeds, values, strict=True) if isfinite(value)}
    refused = _replicates(part, columns)
    diverged = sum(not isfinite(value) for value in values) - missing
    return Arm(name, known, None, columns.seed is not None, diverged, missing, refused)


def _numbers(column: pl.Series) -> tuple[list[float], int]:
    """(values, how many cells are empty); a word in place of a number counts as a value that is not finite."""
    empty = column.is_null() if column.dtype != pl.String else column.is_null() | (column.str.strip_chars() == "")
    values = column.cast(pl.Float64, strict=False).fill_null(nan).to_list()
    return values, int(empty.sum())


def _replicates(part: pl.DataFrame, columns: Columns) -> Finding | None:
    """Several rows of one run are no replicates, whatever step they are from."""
    unit = part[columns.run] if columns.run else None
    steps = part[columns.step].n_unique() if columns.step else 1
    if unit is not None and unit.n_unique() == len(part):
        return None
    if steps > 1 and (unit is None or _several_steps(part, columns)):
        known = f"several {columns.step} of one {columns.run}"
        unknown = f"{steps} values of {columns.step}, and no column names the run"
        return Finding(
            "intermediate_checkpoints",
            "error",
            f"intermediate checkpoints used as replicates: {unknown if unit is None else known}",
            "take the last row of each run (--final, with --run or --seed), and replicate by seed",
        )
    if unit is None:
        return None
    return Finding(
        "repeated_rows",
        "error",
        f"{len(part)} rows for {unit.n_unique()} values of {columns.run!r}: several rows of one run are no replicates",
        "keep one row per run",
    )


def _several_steps(part: pl.DataFrame, columns: Columns) -> bool:
    counts = part.group_by(columns.run).agg(pl.col(str(columns.step)).n_unique().alias("n"))
    return bool((counts["n"] > 1).any())


def _published(part: pl.DataFrame, name: str, columns: Columns) -> Arm:
    if len(part) > 1:
        raise VerdictError(f"arm {name!r} has {len(part)} rows; with --sd-column a row is an arm")
    n = str(columns.n)
    mean, sd = (_numbers(part[column])[0][0] for column in (columns.value, str(columns.sd)))
    runs = int(part[n][0]) if n in part.columns else int(n)
    if not isfinite(mean):
        return Arm(name, diverged=runs)
    return Arm(name, published=Sample(runs, mean, sd**2 if runs > 1 else nan), paired=False)


def _with_cost(
    arms: Sequence[Arm], parts: Mapping[str, pl.DataFrame], columns: Columns, baseline: str, rules: Rules
) -> list[Arm]:
    """What an arm costs beyond the baseline, at its price, counts against it."""
    if columns.cost is None:
        return list(arms)
    means = {name: float(part[columns.cost].cast(pl.Float64).to_numpy().mean()) for name, part in parts.items()}
    sign = -1.0 if rules.higher_better else 1.0
    return [replace(arm, offset=sign * columns.price * (means[arm.name] - means[baseline])) for arm in arms]
