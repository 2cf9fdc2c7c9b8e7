"""Files to database: the small tables anew, the rows by what is new, published by one rename."""

import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from results import collect, load
from results.files import fsync_folder
from results.home import Home
from results.lock import exclusive
from results.rows import COLUMNS

log = logging.getLogger(__name__)

SCHEMA = Path(__file__).with_name("schema.sql")
WAIT_S = 30.0

# A run that is not done shows where its one timeline has come to. A run that was resumed only to be declared done
# knows its last training loss from its rows alone.
_FINAL_FROM_ROWS = """
UPDATE runs SET train_loss = r.loss, wall_s = r.wall_s, tokens_per_s = r.tokens_per_s
FROM (SELECT run_id, arg_max(train, step) AS r FROM train GROUP BY run_id) last
WHERE runs.run_id = last.run_id AND runs.finished_at IS NULL;
UPDATE runs SET train_loss = r.loss
FROM (SELECT run_id, arg_max(train, step) AS r FROM train GROUP BY run_id) last
WHERE runs.run_id = last.run_id AND runs.train_loss IS NULL;
UPDATE runs SET val_loss = r.loss, val_perplexity = r.perplexity, val_bits_per_byte = r.bits_per_byte
FROM (SELECT run_id, arg_max(evals, step) AS r FROM evals WHERE split = 'val' GROUP BY run_id) last
WHERE runs.run_id = last.run_id AND runs.finished_at IS NULL;
"""


@dataclass(frozen=True)
class IngestReport:
    """What one ingest did: rows added, runs seen, unusable (path, reason), seconds taken."""

    rows_new: int
    runs: int
    bad_files: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0


def ingest(home: Home, rebuild: bool = False) -> IngestReport:
    """Bring lab.duckdb up to date with the files; `rebuild` reads everything again, with the same result.

    The new database is built beside the old one and renamed over it, so readers neither block nor are blocked, and a
    kill at any moment leaves the old one. Raises lock.Busy if another ingest runs for long.
    """
    began = time.perf_counter()
    home.ensure()
    with exclusive(home.path / ".ingest", WAIT_S, "ingest") as folder:
        survey = collect.survey(home)
        private = folder / "new.duckdb"
        rows_new, bad_files = _build(home, survey, private, rebuild)
        _publish(private, home.database)
    return IngestReport(rows_new, len(survey.tables["runs"]), bad_files, time.perf_counter() - began)


def content_hash(home: Home) -> str:
    """A hash over what analysis reads, whatever the order of rows; equal after an ingest and after a rebuild.

    The state of a run is left out: it depends on which processes live at that moment.
    """
    digest = hashlib.sha256()
    tables = ("train", "evals", "telemetry", "runs EXCLUDE (state, kind, step)", "attempts", "plan_runs")
    with duckdb.connect() as con:
        con.execute(f"ATTACH {_quoted(home.database)} AS lab (READ_ONLY); USE lab")
        for table in tables:
            name, _, exclude = table.partition(" ")
            query = (
                f"SELECT count(*), sum(md5_number_lower(t::VARCHAR)::HUGEINT) FROM (SELECT * {exclude} FROM {name}) t"
            )
            digest.update(repr((name, con.execute(query).fetchone())).encode())
    return digest.hexdigest()


def _build(home: Home, survey: collect.Survey, private: Path, fresh: bool) -> tuple[int, list[tuple[str, str]]]:
    if not fresh and home.database.exists():
        try:
            shutil.copyfile(home.database, private)
            return _fill(private, survey)
        except (duckdb.Error, _OtherSchema) as error:
            log.warning("building %s anew from the files: %s", home.database, error)
    _remove(private)
    return _fill(private, survey)


class _OtherSchema(Exception):
    """The database was made for another schema.sql."""


def _fill(private: Path, survey: collect.Survey) -> tuple[int, list[tuple[str, str]]]:
    empty = not private.exists()
    with contextlib.closing(duckdb.connect(str(private))) as con:
        _create_schema(con) if empty else _check_schema(con)
        con.execute("BEGIN")
        rows_new = _add_rows(con, survey)
        for table in collect.SMALL_TABLES:
            con.execute(f"DELETE FROM {table}")
            _insert(con, table, survey.tables[table])
        con.execute(_FINAL_FROM_ROWS)
        con.execute("COMMIT")
        con.execute("CHECKPOINT")
        bad = con.execute(
            "SELECT DISTINCT path, reason FROM quarantine WHERE reason <> ? ORDER BY ALL", [load.TORN_TAIL]
        )
        return rows_new, bad.fetchall()


def _create_schema(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(SCHEMA.read_text())
    con.execute("CREATE TABLE schema_version AS SELECT ? AS sha256", [_schema_hash()])


def _check_schema(con: duckdb.DuckDBPyConnection) -> None:
    found = con.execute("SELECT sha256 FROM schema_version").fetchall()
    if found != [(_schema_hash(),)]:
        raise _OtherSchema("it was made for another schema")


def _schema_hash() -> str:
    return hashlib.sha256(SCHEMA.read_bytes()).hexdigest()


def _add_rows(con: duckdb.DuckDBPyConnection, survey: collect.Survey) -> int:
    """Append what is new in the row files and renew the quarantine; returns the number of rows added."""
    # Bad lines lie before the ledger's offsets and are not met again; everything else is found anew.
    con.execute("DELETE FROM quarantine WHERE reason <> ?", [load.BAD_LINE])
    _insert(con, "quarantine", [load.quarantine(path, None, reason, None) for path, reason in survey.bad])
    ledger = _reconciled_ledger(con, survey.row_files)
    added = 0
    for kind in COLUMNS:
        readings = _readings(con, [file for file in survey.row_files if file.kind == kind], ledger)
        for batch in load.batches(readings):
            rows, bad = load.parse(batch)
            _append(con, f"{kind}_rows", rows)
            _insert(con, "quarantine", bad)
            ledger.update((chunk.file.name, chunk.end) for chunk in batch)
            added += len(rows)
    con.execute("DELETE FROM ledger")
    _insert(con, "ledger", [{"path": path, "byte_offset": offset} for path, offset in ledger.items()])
    return added


def _readings(
    con: duckdb.DuckDBPyConnection, files: list[collect.RowFile], ledger: dict[str, int]
) -> Iterator[load.Chunk]:
    """Chunks of new lines; what had to be set aside goes to quarantine on the way."""
    for file in files:
        offset = ledger.get(file.name, 0)
        if file.path.stat().st_size == offset:
            continue
        reading = load.read_new(file, offset)
        _insert(con, "quarantine", reading.quarantined)
        if reading.chunk is not None:
            yield reading.chunk


def _reconciled_ledger(con: duckdb.DuckDBPyConnection, files: list[collect.RowFile]) -> dict[str, int]:
    """How far each present file was read. Rows of files that shrank or vanished since are forgotten."""
    sizes = {file.name: file.path.stat().st_size for file in files}
    known = con.execute("SELECT path, byte_offset FROM ledger").fetchall()
    ledger = {path: offset for path, offset in known if sizes.get(path, -1) >= offset}
    for path in {path for path, _ in known} - ledger.keys():
        _, run_id, _, attempt, name = Path(path).parts
        con.execute(f"DELETE FROM {Path(name).stem}_rows WHERE run_id = ? AND attempt = ?", [run_id, int(attempt)])
        con.execute("DELETE FROM quarantine WHERE path = ?", [path])
    return ledger


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: list[collect.Row]) -> None:
    if rows:
        types = dict(con.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table})").fetchall())
        _append(con, table, load.frame_of(rows, types))


def _append(con: duckdb.DuckDBPyConnection, table: str, frame: pl.DataFrame) -> None:
    con.register("incoming", frame.to_arrow())
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    con.unregister("incoming")


def _publish(private: Path, database: Path) -> None:
    with private.open("rb") as file:
        os.fsync(file.fileno())
    # We never leave a .wal, but one of a foreign writer must not be replayed into the new database.
    _wal(database).unlink(missing_ok=True)
    private.replace(database)
    fsync_folder(database.parent)


def _remove(database: Path) -> None:
    database.unlink(missing_ok=True)
    _wal(database).unlink(missing_ok=True)


def _wal(database: Path) -> Path:
    return database.with_name(database.name + ".wal")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
