"""Rows beyond what one database file should hold, as immutable Parquet files beside it.

lab.duckdb is copied at every ingest, so that readers never wait; that is cheap as long as it is small. When the rows of
a kind become more than SEGMENT_ROWS they move into a segment, and the views over them read both. A home of everyday
size has no segment, and its database is one file.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from uuid import uuid4

import duckdb
import polars as pl

from results.files import fsync_file, fsync_folder, naming_full_disk
from results.home import Home
from results.query import quoted
from results.rows import COLUMNS, RowKind

TableKind = RowKind | Literal["bin"]

SEGMENT_ROWS = 2_000_000
KINDS: tuple[TableKind, ...] = (*COLUMNS, "bin")
# An open connection goes on reading the segments of the database that it opened: none is deleted before this age.
KEPT_S = 86_400.0


def write(home: Home, kind: TableKind, frames: Sequence[pl.DataFrame]) -> Path:
    """A new segment holding `frames`, durable."""
    home.segments.mkdir(exist_ok=True)
    path = home.segments / f"{kind}-{uuid4().hex[:12]}.parquet"
    with naming_full_disk(path, sum(int(frame.estimated_size()) for frame in frames)):
        pl.concat(frames).write_parquet(path, compression="lz4", row_group_size=131_072)
        fsync_file(path)
        fsync_folder(home.segments)
    return path


def note(con: duckdb.DuckDBPyConnection, kind: TableKind, path: Path, rows: int) -> None:
    """Let the database know of a segment."""
    con.execute("INSERT INTO segments VALUES (?, ?, ?)", [kind, path.name, rows])


def spill(con: duckdb.DuckDBPyConnection, home: Home, kind: TableKind) -> None:
    """Move the rows of `kind` into a segment when they are many."""
    ((rows,),) = con.execute(f"SELECT count(*) FROM {kind}_rows").fetchall()
    if rows >= SEGMENT_ROWS:
        note(con, kind, write(home, kind, [con.sql(f"FROM {kind}_rows").pl()]), rows)
        con.execute(f"DELETE FROM {kind}_rows")
        source = "train" if kind == "bin" else kind
        con.execute("UPDATE ledger SET spilled = TRUE WHERE path LIKE ?", [f"%/{source}.csv"])


def point_views(con: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Let the views read all segments, where they lie now."""
    for kind in KINDS:
        names = [name for (name,) in con.execute("SELECT path FROM segments WHERE kind = ?", [kind]).fetchall()]
        paths = ", ".join(quoted(home.segments / name) for name in sorted(names))
        more = f" UNION ALL BY NAME SELECT * FROM read_parquet([{paths}])" if names else ""
        con.execute(f"CREATE OR REPLACE VIEW {kind}_all AS SELECT * FROM {kind}_rows{more}")


def missing(con: duckdb.DuckDBPyConnection, home: Home) -> list[str]:
    """Segments that the database knows and that are not there."""
    names = con.execute("SELECT path FROM segments").fetchall()
    return [name for (name,) in names if not (home.segments / name).exists()]


def tidy(home: Home, used: set[str], rebuilt: bool) -> None:
    """Delete segments that no database of the last day can have used; a rebuild has just made the others old."""
    for path in home.segments.glob("*.parquet"):
        if path.name in used:
            continue
        if rebuilt:
            path.touch()
        elif time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
