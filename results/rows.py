"""Rows of a run as CSV lines: a line ends in a newline or it is not a row."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from results.files import StorageFull, naming_full_disk, open_regular
from results.shapes import digits

RowKind = Literal["train", "eval", "position", "telemetry"]

COLUMNS: dict[RowKind, dict[str, type]] = {
    "train": {
        "step": int,
        "tokens": int,
        "flops": float,
        "wall_s": float,
        "loss": float,
        "lr": float,
        "grad_norm": float,
        "tokens_per_s": float,
    },
    "eval": {
        "step": int,
        "split": str,
        "tokens": int,
        "loss": float,
        "perplexity": float,
        "bits_per_byte": float,
    },
    "position": {"step": int, "split": str, "start": int, "stop": int, "loss": float},
    "telemetry": {"step": int, "name": str, "layer": int, "value": float},
}


def header(kind: RowKind) -> bytes:
    """The first line of every file of this kind."""
    return (",".join(COLUMNS[kind]) + "\n").encode()


def tail(path: Path, kind: RowKind, size: int = 4096) -> list[dict[str, str]]:
    """The last whole rows of a file, as text: those in its last `size` bytes. Empty where there is none."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            lines = file.read(size).decode(errors="replace").split("\n")[:-1]
    except OSError:
        return []
    return list(rows_of(lines[1:], kind))  # the first is the header, or was begun before


def rows_of(lines: Iterable[str], kind: RowKind) -> Iterator[dict[str, str]]:
    """The fields of those lines that have as many as a row of this kind, and a step; as text."""
    names = list(COLUMNS[kind])
    for line in lines:
        fields = line.split(",")
        if len(fields) == len(names) and digits(fields[0]) is not None:
            yield dict(zip(names, fields, strict=True))


def first_step(path: Path) -> int | None:
    """The step of the first whole row of a file; None where there is none."""
    try:
        with open_regular(path) as file:
            lines = file.read(4096).decode(errors="replace").split("\n")[:-1]
    except OSError:
        return None
    return digits(lines[1].partition(",")[0]) if len(lines) > 1 else None


def last_step(path: Path) -> int:
    """The step of the last whole row of train.csv; -1 where there is none."""
    rows = tail(path, "train", 512)
    return int(rows[-1]["step"]) if rows else -1


class RowLog:
    """One CSV file with one writer. Floats are written by repr, so they come back bit for bit."""

    def __init__(self, path: Path, kind: RowKind) -> None:
        self.path = path
        self._columns = list(COLUMNS[kind].items())
        self._head = header(kind)
        self._fd: int | None = None
        self._size = 0

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one line with one system call. KeyError / ValueError if the row does not fit the header."""
        self.extend([row])

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write several lines with one system call, or none of them."""
        self._write("".join(map(self._line, rows)).encode())

    def sync(self) -> None:
        """Make every row written so far durable."""
        if self._fd is not None:
            with naming_full_disk(self.path):
                os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file; a later append would open it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _line(self, row: Mapping[str, Any]) -> str:
        if len(row) != len(self._columns):
            expected = [name for name, _ in self._columns]
            raise ValueError(f"{self.path.name}: a row has {sorted(row)}, expected {expected}")
        # float() first: the repr of a NumPy scalar is not a number.
        fields = [
            repr(float(row[name])) if type_ is float else str(int(row[name])) if type_ is int else _word(row[name])
            for name, type_ in self._columns
        ]
        return ",".join(fields) + "\n"

    def _write(self, lines: bytes) -> None:
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = os.fstat(self._fd).st_size
        if self._size == 0:
            lines = self._head + lines
        with naming_full_disk(self.path, len(lines)):
            written = os.write(self._fd, lines)
        if written < len(lines):
            # A full disk takes part of the lines; taken back here, the next row cannot be glued to it.
            os.ftruncate(self._fd, self._size)
            raise StorageFull(self.path, len(lines))
        self._size += written


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value or any(char in value for char in ',"\r\n'):
        raise ValueError(f"not a plain word for a CSV field: {value!r}")
    return value
