"""New whole lines of many CSV files into the database, parsed in bulk."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from results.collect import Row, RowFile, folder_of, printable
from results.files import open_regular
from results.rows import COLUMNS, RowKind, header

BAD_LINE = "bad line"
TORN_TAIL = "torn tail"
BAD_HEADER = "unexpected header"

PIECE_BYTES = 32 << 20
_IDENTITY_BYTES = 256
_SHOWN_CHARS = 200
_POLARS_TYPES: dict[type, Any] = {int: pl.Int64, float: pl.Float64, str: pl.String}


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one file, from `offset` bytes on."""

    file: RowFile
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    @property
    def identity(self) -> str:
        """What `identity_at` says of the file at the end of this chunk."""
        return _identity(self.file, self.data)


def read_new(file: RowFile, offset: int) -> Iterator[Chunk | Row]:
    """What is new in `file` after `offset` bytes: its whole lines, in pieces, and a row of quarantine for the rest.

    A torn tail is not a row, and is named once nobody writes.
    """
    with open_regular(file.path) as handle:
        handle.seek(offset)
        if offset == 0:
            line = handle.readline(PIECE_BYTES)
            if line != header(file.kind):
                whole = line.endswith(b"\n")
                yield from [quarantine(file.name, 0, BAD_HEADER, _decode(line[:-1]))] if whole else _tail(file, 0, line)
                return
            offset = len(line)
        while data := handle.read(PIECE_BYTES):
            whole_bytes = data.rfind(b"\n") + 1
            if not whole_bytes:
                yield from _tail(file, offset, data)
                return
            yield Chunk(file, offset, data[:whole_bytes])
            offset += whole_bytes
            handle.seek(offset)


def _tail(file: RowFile, offset: int, data: bytes) -> Iterator[Row]:
    if len(data) == PIECE_BYTES:
        yield quarantine(file.name, offset, f"no end of a line in {PIECE_BYTES} bytes", _decode(data[:_SHOWN_CHARS]))
    elif data and file.ended:
        yield quarantine(file.name, offset, TORN_TAIL, _decode(data))


def identity_at(file: RowFile, offset: int) -> str | None:
    """A hash of the owner of `file` and of its last line before `offset`, which stays while a file only grows.

    None where the file is shorter or gone.
    """
    begin = max(0, offset - _IDENTITY_BYTES)
    try:
        with open_regular(file.path) as handle:
            handle.seek(begin)
            data = handle.read(offset - begin)
    except OSError:
        return None
    return _identity(file, data) if len(data) == offset - begin else None


def _identity(file: RowFile, data: bytes) -> str:
    last_line = data[-_IDENTITY_BYTES:-1].rpartition(b"\n")[2]
    return hashlib.blake2b(file.owner.encode(errors="replace") + b"\0" + last_line, digest_size=12).hexdigest()


def batches(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks in groups of bounded size, because parsing takes a multiple of it in memory."""
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.data)
        if size >= PIECE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def parse(batch: list[Chunk]) -> tuple[pl.DataFrame, list[Row]]:
    """(good rows in the order of their table, lines to quarantine) of chunks of one kind."""
    data = b"".join(chunk.data for chunk in batch)
    rows = _parse_if_all_good(data, batch[0].file.kind)
    if rows is None:
        return _parse_line_by_line(data, batch)
    return pl.concat([_origin(batch), rows], how="horizontal"), []


def _parse_if_all_good(data: bytes, kind: RowKind) -> pl.DataFrame | None:
    """The rows, or None when any line is not surely one: several times faster than looking at each line."""
    if b" " in data or b"\r" in data:  # read_csv forgives what looking at each line does not
        return None
    schema = {name: _POLARS_TYPES[type_] for name, type_ in COLUMNS[kind].items()}
    try:
        rows = pl.read_csv(data, has_header=False, schema=schema, quote_char=None)
    except pl.exceptions.PolarsError:
        return None
    whole = len(rows) == data.count(b"\n") and not any(rows.null_count().row(0))
    return rows if whole else None


def _parse_line_by_line(data: bytes, batch: list[Chunk]) -> tuple[pl.DataFrame, list[Row]]:
    columns = COLUMNS[batch[0].file.kind]
    # Latin-1 maps each byte to one character: no byte is refused and a character offset is a byte offset.
    lines = pl.Series("line", [_decode(data)[:-1]]).str.split("\n").explode()
    # The last field takes any surplus commas along, and then is no number.
    fields = lines.str.splitn(",", len(columns)).struct.rename_fields(list(columns)).struct.unnest()
    typed = fields.select(_typed(name, type_) for name, type_ in columns.items())
    frame = pl.concat([_origin(batch), typed], how="horizontal")
    good = pl.all_horizontal(pl.col(name).is_not_null() for name in columns)
    is_bad = frame.select(~good).to_series()
    bad = _bad_lines(batch, lines, is_bad) if is_bad.any() else []
    return frame.filter(~is_bad), bad


def quarantine(path: str, byte_offset: int | None, reason: str, content: str | None) -> Row:
    """A row of the table of that name."""
    shown = None if content is None else printable(content[:_SHOWN_CHARS])
    place = {"folder": folder_of(path), "path": path, "byte_offset": byte_offset}
    return {**place, "reason": printable(reason[:_SHOWN_CHARS]), "content": shown}


def frame_of(rows: list[Row], types: Mapping[str, str]) -> pl.DataFrame:
    """Rows as a frame with the columns of a table, given the DuckDB type of each; absent values are NULL."""
    schema = {name: _TABLE_TYPES.get(type_, pl.String) for name, type_ in types.items()}
    return pl.DataFrame({name: [row.get(name) for row in rows] for name in schema}, schema=schema)


_TABLE_TYPES: dict[str, Any] = {
    "BIGINT": pl.Int64,
    "INTEGER": pl.Int32,
    "DOUBLE": pl.Float64,
    "BOOLEAN": pl.Boolean,
}


def _decode(data: bytes) -> str:
    return data.decode("latin-1")


def _typed(name: str, type_: type) -> pl.Expr:
    column = pl.col(name)
    if type_ is str:
        return pl.when(column.str.len_bytes() > 0).then(column)
    return column.cast(_POLARS_TYPES[type_], strict=False)


def _origin(batch: list[Chunk]) -> pl.DataFrame:
    counts = [chunk.data.count(b"\n") for chunk in batch]
    files = pl.DataFrame(
        {"run_id": [c.file.run_id for c in batch], "attempt": [c.file.attempt for c in batch], "lines": counts},
        schema_overrides={"attempt": pl.Int32},
    )
    return files.select(pl.col("run_id", "attempt").repeat_by("lines").explode())


def _bad_lines(batch: list[Chunk], lines: pl.Series, is_bad: pl.Series) -> list[Row]:
    starts = (lines.str.len_chars().cast(pl.Int64) + 1).cum_sum().shift(1, fill_value=0)
    found = pl.DataFrame({"line": lines, "start": starts}).filter(is_bad)
    rows, begin, remaining = [], 0, batch
    for line, start in found.iter_rows():
        while start >= begin + len(remaining[0].data):
            begin += len(remaining[0].data)
            remaining = remaining[1:]
        chunk = remaining[0]
        rows.append(quarantine(chunk.file.name, chunk.offset + start - begin, BAD_LINE, line))
    return rows
