"""Anyone's table of runs, read as it comes: CSV, TSV, JSON, JSON lines, parquet; numbers as people write them."""

import difflib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet")
MISSING = ("", "-", "--", "–", "na", "n/a", "none", "null", "?", "#n/a")
DIVERGED = ("nan", "diverged", "div", "inf", "+inf", "-inf", "infinity", "-infinity", "oom", "failed", "crashed")
SUFFIX_VALUES = {
    "k": 1e3,
    "m": 1e6,
    "mm": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "g": 1e9,
    "t": 1e12,
    "p": 1e15,
    "e": 1e18,
    "z": 1e21,
}
UNIT_WORDS = {"thousands": 1e3, "millions": 1e6, "billions": 1e9, "trillions": 1e12} | {
    "mflops": 1e6, "gflops": 1e9, "tflops": 1e12, "pflops": 1e15, "eflops": 1e18, "zflops": 1e21, "exaflops": 1e18,
    "petaflops": 1e15, "zettaflops": 1e21, "pfdays": 8.64e19, "petaflopdays": 8.64e19, "petaflopsdays": 8.64e19,
}  # fmt: skip
# Names that a column goes by when no option says which one is meant; compared in small letters without punctuation.
ALIASES = {
    "n": ("n", "nparams", "params", "parameters", "numparams", "modelsize", "paramcount", "nparameters", "size"),
    "d": ("d", "tokens", "ntokens", "trainingtokens", "traintokens", "numtokens", "datasize", "tokensseen"),
    "flops": ("c", "flops", "trainflops", "trainingflops", "trainingflop", "flop", "compute", "totalflops"),
    "loss": ("loss", "valloss", "validationloss", "finalloss", "evalloss", "testloss", "l", "trainloss"),
    "run": ("run", "runid", "runname"),
    "seed": ("seed",),
    "lr": ("lr", "learningrate", "eta", "maxlr", "peaklr"),
}


class TableError(ValueError):
    """A table that cannot be read, or not as asked; the message names the nearest column or the first bad value."""


def read_table(path: Path) -> pl.DataFrame:
    """The table with numeric columns as Float64 (training FLOPs exceed 64-bit integers) and the rest as text.

    Raises TableError for what is not a table, OSError for what cannot be opened.
    """
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            frame = pl.read_parquet(path)
        elif kind in (".json", ".jsonl", ".ndjson"):
            frame = _json_frame(path.read_text(encoding="utf-8-sig"))
        else:
            frame = _csv_frame(path.read_bytes())
    except (pl.exceptions.PolarsError, json.JSONDecodeError, UnicodeDecodeError, pl.exceptions.PanicException) as error:
        raise TableError(f"{path} is not a readable table: {str(error).splitlines()[0][:160]}") from None
    if frame.is_empty():
        raise TableError(f"{path} has no rows")
    return frame.select(_typed(frame[name]) for name in frame.columns)


def _csv_frame(content: bytes) -> pl.DataFrame:
    lines = _lines(_decoded(content))
    if len(lines) < 2:
        raise pl.exceptions.NoDataError("it has no rows below its header")
    # A header names columns: the separator is what it has most of.
    separator = max(",;\t|", key=lines[0].count)
    if not lines[0].count(separator) and len(lines[0].split()) > 1 and len(lines[1].split()) == len(lines[0].split()):
        lines, separator = ["\t".join(line.split()) for line in lines], "\t"
    frame = pl.read_csv(
        io.StringIO("\n".join(lines)), separator=separator, infer_schema=False, truncate_ragged_lines=True
    )
    return frame.rename({name: name.strip() for name in frame.columns})


def _decoded(content: bytes) -> str:
    if b"\x00" in content:
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # what spreadsheets write where UTF-8 is not the custom
        return content.decode("cp1252", errors="replace")


def _lines(text: str) -> list[str]:
    """The header and the rows: no empty lines, no comments, but a header that begins with # as numpy writes it."""
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [line for line in lines if not line.startswith("#")]
    above = lines[lines.index(rows[0]) - 1] if rows and lines[0] != rows[0] else ""
    cells = re.split(r"[,;\t|]|\s+", rows[0].strip()) if rows else []
    numeric = all(number is not None for number in parse_numbers(cells))
    if above and numeric and len(re.split(r"[,;\t|]|\s+", above.lstrip("# ").strip())) == len(cells):
        return [above.lstrip("# "), *rows]
    return rows


def _json_frame(text: str) -> pl.DataFrame:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list)]
        value = lists[0] if len(lists) == 1 and lists[0] and isinstance(lists[0][0], dict) else value
    if isinstance(value, dict) and all(isinstance(v, list) for v in value.values()):
        return pl.DataFrame({k: [_text(cell) for cell in v] for k, v in value.items()})
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise pl.exceptions.NoDataError("it is neither a list of records nor columns of equal length")
    names = list(dict.fromkeys(name for row in value for name in row))
    return pl.DataFrame({name: [_text(row.get(name)) for row in value] for name in names})


def _text(cell: Any) -> str | None:
    return None if cell is None else str(cell)


def _typed(column: pl.Series) -> pl.Series:
    """Float64 if every cell that is there is a number; text otherwise."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return column.cast(pl.Float64) if column.dtype.is_numeric() else column.cast(pl.String)
    texts = column.cast(pl.String).str.strip_chars()
    numbers = parse_numbers(texts.to_list())
    readable = [number is not None or _is_missing(text) for number, text in zip(numbers, texts, strict=True)]
    some = any(number is not None for number in numbers)
    return pl.Series(column.name, numbers, dtype=pl.Float64) if some and all(readable) else texts


def _is_missing(text: str | None) -> bool:
    return text is None or text.strip().lower() in MISSING


def parse_numbers(texts: Sequence[str | None]) -> list[float | None]:
    """Numbers as people write them: 1,234,567  1_000  125M  2e9  1.2×10^9, all in %; NaN for what says it diverged."""
    cells = [text.strip() for text in texts if text is not None]
    written = [cell for cell in cells if not _is_missing(cell) and cell.lower() not in DIVERGED]
    if all(cell.endswith("%") for cell in written):
        cells, texts = [c.rstrip("% ") for c in cells], [t and t.strip().rstrip("% ") for t in texts]
    commas = [cell for cell in cells if "," in cell]
    # 1,234 has its commas before groups of three; where any cell breaks that rule they are decimal commas.
    grouped = all(re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?\s*[a-zA-Z]*", cell) for cell in commas)
    return [_number(text, grouped) for text in texts]


def _number(text: str | None, grouped: bool) -> float | None:
    if text is None or _is_missing(text):
        return None
    cell = text.strip().lower()
    if cell in DIVERGED:
        return float("nan")
    cell = cell.replace(",", "") if grouped else (cell.replace(",", ".") if cell.count(",") == 1 else cell)
    cell = re.sub(r"[\s_\u00a0\u202f']", "", cell)
    cell = re.sub(r"[x×*]10(\^|\*\*)?([+-]?\d+)$", r"e\2", cell)
    found = re.fullmatch(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([a-z]*)", cell)
    if not found or (found[2] and found[2] not in SUFFIX_VALUES):
        return None
    return float(found[1]) * SUFFIX_VALUES.get(found[2], 1.0)


def column(frame: pl.DataFrame, name: str, option: str = "") -> str:
    """The column called `name`, give or take capitals and spaces. Raises TableError naming the nearest."""
    if name in frame.columns:
        return name
    same = [c for c in frame.columns if plain(c) == plain(name)]
    if len(same) == 1:
        return same[0]
    near = difflib.get_close_matches(plain(name), [plain(c) for c in frame.columns], n=1, cutoff=0.5)
    guess = next((c for c in frame.columns if near and plain(c) == near[0]), None)
    hint = f"; did you mean {guess!r}?" if guess else ""
    asked = f" ({option})" if option else ""
    raise TableError(f"no column {name!r}{asked}{hint}; the columns are {', '.join(frame.columns)}".replace("?;", "?"))


def plain(name: str) -> str:
    """`name` in small letters, without punctuation and without a unit in brackets."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"[(\[].*?[)\]]", "", name.lower()))


def guessed(frame: pl.DataFrame, role: str) -> str | None:
    """The column that a role of `ALIASES` usually goes by, numbers before text, or None."""
    for kind in (pl.Float64, pl.String):
        for alias in ALIASES[role]:
            for name in frame.columns:
                short = re.sub(rf"({'|'.join(UNIT_WORDS)}|m|b)$", "", plain(name))
                if alias in (plain(name), short) and frame[name].dtype == kind:
                    return name
    return None


def numbers(frame: pl.DataFrame, name: str, option: str) -> pl.Series:
    """A column as Float64. Raises TableError for text in it, naming the first."""
    found = frame[column(frame, name, option)]
    if found.dtype == pl.Float64:
        return found
    parsed = parse_numbers(found.to_list())
    bad = [text for text, number in zip(found, parsed, strict=True) if number is None and not _is_missing(text)]
    shown = f"text such as {bad[0]!r}" if bad else "nothing but missing values"
    raise TableError(
        f"column {found.name!r} ({option}) must hold numbers and has {shown} ({len(bad)} of {len(found)} rows)"
    )


def unit(name: str, values: pl.Series, given: str | None) -> tuple[float, str | None]:
    """(factor, remark) that turn a column into plain counts: as `given` (M, 1e6, millions, PFdays), or as the column's
    own name says (params_M, "N (billions)", tokens_B) where its values are small enough to mean it."""
    if given:
        return parse_unit(given), None
    factor = _unit_in_name(name)
    largest = values.filter(values.is_finite()).max() if len(values) else None
    if factor is None or not isinstance(largest, float) or largest * factor > 1e30 or largest >= 1e6 > 1e3 * factor:
        return 1.0, None
    if largest >= 1e7:  # a column of plain counts that merely ends in m or b
        return 1.0, None
    return factor, f"column {name!r} is read in units of {factor:g}, as its name says"


def _unit_in_name(name: str) -> float | None:
    inside = re.search(r"[(\[]\s*(?:in\s+)?([a-zA-Z\- ]+)\s*[)\]]\s*$", name)
    last = inside[1] if inside else (re.split(r"[\s_\-]", name.strip()) or [""])[-1]
    word = re.sub(r"[^a-z]", "", last.lower())
    if word in UNIT_WORDS:
        return UNIT_WORDS[word]
    if word.rstrip("s") in ("million", "billion", "trillion", "thousand"):
        return UNIT_WORDS[word.rstrip("s") + "s"]
    if len(name) > len(last) and word in ("k", "m", "b", "t"):
        return SUFFIX_VALUES[word]
    joined = re.sub(r"[^a-z]", "", "".join(re.split(r"[\s_\-]", name.lower())[-2:]))
    return UNIT_WORDS.get(joined)


def parse_unit(text: str) -> float:
    """M, B, 1e6, millions, EFLOPs, PFdays: the number it stands for. Raises TableError."""
    word = re.sub(r"[^a-z]", "", text.lower())
    known = {**UNIT_WORDS, **{w.rstrip("s"): v for w, v in UNIT_WORDS.items()}, **SUFFIX_VALUES}
    if re.fullmatch(r"[a-zA-Z\- ]+", text.strip()) and word in known:
        return known[word]
    value = _number(text, grouped=True)
    if value is None or not value > 0 or value == float("inf"):
        raise TableError(f"{text!r} is not a unit; write a number such as 1e6, or K, M, B, T, EFLOPs, PFdays")
    return value


def where(frame: pl.DataFrame, condition: str) -> pl.DataFrame:
    """The rows that an SQL condition keeps, such as 'loss < 5 and "Model Size" > 1e8'. Raises TableError."""
    try:
        kept = frame.filter(pl.sql_expr(condition))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        message = str(error).splitlines()[0][:160]
        quoted = 'columns with spaces need double quotes: "Training FLOP" < 1e20'
        raise TableError(
            f"--where {condition!r} cannot be read: {message} ({quoted}; columns: {', '.join(frame.columns)})"
        ) from None
    if kept.is_empty():
        raise TableError(f"--where {condition!r} keeps no row of {len(frame)}")
    return kept
