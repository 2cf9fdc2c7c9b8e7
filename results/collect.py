"""The JSON files of a home as rows of the small tables. One damaged file is named and harms no other.

What is read is by folder: a run, a plan, a snapshot. A folder whose files are as they were at the last ingest is
passed over, which costs a few looks at its directory: so an ingest takes as long as what is new.
"""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results import planned, shapes
from results.files import UNREADABLE, BadFile, encode_json, read_json
from results.home import Home
from results.record import AttemptInfo, RunFolder, owned_until
from results.rows import COLUMNS, RowKind
from results.state import ENDED, RunState, State, run_state

Row = dict[str, Any]
SMALL_TABLES = ("plans", "plan_runs", "trials", "runs", "attempts", "snapshots", "decode", "lengths")
UNSETTLED = ""  # the signature of what has to be read again: its state depends on more than its files, or it moved


@dataclass(frozen=True)
class RowFile:
    """One train.csv, eval.csv, position.csv or telemetry.csv; `ended` when nobody will append to it any more.

    `owner` is what its attempt was claimed with: a run that was deleted and trained again has the same names.
    """

    name: str
    path: Path
    kind: RowKind
    run_id: str
    attempt: int
    owner: str
    ended: bool


@dataclass
class Survey:
    """What the files of a home say, by table; only of folders that are not as they were `seen` last."""

    home: Home
    seen: Mapping[str, str]
    tables: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in SMALL_TABLES})
    bad: list[tuple[str, str]] = field(default_factory=list)
    row_files: list[RowFile] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)

    @property
    def gone(self) -> set[str]:
        """Folders that were there last time."""
        return self.seen.keys() - self.present

    def name(self, path: Path) -> str:
        """`path` relative to the home, as the database stores it."""
        return printable(path.relative_to(self.home.path).as_posix())

    def is_new(self, folder: Path) -> bool:
        """Whether `folder` has to be read again; notes its new signature if so."""
        name, now = self.name(folder), _signature(folder)
        self.present.add(name)
        if now != UNSETTLED and self.seen.get(name) == now:
            return False
        self.changed[name] = now
        return True

    @contextlib.contextmanager
    def tolerating(self, path: Path) -> Iterator[None]:
        """Note `path` as bad, and go on, if the block cannot make sense of it. Nothing that one folder holds ends the
        reading of the others."""
        try:
            yield
        except BadFile as error:
            self.bad.append((self.name(error.path), error.reason))
        except UNREADABLE as error:
            self.bad.append((self.name(path), f"{type(error).__name__}: {error}"))


def survey(home: Home, seen: Mapping[str, str]) -> Survey:
    """Read every JSON file below `home` that the database shows and that may be new since `seen`."""
    found = Survey(home, seen)
    for path in sorted(home.sweeps.glob("*/*/plan.json")):
        if found.is_new(path.parent):
            with found.tolerating(path):
                _add_plan(found, path)
    for path in sorted(home.snapshots.glob("*/SNAPSHOT.json")):
        if found.is_new(path.parent):
            with found.tolerating(path):
                found.tables["snapshots"].append(_snapshot(_object(path)))
    for run_id in home.run_ids():
        run = home.run(run_id)
        if found.is_new(run.path):
            with found.tolerating(run.path):
                _add_run(found, run)
    return found


def planned_run(spec: Row) -> Row:
    """The row of a run that nobody has begun."""
    return {**_spec(spec), "run_id": text(spec["run_id"]), "state": str(State.PLANNED), "step": 0, "attempts": 0}


def folder_of(name: str) -> str:
    """The folder that is surveyed as a whole, of the name of a file in it."""
    parts = name.split("/")
    return "/".join(parts[: 3 if parts[0] == "sweeps" else 2])


def _signature(folder: Path) -> str:
    """Changes when a file in `folder` does: names, sizes and times, checkpoints by their directory alone.

    Hidden names are locks, and files that are about to get their real name. UNSETTLED if anything could not be looked
    at, such as what vanished in between: it is looked at again next time.
    """
    digest = hashlib.blake2b(digest_size=12)
    waiting = [str(folder)]
    try:
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                shown = sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
            for entry in shown:
                stat = entry.stat(follow_symlinks=False)
                digest.update(f"{entry.path}\0{stat.st_size} {stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
                if entry.is_dir(follow_symlinks=False) and entry.name not in _OPAQUE:
                    waiting.append(entry.path)
    except OSError:
        return UNSETTLED
    return digest.hexdigest()


_OPAQUE = ("checkpoints", "lmcore", "results", "sweeps", "jobs", "workers", "submissions", "advances")


def integer(value: Any) -> int | None:
    """A BIGINT or NULL; TypeError or OverflowError for anything else."""
    if value is None:
        return None
    whole = shapes.integer(int(value) if isinstance(value, float) and value == math.floor(value) else value)
    if whole is None:
        raise TypeError("not an integer that a BIGINT holds")
    return whole


def real(value: Any) -> float | None:
    """A DOUBLE or NULL; "nan" and "inf" are numbers here, because JSON has no other way to write them."""
    return None if value is None else float(value)


def text(value: Any) -> str | None:
    """A TEXT or NULL; objects and lists as JSON."""
    if value is None:
        return None
    return printable(value if isinstance(value, str) else json.dumps(value, sort_keys=True))


def document(value: Any) -> str | None:
    """A JSON or NULL."""
    return None if value is None else printable(encode_json(value, indent=None, ascii_only=False))


def printable(text: str) -> str:
    """`text` without halves of surrogate pairs, which JSON and names of files can smuggle in."""
    return text.encode("utf-8", "replace").decode()


def _object(path: Path, shape: shapes.Shape = dict) -> Row:
    value = read_json(path, shape)
    if value is None:
        raise BadFile(path, "missing")
    return value


def _add_plan(found: Survey, path: Path) -> None:
    plan = _object(path)
    key = {"sweep": text(path.parent.parent.name), "plan_id": text(path.parent.name)}
    runs = [
        {
            **key,
            "ord": order,
            "run_id": text(run["run_id"]),
            "arm": text(run["arm"]),
            "seed": integer(run["seed"]),
            "match_residual": real(run.get("match_residual")),
            "tunes": text(run.get("tunes")),
            "params": document(run.get("params")),
        }
        for order, run in enumerate(plan["runs"])
    ]
    last_call = _newest_call(found, path.parent / "calls")
    row = {
        **key,
        **{name: text(plan.get(name)) for name in ("scale", "question", "baseline", "created_at", "stage", "tuning")},
        "smallest_effect": real(plan.get("smallest_effect")),
        "match_tolerance": real(plan.get("match_tolerance")),
        "last_call_at": text(last_call.get("called_at")),
        "code_hash": text(last_call.get("code_hash")),
        "plan": document(plan),
    }
    found.tables["plans"].append(row)
    found.tables["plan_runs"].extend(runs)
    with found.tolerating(path.with_name("trials.json")):
        told = read_json(path.with_name("trials.json")) or {"trials": []}
        found.tables["trials"].extend([{**key, **_trial(trial)} for trial in told["trials"]])


def _trial(trial: Row) -> Row:
    return {
        "trial": integer(trial["trial"]),
        **{name: text(trial.get(name)) for name in ("run_id", "state", "outcome")},
        "params": document(trial.get("params")),
        "value": real(trial.get("value")),
    }


def _newest_call(found: Survey, folder: Path) -> Row:
    calls: list[Row] = []
    for path in sorted(folder.glob("*.json")):
        with found.tolerating(path):
            calls.append(_object(path, planned.CALL))
    return max(calls, key=lambda call: str(call.get("called_at")), default={})


def _snapshot(value: Row) -> Row:
    row: Row = {name: text(value.get(name)) for name in ("code_hash", "git_sha", "git_diff", "created_at")}
    dirty = value.get("dirty")
    return {**row, "dirty": None if dirty is None else bool(dirty)}


def _add_run(found: Survey, run: RunFolder) -> None:
    attempts = run.attempts()
    state = run_state(run, attempts=attempts)
    if state.state not in ENDED:
        found.changed[found.name(run.path)] = UNSETTLED
    found.bad.extend((found.name(path), reason) for info in attempts for path, reason in info.bad)
    limits = owned_until(attempts)
    for info in attempts:
        found.tables["attempts"].append(_attempt(found, run.run_id, info, limits[info.number]))
        found.row_files.extend(_row_files(found, run.run_id, info, _is_closed(info, attempts, state)))
    done: Row = {}
    with found.tolerating(run.path / "DONE.json"):
        value = run.done() or {}
        done = {name: convert(value.get(name)) for name, convert in _FINAL.items()}
    with found.tolerating(run.path / "decode.json"):
        found.tables["decode"].extend(_decode(run.run_id, read_json(run.path / "decode.json") or {}))
    with found.tolerating(run.path / "lengths.json"):
        found.tables["lengths"].extend(_lengths(run.run_id, read_json(run.path / "lengths.json") or {}))
    with found.tolerating(run.path / "spec.json"):
        found.tables["runs"].append({**_spec(run.spec()), "run_id": run.run_id, **_state(state), **done})


def _decode(run_id: str, value: Row) -> Iterator[Row]:
    for row in value.get("rows", []):
        yield {
            "run_id": run_id,
            **{name: integer(row[name]) for name in ("batch", "prompt", "new", "cache_bytes", "cache_bytes_counted")},
            **{name: real(row[name]) for name in ("prefill_s", "token_s", "tokens_per_s")},
            "device": text(value.get("device")),
            "measured_at": text(value.get("measured_at")),
        }


def _lengths(run_id: str, value: Row) -> Iterator[Row]:
    for row in value.get("rows", []):
        yield {
            "run_id": run_id,
            "context": integer(value["context"]),
            "scaling": text(row["scaling"]),
            **{name: integer(row[name]) for name in ("start", "stop")},
            "loss": real(row["loss"]),
            "measured_at": text(value.get("measured_at")),
        }


_FINAL = {
    **dict.fromkeys(
        ("train_loss", "val_loss", "val_perplexity", "val_bits_per_byte", "wall_s", "tokens_per_s"),
        real,
    ),
    "peak_memory_bytes": integer,
    "weights_sha256": text,
    "finished_at": text,
}


def _spec(spec: Row) -> Row:
    account, data = _section(spec, "account"), _section(spec, "data")
    return {
        "group_id": text(spec.get("group_id")),
        "seed": integer(spec.get("seed")),
        **{name: integer(account.get(name)) for name in ("steps", "params", "params_non_embedding", "tokens")},
        **{name: real(account.get(name)) for name in ("flops_per_token", "train_flops", "kv_bytes_per_token")},
        "data_name": text(data.get("name")),
        "data_fingerprint": text(data.get("fingerprint")),
        "tokenizer": text(data.get("tokenizer")),
        "vocab": integer(data.get("vocab")),
        "train_tokens": integer(data.get("train_tokens")),
        "bytes_per_token": real(data.get("bytes_per_token")),
        "config": document(_section(spec, "config")),
        "account": document(account),
    }


def _section(value: Mapping[str, Any], name: str) -> Row:
    section = value.get(name)
    if not isinstance(section, dict):
        raise TypeError(f"{name!r} is not an object")
    return section


def _state(state: RunState) -> Row:
    return {"state": str(state.state), "kind": state.kind, "step": integer(state.step), "attempts": state.attempts}


def _attempt(found: Survey, run_id: str, info: AttemptInfo, until_step: int | None) -> Row:
    """What rows need to be owned is always there; of the rest what each file can say."""
    row: Row = {"run_id": run_id, "attempt": info.number, "resume_step": info.resume_step, "until_step": until_step}
    for name, content in (("claim", info.claim), ("start", info.start), ("exit", info.exit)):
        with found.tolerating(info.path / f"{name}.json"):
            row |= {column: convert((content or {}).get(column)) for column, convert in _SAID[name].items()}
    return row


_SAID: dict[str, dict[str, Callable[[Any], Any]]] = {
    "claim": {**dict.fromkeys(("host", "job", "code_hash", "claimed_at"), text), "pid": integer},
    "start": {"started_at": text, "env": document},
    "exit": dict.fromkeys(("ended_at", "reason", "kind", "error"), text),
}


def _is_closed(info: AttemptInfo, attempts: list[AttemptInfo], state: RunState) -> bool:
    newest = info.number == attempts[-1].number
    return info.exit is not None or not newest or state.state not in (State.RUNNING, State.UNKNOWN)


def _row_files(found: Survey, run_id: str, info: AttemptInfo, ended: bool) -> Iterator[RowFile]:
    owner = str((info.claim or {}).get("owner"))
    for kind in COLUMNS:
        path = info.path / f"{kind}.csv"
        if path.is_file():
            yield RowFile(found.name(path), path, kind, run_id, info.number, owner, ended)
        elif os.path.lexists(path):
            found.bad.append((found.name(path), "not a regular file"))
