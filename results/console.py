"""How commands talk: options they share, tables and JSON on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from results.home import Home

READER_WAITS_S = 15.0  # for another ingest, before it answers from what there is

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Where results live [default: $LAB_HOME or ./lab-home].")
]


def home_at(path: Path | None) -> "Home":
    """The home that --home, or its absence, means."""
    from results.home import Home

    return Home(path)


def ingested(path: Path | None) -> "Home":
    """The home with its database brought up to date; where that cannot be now, as it is, with a word about it.

    FileNotFoundError without a home.
    """
    import os

    from results.ingest import ingest as ingest_files
    from results.lock import Busy

    home = home_at(path)
    home.must_exist()
    if os.access(home.path, os.W_OK):
        try:
            name_bad_files(ingest_files(home, wait_s=READER_WAITS_S).bad_files)
        except (Busy, OSError) as error:
            if not home.database.is_file():
                raise
            print(f"the database was not brought up to date: {error}", file=sys.stderr)
    return home


def name_bad_files(bad: Iterable[tuple[str, str]]) -> None:
    """Say which files could not be read."""
    for path, reason in bad:
        print(f"could not read {path}: {reason}", file=sys.stderr)


def print_json(value: Any, indent: int | None = None) -> None:
    """One JSON value, strict."""
    print(json.dumps(value, indent=indent, default=str, allow_nan=False))


def print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A list of records, as a JSON list or as a table."""
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table(*(rows[0] if rows else ["(no rows)"]))
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    stdout().print(table)


def _cell(value: Any) -> str:
    """For eyes: six digits, and the beginning of long texts; --json gives all of it."""
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


def stdout() -> "Console":
    """A console for answers."""
    from rich.console import Console

    # Piped, a table must not be folded to 80 columns.
    return Console(width=None if _is_terminal(sys.stdout) else 200, markup=False, highlight=False)


def stderr() -> "Console":
    """A console for progress and remarks."""
    from rich.console import Console

    width = None if _is_terminal(sys.stderr) else 200
    return Console(stderr=True, width=width, markup=False, highlight=False)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()  # None: closed by the caller
