"""A ladder of runs for a scaling fit: which columns are N, D, C and loss, in plain counts, and which rows count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from analysis.huber import Floats
from analysis.lint import Finding
from analysis.tables import TableError, column, guessed, numbers, unit, where

PER_PAIR = 6.0  # training FLOPs per parameter and token (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)

LABELS = ("run", "seed")
PARTS = ("n", "d", "flops", "loss", "unique", "lr", "width", "sd")
COUNTS = ("n", "d", "flops", "unique", "width")


@dataclass(frozen=True)
class Columns:
    """Which column of a table plays which part, by name; None: absent, or to be guessed for n, d, flops, loss.

    `units` maps a part to the unit its column counts in (M, 1e9, PFdays)."""

    n: str | None = None
    d: str | None = None
    flops: str | None = None
    loss: str | None = None
    unique: str | None = None
    run: str | None = None
    seed: str | None = None
    lr: str | None = None
    width: str | None = None
    sd: str | None = None
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """Which rows to use: an SQL condition, how many of the highest losses to leave out, exact copies left out or not,
    only the row with most tokens of each run or all, the FLOPs per parameter and token that link C, N and D."""

    where: str | None = None
    drop_highest: int = 0
    unique_rows: bool = False
    final: bool = False
    per_pair: float = PER_PAIR


@dataclass(frozen=True)
class Ladder:
    """Usable rows. `rows` has n, d, c, u, loss, lr, width, sd as far as known (plain counts, nats) and run, seed as
    text; `source` holds the same rows as they came; `columns` maps parts to source columns; `left_out` counts rows."""

    rows: pl.DataFrame
    source: pl.DataFrame
    columns: dict[str, str]
    left_out: dict[str, int]
    findings: tuple[Finding, ...]
    rules: Rules

    def logs(self) -> dict[str, Floats]:
        """log N, D, C, U under n, d, c, u, each (rows,), as far as known."""
        return {name: np.log(self.rows[name].to_numpy()) for name in "ndcu" if name in self.rows.columns}

    @property
    def loss(self) -> Floats:
        """Losses in nats (rows,)."""
        return self.rows["loss"].to_numpy()

    @property
    def clusters(self) -> list[int]:
        """A number per row for its run: rows of one run, or exact copies of one row, share it."""
        keys = ["run"] if "run" in self.rows.columns else [c for c in ("n", "d", "c", "u", "loss") if c in self.rows]
        found: list[int] = self.rows.select(pl.struct(keys).rank("dense").cast(pl.Int64) - 1).to_series().to_list()
        return found

    def take(self, keep: "pl.Series | list[bool]") -> "Ladder":
        """The rows where `keep` is true."""
        mask = pl.Series(keep, dtype=pl.Boolean)
        return Ladder(
            self.rows.filter(mask), self.source.filter(mask), self.columns, self.left_out, self.findings, self.rules
        )


def ladder(frame: pl.DataFrame, columns: Columns, rules: Rules | None = None) -> Ladder:
    """Read the parts out of a table, link C, N and D, leave out rows that cannot be used and count them by reason.

    Raises TableError where a column is missing or no row is usable.
    """
    rules = rules or Rules()
    frame = where(frame, rules.where) if rules.where else frame
    parts, names, findings = parts_of(frame, columns)
    linked = _linked(parts, rules.per_pair)
    rows = pl.DataFrame(linked | _labels(frame, columns, names))
    reasons = _reasons(rows)
    left_out = {str(reason): count for reason, count in reasons.drop_nulls().value_counts().iter_rows()}
    usable = reasons.is_null()
    rows, source = rows.filter(usable), frame.filter(usable)
    if rows.is_empty():
        raise TableError(f"no row is usable: {_counted(left_out)}")
    keep = pl.Series([True] * len(rows))
    if rules.unique_rows:
        keep &= source.select(pl.struct(pl.all()).is_first_distinct()).to_series()
    if rules.final:
        keep &= _is_final(rows)
    if rules.drop_highest:
        keep &= rows["loss"].rank("ordinal", descending=True) > rules.drop_highest
        left_out["among the highest losses"] = min(rules.drop_highest, len(rows))
    if not keep.any():
        raise TableError(f"--drop-highest {rules.drop_highest} leaves no row of {len(rows)}")
    return Ladder(rows.filter(keep), source.filter(keep), names, left_out, tuple(findings), rules)


def parts_of(
    frame: pl.DataFrame, columns: Columns, guess: Sequence[str] = ("n", "d", "flops", "loss")
) -> tuple[dict[str, pl.Series], dict[str, str], list[Finding]]:
    """(part: its values as plain counts, part: its column, remarks) of what `columns` names, or `guess` may find.

    Raises TableError where a named column is missing or holds text, and without a loss.
    """
    parts, names, findings = dict[str, pl.Series](), dict[str, str](), list[Finding]()
    for part in PARTS:
        name = getattr(columns, part) or (_guess(frame, part, columns) if part in guess else None)
        if name is None:
            continue
        name = column(frame, name, f"--{part}")
        values = numbers(frame, name, f"--{part}")
        factor, remark = unit(name, values, columns.units.get(part)) if part in COUNTS else (1.0, None)
        if remark:
            remedy = f"If that is wrong, say so: --{part}-unit 1."
            findings.append(Finding("unit_from_name", "note", remark[0].upper() + remark[1:] + ".", remedy))
        parts[part], names[part] = values * factor, name
    if "loss" not in parts:
        raise TableError(f"which column is the loss? Say --loss COLUMN; the columns are: {', '.join(frame.columns)}")
    return parts, names, findings


def _guess(frame: pl.DataFrame, part: str, columns: Columns) -> str | None:
    """By its usual name; not where the user named a sufficient set of columns without it."""
    told = {name for name in ("n", "d", "flops") if getattr(columns, name)}
    if part in ("n", "d", "flops") and (len(told) >= 2 or (part == "d" and told == {"n", "flops"})):
        return None
    found = guessed(frame, part)
    return None if found in {getattr(columns, other) for other in ("n", "d", "flops", "loss")} else found


def _linked(parts: dict[str, pl.Series], per_pair: float) -> dict[str, pl.Series]:
    """The parts with C, N or D from the other two where one is absent: C = per_pair N D."""
    found = {{"flops": "c", "unique": "u"}.get(part, part): values for part, values in parts.items()}
    if "d" not in found and {"n", "c"} <= found.keys():
        found["d"] = found["c"] / (per_pair * found["n"])
    elif "n" not in found and {"d", "c"} <= found.keys():
        found["n"] = found["c"] / (per_pair * found["d"])
    elif "c" not in found and {"n", "d"} <= found.keys():
        found["c"] = per_pair * found["n"] * found["d"]
    return {name: values.alias(name) for name, values in found.items()}


def _labels(frame: pl.DataFrame, columns: Columns, names: dict[str, str]) -> dict[str, pl.Series]:
    """run and seed as text: the columns named, or those that are called so."""
    found = {}
    for part in LABELS:
        own = getattr(columns, part)
        name = column(frame, own, f"--{part}") if own else guessed(frame, part)
        if name is not None:
            names[part] = name
            found[part] = frame[name].cast(pl.String).fill_null("").alias(part)
    return found


def _reasons(rows: pl.DataFrame) -> pl.Series:
    """Why each row cannot be used; null where it can."""
    loss = pl.col("loss")
    checks = [
        (loss.is_null(), "without a loss"),
        (~loss.is_finite(), "diverged (loss not finite)"),
        (loss <= 0, "loss not positive (its logarithm is fitted)"),
    ]
    for name in [c for c in ("n", "d", "c", "u", "lr", "width", "sd") if c in rows.columns]:
        value, title = pl.col(name), name.upper() if name in "ndcu" else name
        checks += [(value.is_null(), f"without {title}"), (~(value.is_finite() & (value > 0)), f"{title} not positive")]
    reasons = [pl.when(wrong).then(pl.lit(reason)) for wrong, reason in checks]
    return rows.select(pl.coalesce(reasons).cast(pl.String).alias("reason")).to_series()


def _is_final(rows: pl.DataFrame) -> pl.Series:
    """Whether each row is the last of its run: most tokens, or most compute."""
    progress = next((name for name in ("d", "c") if name in rows.columns), None)
    if "run" not in rows.columns or progress is None:
        raise TableError("--final needs to know the runs (--run COLUMN) and their tokens or FLOPs")
    last = pl.col(progress).rank("ordinal", descending=True).over("run") == 1
    return rows.select(last.alias("last")).to_series()


def _counted(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in left_out.items())
