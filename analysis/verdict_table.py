"""Verdicts about anyone's table: one row per run, or one row per arm with a published mean, sd and n."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

import polars as pl

from analysis import tuning
from analysis.lint import Finding
from analysis.stats import NoiseFloor, Sample, pooled_sd, sample
from analysis.tables import column as column_of
from analysis.tables import numbers, plain, read_table
from analysis.verdict import Arm, Rules, Verdict, VerdictError, judge

# Columns that say which step of training a row is from, and which run; looked for where none is named.
# Compared in small letters without punctuation.
STEP_NAMES = (
    "step", "steps", "globalstep", "globalsteps", "trainstep", "trainsteps", "trainingstep", "trainingsteps",
    "finalstep", "currentstep", "iteration", "iterations", "iter", "iters", "update", "updates", "tokens",
    "trainingtokens", "tokensseen", "epoch", "epochs", "checkpoint", "ckpt",
)  # fmt: skip
RUN_NAMES = ("run", "runid", "runname", "seed", "randomseed", "replicate", "replica")


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
    """Verdicts in the order of the table, the spread within all arms together, and rows that belong to no arm."""

    baseline: str
    verdicts: list[Verdict]
    arms: list[Arm]
    pooled: NoiseFloor | None
    left_out: Mapping[str, int]


def judge_table(path: Path, columns: Columns, baseline: str, rules: Rules, final: bool = False) -> TableVerdict:
    """Judge a CSV, TSV, Parquet or JSON-lines file. `final`: of each run take the row of the last step only.

    Raises VerdictError for an arm that is not there, TableError for a column that is not there or holds text in place
    of numbers, TableError and OSError for a file.
    """
    frame = read_table(path)
    known = _found(frame, columns)
    frame = _labelled(_numeric(frame, known), known.arm)
    nameless = frame[known.arm].null_count()
    frame = frame.filter(pl.col(known.arm).is_not_null())
    if final:
        frame = _last_rows(frame, known)
    names = frame[known.arm].unique(maintain_order=True).to_list()
    if baseline not in names:
        raise VerdictError(f"no arm {baseline!r} in column {known.arm!r}; {_near(baseline, names)}")
    if len(names) < 2:
        raise VerdictError(f"column {known.arm!r} holds no arm but {baseline!r}: there is nothing to compare it with")
    parts = {str(key[0]): part for key, part in frame.group_by(known.arm, maintain_order=True)}
    parts = {name: parts[name] for name in names}
    if known.sd:
        arms = [_published(part, name, known) for name, part in _with_cost(parts, known, baseline, rules).items()]
    else:
        arms = _arms(parts, known, baseline, rules)
    left_out = {"without an arm": nameless} if nameless else {}
    return TableVerdict(baseline, judge(arms, baseline, rules), arms, _pooled(arms, parts, known), left_out)


def _numeric(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    """The table with numbers where the columns must hold them; a word that means a divergence is NaN."""
    for option in ("value", "sd", "cost", "lr"):
        name = getattr(columns, option)
        if name is not None:
            frame = frame.with_columns(numbers(frame, name, f"--{option}"))
    return frame


def _pooled(arms: Sequence[Arm], parts: Mapping[str, pl.DataFrame], columns: Columns) -> NoiseFloor | None:
    """The spread within arms; runs of one arm that stopped at different steps are no replicates of each other."""
    good = [arm for arm in arms if not arm.refused]
    if columns.step is None or columns.lr or columns.sd:
        return pooled_sd([arm.sample for arm in good])
    finite = [parts[arm.name].filter(pl.col(columns.value).is_finite()) for arm in good]
    cells = [cell[columns.value].to_list() for part in finite for _, cell in part.group_by(columns.step)]
    return pooled_sd([sample(cell) for cell in cells])


def _labelled(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The arms as text; numbers that name arms without the point that all numbers of a table are read with."""
    arms = frame[column]
    if arms.dtype.is_float():
        return frame.with_columns(arms.map_elements(_plain_number, pl.String))
    texts = arms.cast(pl.String).str.strip_chars()
    return frame.with_columns(pl.when(texts != "").then(texts).alias(column))


def _plain_number(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else str(value)


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:10]
    return f"near: {', '.join(near)}" if near else "it is empty"


def _found(frame: pl.DataFrame, columns: Columns) -> Columns:
    """The columns under their own names, those nobody named looked for. Raises VerdictError, TableError."""
    found: dict[str, Any] = {}
    for option in ("arm", "value", "seed", "run", "step", "lr", "cost", "sd"):
        name = getattr(columns, option)
        if name is not None:
            found[option] = column_of(frame, name, f"--{option}")
    columns = replace(columns, **found)
    if columns.n is not None and columns.n not in frame.columns and not columns.n.isdigit():
        raise VerdictError(f"--n is a column or a number, not {columns.n!r}; {_near(columns.n, frame.columns)}")
    if (columns.sd is None) != (columns.n is None):
        raise VerdictError("--sd-column and --n go together: a mean with its sd and how many runs it is of")
    used = {columns.arm, columns.value, columns.lr, columns.n}
    lower = {plain(name): name for name in frame.columns if name not in used}
    step = columns.step or next((lower[n] for n in STEP_NAMES if n in lower), None)
    run = columns.seed or columns.run or next((lower[n] for n in RUN_NAMES if n in lower), None)
    return replace(columns, step=step, run=run)


def _last_rows(frame: pl.DataFrame, columns: Columns) -> pl.DataFrame:
    if columns.step is None or columns.run is None:
        raise VerdictError("--final needs the column of the step and that of the run or the seed (--step, --run)")
    keys = [columns.arm, columns.run, *([columns.lr] if columns.lr else [])]
    return frame.sort(columns.step, maintain_order=True).group_by(keys, maintain_order=True).last()


def _arms(parts: Mapping[str, pl.DataFrame], columns: Columns, baseline: str, rules: Rules) -> list[Arm]:
    parts = _with_cost(parts, columns, baseline, rules)
    if columns.lr is None:
        return [_arm(part, name, columns) for name, part in parts.items()]
    grids = {
        name: {float(lr[0]): _arm(rows, name, columns) for lr, rows in part.group_by(columns.lr, maintain_order=True)}
        for name, part in parts.items()
    }
    return tuning.best(grids, baseline, rules.higher_better)


def _arm(part: pl.DataFrame, name: str, columns: Columns) -> Arm:
    missing, values = part[columns.value].null_count(), part[columns.value].fill_null(nan).to_list()
    seeds = part[columns.seed].cast(pl.String).to_list() if columns.seed else list(range(len(part)))
    known = {seed: value for seed, value in zip(seeds, values, strict=True) if isfinite(value)}
    refused = _replicates(part, columns)
    diverged = sum(not isfinite(value) for value in values) - missing
    return Arm(name, known, None, columns.seed is not None, diverged, missing, refused)


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
    mean, sd = part[columns.value][0], part[str(columns.sd)][0]
    runs = part[n][0] if n in part.columns else float(n)
    if not (isinstance(runs, float) and runs >= 1 and runs.is_integer()):
        raise VerdictError(f"arm {name!r}: --n must be a whole number of runs, not {runs}")
    if sd is not None and not sd >= 0:
        raise VerdictError(f"arm {name!r}: a standard deviation is not {sd:g}")
    if mean is None or not isfinite(mean):
        return Arm(name, diverged=0 if mean is None else int(runs), missing=0 if mean is not None else int(runs))
    if sd is None or runs < 2:  # a mean without a spread counts as one run
        return Arm(name, published=Sample(1, mean, nan), paired=False)
    return Arm(name, published=Sample(int(runs), mean, sd**2), paired=False)


def _with_cost(
    parts: Mapping[str, pl.DataFrame], columns: Columns, baseline: str, rules: Rules
) -> Mapping[str, pl.DataFrame]:
    """What a run costs beyond the mean of the baseline, at its price, counts against its value."""
    if columns.cost is None:
        return parts
    bare = [name for name, part in parts.items() if not part[columns.cost].is_finite().fill_null(False).all()]
    if bare:
        raise VerdictError(f"--cost {columns.cost!r} is missing in rows of {', '.join(bare)}")
    sign = -1.0 if rules.higher_better else 1.0
    usual = float(parts[baseline][columns.cost].to_numpy().mean())
    extra = sign * columns.price * (pl.col(columns.cost) - usual)
    return {name: part.with_columns(pl.col(columns.value) + extra) for name, part in parts.items()}
