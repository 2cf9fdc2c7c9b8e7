"""The curves of runs for other viewers: a run is one run there, its steps rising, however often it was requeued."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.select import resolve_plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Every number of a run as (step, name, value), from the views that hold each step once.
SCALARS = """
SELECT step, 'train/' || name AS name, value FROM (
    UNPIVOT (SELECT step, loss, lr, grad_norm, tokens_per_s, tokens::DOUBLE AS tokens, flops
        FROM train WHERE run_id = $run)
    ON COLUMNS(* EXCLUDE step) INTO NAME name VALUE value)
UNION ALL BY NAME
SELECT step, split || '/' || name AS name, value FROM (
    UNPIVOT (SELECT step, split, loss, perplexity, bits_per_byte FROM evals WHERE run_id = $run)
    ON COLUMNS(* EXCLUDE (step, split)) INTO NAME name VALUE value)
UNION ALL BY NAME
SELECT step, split || '/loss_at/' || lpad(start::TEXT, 6, '0') AS name, loss AS value FROM positions WHERE run_id = $run
UNION ALL BY NAME
SELECT step, 'telemetry/' || name || CASE WHEN layer < 0 THEN '' ELSE '/layer' || layer END AS name, value
FROM telemetry WHERE run_id = $run
ORDER BY step, name
"""
RUNS = """
SELECT DISTINCT r.run_id, r.seed, r.config, p.arm FROM runs r LEFT JOIN plan_runs p USING (run_id)
WHERE r.run_id IN (SELECT unnest($runs)) AND r.attempts > 0 ORDER BY ALL
"""


class ExportError(RuntimeError):
    """What was asked for cannot be written here; the message says what is missing."""


def runs_named(con: "DuckDBPyConnection", name: str) -> list[dict[str, Any]]:
    """The runs that have begun of a sweep, or the one whose id begins with `name`. Raises UnknownSweep."""
    ids = con.execute("SELECT run_id FROM runs WHERE starts_with(run_id, $1)", [name]).fetchall()
    if len(ids) != 1 or len(name) < 4:
        plan = resolve_plan(con, name)
        query = "SELECT run_id FROM plan_runs WHERE sweep = $1 AND plan_id = $2"
        ids = con.execute(query, [plan.sweep, plan.plan_id]).fetchall()
    found = con.execute(RUNS, {"runs": [run_id for (run_id,) in ids]}).fetchall()
    return [dict(zip(("run_id", "seed", "config", "arm"), row, strict=True)) for row in found]


def scalars(con: "DuckDBPyConnection", run_id: str) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, {name: value}) of a run with steps rising."""
    rows = con.execute(SCALARS, {"run": run_id}).fetchall()
    for step, group in groupby(rows, key=lambda row: int(row[0])):
        yield step, {name: value for _, name, value in group}


def to_tensorboard(con: "DuckDBPyConnection", runs: list[dict[str, Any]], out: Path) -> list[Path]:
    """An event file per run in a folder of its own; an earlier export of the run is replaced. Raises ExportError."""
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise ExportError("TensorBoard is not installed: pip install 'lab[tensorboard]'") from None
    folders = []
    for run in runs:
        folder = out / _folder_name(run)
        shutil.rmtree(folder, ignore_errors=True)
        writer = Writer(str(folder))
        for step, values in scalars(con, run["run_id"]):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        writer.close()
        folders.append(folder)
    return folders


def _folder_name(run: dict[str, Any]) -> str:
    """What TensorBoard shows as the run's name: the arm as far as a file can be called so."""
    arm = re.sub(r"[^\w.+=-]+", "_", run["arm"] or "run")[:80].strip(".")
    return f"{arm}-seed{run['seed']}-{run['run_id']}"


def to_wandb(con: "DuckDBPyConnection", runs: list[dict[str, Any]], out: Path, project: str) -> list[Path]:
    """An offline run per run, for `wandb sync`; an earlier export of it is replaced. Raises ExportError."""
    try:
        import wandb
    except ImportError:
        raise ExportError("W&B is not installed: pip install 'lab[wandb]'") from None
    out.mkdir(parents=True, exist_ok=True)
    quiet: dict[str, Any] = {
        "silent": True,
        "console": "off",
        "x_disable_stats": True,
        "disable_git": True,
        "disable_code": True,
    }
    folders: list[Path] = []
    for run in runs:
        for old in out.glob(f"wandb/offline-run-*-{run['run_id']}"):
            shutil.rmtree(old)
        there = wandb.init(
            mode="offline",
            dir=str(out),
            project=project,
            id=run["run_id"],
            name=_folder_name(run),
            group=(run["arm"] or "run")[:128],
            config=json.loads(run["config"]),
            settings=wandb.Settings(**quiet),
        )
        for step, values in scalars(con, run["run_id"]):
            there.log({name: value for name, value in values.items() if not math.isnan(value)}, step=step)
        there.finish()
        folders += out.glob(f"wandb/offline-run-*-{run['run_id']}")
    wandb.teardown()  # its service writes the files, and is waited for
    return folders
