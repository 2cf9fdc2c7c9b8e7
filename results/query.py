"""Reading the database. A connection keeps the file it opened, so it shows one state however often ingest runs."""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.home import Home

if TYPE_CHECKING:
    import duckdb


class QueryError(ValueError):
    """A query whose answer cannot be shown."""


def open(home: Home | str | Path | None = None) -> "duckdb.DuckDBPyConnection":
    """A read-only connection to lab.duckdb; FileNotFoundError if nothing was ingested yet.

    The file is attached to an in-memory database of its own: opened by path, DuckDB would hand out the content that
    any older connection of this process still holds.
    """
    import duckdb

    home = home if isinstance(home, Home) else Home(home)
    if not home.database.exists():
        raise FileNotFoundError(f"{home.database} does not exist: run `lab ingest`")
    con = duckdb.connect()
    con.execute(f"ATTACH {quoted(home.database)} AS lab (READ_ONLY); USE lab")
    return con


def quoted(path: Path) -> str:
    """A path as an SQL string."""
    return "'" + str(path).replace("'", "''") + "'"


def rows(
    home: Home | str | Path | None, sql: str, params: Sequence[Any] | Mapping[str, Any] = ()
) -> list[dict[str, Any]]:
    """The answer to one query, ready for JSON: dates are text; NaN and infinities are None.

    Raises QueryError if two columns share a name, because one would hide the other.
    """
    with open(home) as con:
        result = con.execute(sql, params)
        if result is None or result.description is None:
            raise QueryError("no query was given")
        names = [column[0] for column in result.description or []]
        if len(set(names)) < len(names):
            raise QueryError(f"two columns of the answer share a name, rename one with AS: {', '.join(names)}")
        return [dict(zip(names, map(plain, row), strict=True)) for row in result.fetchall()]


def plain(value: Any) -> Any:
    """A value that JSON can carry."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)
