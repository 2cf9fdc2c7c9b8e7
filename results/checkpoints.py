"""Checkpoints on disk: blobs first, manifest last, then one rename. What is there is whole."""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from results.files import (
    BadFile,
    encode_json,
    fsync_folder,
    naming_full_disk,
    read_bytes,
    read_json,
    safe_name,
    write_new,
)
from results.shapes import count

MANIFEST = "manifest.json"
_STEP = re.compile(r"step_([0-9]{8,18})")
_LEFTOVER = re.compile(r"\.(doomed|[0-9]{4,9})\.[0-9a-f]{32}")
_SHAPE = {"step": int, "files": {...: {"bytes": int, "sha256": str}}}


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` updates lies."""
    return folder / f"step_{step:08d}"


def steps(folder: Path) -> list[int]:
    """Steps that have a manifest, sorted."""
    if not folder.is_dir():
        return []
    found = [_STEP.fullmatch(path.name) for path in folder.iterdir() if (path / MANIFEST).is_file()]
    return sorted(int(match[1]) for match in found if match)


def writer(folder: Path, step: int) -> int | None:
    """The attempt that wrote this checkpoint; None if its manifest cannot say."""
    try:
        return count((read_json(step_folder(folder, step) / MANIFEST) or {}).get("attempt"))
    except BadFile:
        return None


def load(folder: Path, step: int) -> dict[str, bytes]:
    """Blobs of one checkpoint by name; BadFile unless each has the size and SHA-256 that the manifest says."""
    source = step_folder(folder, step)
    manifest = read_json(source / MANIFEST, _SHAPE)
    if manifest is None:
        raise BadFile(source, "no manifest")
    if manifest["step"] != step or not manifest["files"]:
        raise BadFile(source / MANIFEST, "not the manifest of this checkpoint")
    return {name: _verified(source, name, claimed) for name, claimed in manifest["files"].items()}


def verifies(folder: Path, step: int) -> bool:
    """Whether the checkpoint of this step is whole, by its hashes."""
    try:
        load(folder, step)
    except (BadFile, ValueError, OSError):
        return False
    return True


def save(
    folder: Path, step: int, attempt: int, blobs: Mapping[str, bytes], keep_existing: bool, guard: Callable[[], None]
) -> None:
    """Store a checkpoint durably. `guard` is called just before the rename and may raise to stop it.

    With `keep_existing`, a verifying checkpoint of the same step stays and ours is dropped.
    """
    private = folder / f".{attempt:04d}.{uuid4().hex}"
    target = step_folder(folder, step)
    with naming_full_disk(folder):
        folder.mkdir(exist_ok=True)  # without its parents: a run that somebody deleted is not made again
        private.mkdir()
    try:
        _fill(private, step, attempt, blobs)
        guard()
        if keep_existing and verifies(folder, step):
            return
        if target.exists():
            discard(target)
        private.rename(target)
        fsync_folder(folder)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def discard(target: Path) -> None:
    """Delete a checkpoint so that a kill half way leaves no half checkpoint under its real name."""
    doomed = target.with_name(f".doomed.{uuid4().hex}")
    target.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def prune(folder: Path, kept: Iterable[int]) -> None:
    """Delete every checkpoint except those of the `kept` steps."""
    for step in set(steps(folder)) - set(kept):
        discard(step_folder(folder, step))


def sweep_leftovers(folder: Path, attempt: int) -> None:
    """Delete what attempts before this one left unfinished when they were killed."""
    for path, writer in leftovers(folder):
        if writer is None or writer < attempt:
            shutil.rmtree(path, ignore_errors=True)


def leftovers(folder: Path) -> Iterator[tuple[Path, int | None]]:
    """Folders that are not, or no longer, checkpoints, each with the attempt that wrote it, None when it was doomed.

    Other hidden names, such as a file manager leaves, are not ours.
    """
    for path in folder.glob(".*"):
        if match := _LEFTOVER.fullmatch(path.name):
            yield path, None if match[1] == "doomed" else int(match[1])


def _fill(private: Path, step: int, attempt: int, blobs: Mapping[str, bytes]) -> None:
    files: dict[str, Any] = {}
    total = sum(len(data) for data in blobs.values())
    with naming_full_disk(private, total):
        for name, data in blobs.items():
            if safe_name(name) == MANIFEST:
                raise ValueError(f"a blob cannot be called {MANIFEST}")
            write_new(private / name, data)
            files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest = {"step": step, "attempt": attempt, "files": files}
        write_new(private / MANIFEST, encode_json(manifest).encode())
        fsync_folder(private)


def _verified(source: Path, name: str, claimed: Mapping[str, Any]) -> bytes:
    path = source / safe_name(name)
    data = read_bytes(path, limit=claimed["bytes"])
    if data is None:
        raise BadFile(path, "missing")
    if len(data) != claimed["bytes"]:
        raise BadFile(path, f"has {len(data)} bytes, not what the manifest says")
    if hashlib.sha256(data).hexdigest() != claimed["sha256"]:
        raise BadFile(path, "SHA-256 differs from the manifest")
    return data
