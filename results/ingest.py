"""Files to database: the small tables anew, the rows by what is new, published by one rename."""

import contextlib
import hashlib
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from results import bins, collect, load, planned, query, segments
from results.files import UNREADABLE, BadFile, fsync_file, fsync_folder, full_disk_code, naming_full_disk
from results.home import Home
from results.lock import exclusive
from results.rows import COLUMNS, RowKind

log = logging.getLogger(__name__)

SCHEMA = Path(__file__).with_name("schema.sql")
WAIT_S = 30.0
MEMORY_LIMIT = "2GB"  # of DuckDB; what does not fit goes to disk

# A run that is not done shows where its one timeline has come to. A run that was resumed only to be declared done
# knows its last training loss from its rows alone.
_FINAL_FROM_ROWS = """
CREATE TEMP TABLE unfinished AS
SELECT run_id FROM runs JOIN changed ON changed.folder = 'runs/' || run_id
WHERE finished_at IS NULL OR train_loss IS NULL;
UPDATE runs SET train_loss = r.loss,
    wall_s = CASE WHEN finished_at IS NULL THEN r.wall_s ELSE runs.wall_s END,
    tokens_per_s = CASE WHEN finished_at IS NULL THEN r.tokens_per_s ELSE runs.tokens_per_s END
FROM (SELECT run_id, arg_max(train, step) AS r FROM train SEMI JOIN unfinished USING (run_id) GROUP BY run_id) last
WHERE runs.run_id = last.run_id;
UPDATE runs SET val_loss = r.loss, val_perplexity = r.perplexity, val_bits_per_byte = r.bits_per_byte
FROM (
    SELECT run_id, arg_max(evals, step) AS r FROM evals SEMI JOIN unfinished USING (run_id)
    WHERE split = 'val' GROUP BY run_id
) last
WHERE runs.run_id = last.run_id AND runs.finished_at IS NULL;
"""
# A run that is done has written its last row; where that is not there, somebody has cut or deleted a file since.
_NAME_CUT_RUNS = """
CREATE TEMP TABLE done AS
SELECT folder, run_id, step FROM runs JOIN changed ON changed.folder = 'runs/' || run_id WHERE state = 'DONE';
INSERT INTO quarantine BY NAME
SELECT folder, folder AS path, format('DONE at step {}, but its rows end at step {}', step, coalesce(last, 0)) AS reason
FROM done
LEFT JOIN (SELECT run_id, max(last_step) AS last FROM train_bins SEMI JOIN done USING (run_id) GROUP BY run_id) r
USING (run_id)
WHERE coalesce(last, 0) < step;
"""
# Rows of the small tables that come from a folder that was read anew or is gone. Bad lines lie before the offsets of
# the ledger and are not met again.
_FORGET = f"""
DELETE FROM quarantine WHERE folder IN (FROM touched) AND reason <> '{load.BAD_LINE}';
DELETE FROM runs WHERE 'runs/' || run_id IN (FROM touched);
DELETE FROM attempts WHERE 'runs/' || run_id IN (FROM touched);
DELETE FROM decode WHERE 'runs/' || run_id IN (FROM touched);
DELETE FROM lengths WHERE 'runs/' || run_id IN (FROM touched);
DELETE FROM snapshots WHERE 'snapshots/' || code_hash IN (FROM touched);
DELETE FROM plans WHERE 'sweeps/' || sweep || '/' || plan_id IN (FROM touched);
DELETE FROM plan_runs WHERE 'sweeps/' || sweep || '/' || plan_id IN (FROM touched);
DELETE FROM trials WHERE 'sweeps/' || sweep || '/' || plan_id IN (FROM touched);
DELETE FROM seen WHERE folder IN (FROM touched);
"""


@dataclass(frozen=True)
class IngestReport:
    """What one ingest did: rows added, runs seen, unusable (path, reason), seconds taken."""

    rows_new: int
    runs: int
    bad_files: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0


def ingest(home: Home, rebuild: bool = False, wait_s: float | None = None) -> IngestReport:
    """Bring lab.duckdb up to date with the files; `rebuild` reads everything again, with the same result.

    The new database is built beside the old one and renamed over it, so readers neither block nor are blocked, and a
    kill at any moment leaves the old one. Raises lock.Busy if another ingest runs for longer than `wait_s`, or WAIT_S.
    """
    began = time.perf_counter()
    home.ensure()
    with exclusive(home.path / ".ingest", WAIT_S if wait_s is None else wait_s, "ingest") as folder:
        private = folder / "new.duckdb"
        try:
            with naming_full_disk(home.database, _size(home.database)):
                built = _build(home, private, rebuild)
                _publish(private, home.database)
        finally:
            _remove(private)  # of a failed build: it may be what fills the disk
        segments.tidy(home, built.segments, built.rebuilt)
    return IngestReport(built.rows_new, built.runs, built.bad_files, time.perf_counter() - began)


def content_hash(home: Home) -> str:
    """A hash over what analysis reads, whatever the order of rows; equal after an ingest and after a rebuild.

    The state of a run is left out: it depends on which processes live at that moment.
    """
    digest = hashlib.sha256()
    exact = "runs EXCLUDE (state, kind, step)"
    tables = ("train", "evals", "positions", "telemetry", exact, "attempts", "plan_runs")
    with query.open(home) as con:
        for table in tables:
            name, _, exclude = table.partition(" ")
            text = (
                f"SELECT count(*), sum(md5_number_lower(t::VARCHAR)::HUGEINT) FROM (SELECT * {exclude} FROM {name}) t"
            )
            digest.update(repr((name, con.execute(text).fetchone())).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Built:
    """What is in a database that was just brought up to date."""

    rows_new: int
    runs: int
    bad_files: list[tuple[str, str]]
    segments: set[str]
    rebuilt: bool


class _Unusable(Exception):
    """The old database cannot be continued; a new one is made from the files."""


def _build(home: Home, private: Path, fresh: bool) -> _Built:
    if home.database.is_dir():
        raise BadFile(home.database, "a folder where the database belongs; move it away")
    if not fresh and home.database.exists():
        try:
            shutil.copyfile(home.database, private)
            return _fill(home, private, rebuilt=False)
        except (duckdb.Error, _Unusable) as error:
            if full_disk_code(error):
                raise
            log.warning("building %s anew from the files: %s", home.database, error)
    _remove(private)
    return _fill(home, private, rebuilt=True)


def _fill(home: Home, private: Path, rebuilt: bool) -> _Built:
    with contextlib.closing(duckdb.connect(str(private), config={"memory_limit": MEMORY_LIMIT})) as con:
        _create_schema(con) if rebuilt else _check_continuable(con, home)
        survey = collect.survey(home, dict(con.execute("FROM seen").fetchall()))
        con.execute("BEGIN")
        rows_new = _update(con, home, survey)
        con.execute("COMMIT")
        con.execute("CHECKPOINT")
        bad = con.execute(
            "SELECT DISTINCT path, reason FROM quarantine WHERE reason <> ? ORDER BY ALL", [load.TORN_TAIL]
        ).fetchall()
        runs = sum(name.startswith("runs/") for name in survey.present)
        used = {name for (name,) in con.execute("SELECT path FROM segments").fetchall()}
    return _Built(rows_new, runs, bad, used, rebuilt)


def _update(con: duckdb.DuckDBPyConnection, home: Home, survey: collect.Survey) -> int:
    """Renew what the survey found changed; returns the number of rows added."""
    con.execute("CREATE TEMP TABLE touched (folder TEXT); CREATE TEMP TABLE changed (folder TEXT)")
    _insert(con, "touched", [{"folder": name} for name in (*survey.changed, *survey.gone)])
    _insert(con, "changed", [{"folder": name} for name in survey.changed])
    con.execute(_FORGET)
    _insert(con, "seen", [{"folder": name, "signature": now} for name, now in survey.changed.items()])
    for table in collect.SMALL_TABLES:
        _insert(con, table, survey.tables[table])
    _insert(con, "quarantine", [load.quarantine(path, None, reason, None) for path, reason in survey.bad])
    _insert(con, "runs", _planned(con, home))
    rows_new = _add_rows(con, home, survey)
    segments.point_views(con, home)
    bins.cut(con)
    con.execute(_FINAL_FROM_ROWS)
    con.execute(_NAME_CUT_RUNS)
    return rows_new


def _planned(con: duckdb.DuckDBPyConnection, home: Home) -> list[collect.Row]:
    """Rows of runs that are planned and have no folder yet."""
    found: dict[str, collect.Row] = {}
    plans = con.execute("SELECT DISTINCT sweep, plan_id FROM plan_runs ANTI JOIN runs USING (run_id)").fetchall()
    for sweep, plan_id in plans:
        for run_id, spec in planned.readable_specs(home.sweeps / sweep / plan_id).items():
            try:
                found[run_id] = collect.planned_run(spec)
            except UNREADABLE as error:
                log.warning("spec of run %s in %s: %s; the next `lab sweep` writes it again", run_id, plan_id, error)
    wanted = con.execute("SELECT DISTINCT run_id FROM plan_runs ANTI JOIN runs USING (run_id)").fetchall()
    return [found[run_id] for (run_id,) in wanted if run_id in found and not home.run(run_id).path.exists()]


def _create_schema(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(SCHEMA.read_text())
    con.execute("CREATE TABLE schema_version AS SELECT ? AS sha256", [_schema_hash()])


def _check_continuable(con: duckdb.DuckDBPyConnection, home: Home) -> None:
    if con.execute("SELECT sha256 FROM schema_version").fetchall() != [(_schema_hash(),)]:
        raise _Unusable("it was made for another schema")
    if lost := segments.missing(con, home):
        raise _Unusable(f"{len(lost)} segments are missing, such as {home.segments / lost[0]}")


def _schema_hash() -> str:
    return hashlib.sha256(SCHEMA.read_bytes()).hexdigest()


def _add_rows(con: duckdb.DuckDBPyConnection, home: Home, survey: collect.Survey) -> int:
    """Append what is new in the row files; returns the number of rows added."""
    ledger = _reconciled_ledger(con, survey)
    return sum(_add_rows_of(con, home, kind, survey.row_files, ledger) for kind in COLUMNS)


def _add_rows_of(
    con: duckdb.DuckDBPyConnection, home: Home, kind: RowKind, files: list[collect.RowFile], ledger: dict[str, int]
) -> int:
    """Rows of one kind: as many whole segments as they fill, the rest into the table."""
    added, waiting = 0, list[pl.DataFrame]()
    new_ledger: dict[str, load.Chunk] = {}
    for batch in load.batches(_readings(con, [file for file in files if file.kind == kind], ledger)):
        rows, bad = load.parse(batch)
        if kind == "train":
            _append(con, "bin_rows", bins.of_rows(rows))
        _insert(con, "quarantine", bad)
        new_ledger |= {chunk.file.name: chunk for chunk in batch}
        added += len(rows)
        waiting.append(rows)
        if sum(map(len, waiting)) >= segments.SEGMENT_ROWS:
            segments.note(con, kind, segments.write(home, kind, waiting), sum(map(len, waiting)))
            waiting.clear()
            _advance(con, new_ledger, spilled=True)
            new_ledger.clear()
            segments.spill(con, home, "bin")
    for rows in waiting:
        _append(con, f"{kind}_rows", rows)
    _advance(con, new_ledger, spilled=False)
    segments.spill(con, home, kind)
    segments.spill(con, home, "bin")
    return added


def _advance(con: duckdb.DuckDBPyConnection, newest: dict[str, load.Chunk], spilled: bool) -> None:
    """Note how far each file has been read. A file of which any row is in a segment stays `spilled`."""
    rows = [
        {"folder": collect.folder_of(path), "path": path, "byte_offset": chunk.end, "identity": chunk.identity}
        | {"spilled": spilled}
        for path, chunk in newest.items()
    ]
    con.execute("CREATE OR REPLACE TEMP TABLE news AS FROM ledger LIMIT 0")
    _insert(con, "news", rows)
    con.execute("UPDATE news SET spilled = TRUE WHERE path IN (SELECT path FROM ledger WHERE spilled)")
    con.execute("DELETE FROM ledger WHERE path IN (SELECT path FROM news); INSERT INTO ledger FROM news")


def _readings(
    con: duckdb.DuckDBPyConnection, files: list[collect.RowFile], ledger: dict[str, int]
) -> Iterator[load.Chunk]:
    """Chunks of new lines; what had to be set aside goes to quarantine on the way."""
    for file in files:
        offset = ledger.get(file.name, 0)
        try:
            for found in load.read_new(file, offset) if file.path.stat().st_size != offset else ():
                if isinstance(found, load.Chunk):
                    yield found
                else:
                    _insert(con, "quarantine", [found])
        except OSError as error:  # not to be read, or gone since it was seen
            _insert(con, "quarantine", [load.quarantine(file.name, None, error.strerror or str(error), None)])


def _reconciled_ledger(con: duckdb.DuckDBPyConnection, survey: collect.Survey) -> dict[str, int]:
    """How far each file of the changed folders was read. Rows of files that shrank, vanished or were replaced are
    forgotten."""
    files = {file.name: file for file in survey.row_files}
    known = con.execute("SELECT * EXCLUDE folder FROM ledger WHERE folder IN (FROM touched)").fetchall()
    ledger: dict[str, int] = {}
    for path, offset, identity, spilled in known:
        if path in files and load.identity_at(files[path], offset) == identity:
            ledger[path] = offset
        elif spilled:
            raise _Unusable(f"{path} is not the file it was, and its rows are in a segment")
        else:
            _forget_rows(con, path)
    return ledger


def _forget_rows(con: duckdb.DuckDBPyConnection, path: str) -> None:
    _, run_id, _, attempt, name = Path(path).parts
    for table in (f"{Path(name).stem}_rows", *(["bin_rows"] if name == "train.csv" else [])):
        con.execute(f"DELETE FROM {table} WHERE run_id = ? AND attempt = ?", [run_id, int(attempt)])
    for table in ("quarantine", "ledger"):
        con.execute(f"DELETE FROM {table} WHERE path = ?", [path])


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: list[collect.Row]) -> None:
    if rows:
        types = dict(con.execute(f"SELECT column_name, column_type FROM (DESCRIBE {table})").fetchall())
        _append(con, table, load.frame_of(rows, types))


def _append(con: duckdb.DuckDBPyConnection, table: str, frame: pl.DataFrame) -> None:
    con.register("incoming", frame.to_arrow())
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
    con.unregister("incoming")


def _publish(private: Path, database: Path) -> None:
    fsync_file(private)
    # We never leave a .wal, but one of a foreign writer must not be replayed into the new database.
    _wal(database).unlink(missing_ok=True)
    private.replace(database)
    fsync_folder(database.parent)


def _remove(database: Path) -> None:
    database.unlink(missing_ok=True)
    _wal(database).unlink(missing_ok=True)


def _size(database: Path) -> int | None:
    return database.stat().st_size if database.exists() else None


def _wal(database: Path) -> Path:
    return database.with_name(database.name + ".wal")
