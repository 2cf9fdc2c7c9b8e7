"""Plans as they are stored: what is compared in one file, the specs of all runs in another.

A run has no folder until somebody begins it, so that a plan of 10,000 runs is two files, not 10,000 folders.
"""

import contextlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from results.files import UNREADABLE, BadFile, encode_json, read_bytes, read_json, write_bytes
from results.home import Home
from results.record import RunFolder
from results.shapes import RUN_ID

log = logging.getLogger(__name__)

SPECS = "specs.jsonl"
LARGEST_SPECS = 1 << 30
# What `lab sweep` notes of each call of a plan.
CALL = {
    "called_at?": str,
    "code_hash?": str | None,
    "command?": [str],
    "granted?": {...: int},
    "avoided?": [{"name": str, "failures": int, "example": str}],
}
_RUN = {"run_id": RUN_ID, "arm": str, "seed": int, "steps": int, "train_flops": float}
_PLAN = {"sweep": str, "plan_id": str, "scale": str | None, "stage?": str | None, "tuning?": str | None, "runs": [_RUN]}


def write(plan_folder: Path, specs: Iterable[Mapping[str, Any]]) -> None:
    """Store the specs of a plan, one line each, durably."""
    plan_folder.mkdir(parents=True, exist_ok=True)
    write_bytes(plan_folder / SPECS, "".join(encode_json(spec, indent=None) for spec in specs).encode())


def plan(plan_folder: Path) -> dict[str, Any] | None:
    """The content of plan.json, None if there is none; BadFile if it is torn or no plan."""
    return read_json(plan_folder / "plan.json", _PLAN)


def at_scale(sweep: str, scale: str | None) -> str:
    """`sweep@scale`, or the sweep alone."""
    return f"{sweep}@{scale}" if scale else sweep


def is_meant(name: str, sweep: str, scale: str | None, plan_id: str) -> bool:
    """Whether a person may call this plan `name`: SWEEP, SWEEP@SCALE or SWEEP/PLAN (or how the id of PLAN begins)."""
    before, _, prefix = name.rpartition("/")
    return name in (sweep, at_scale(sweep, scale)) or (bool(prefix) and before == sweep and plan_id.startswith(prefix))


def specs(plan_folder: Path) -> dict[str, dict[str, Any]]:
    """{run_id: spec} of a plan; empty when it has none. Raises BadFile."""
    lines = _spec_lines(plan_folder)
    try:
        return {spec["run_id"]: spec for spec in map(json.loads, lines)}
    except UNREADABLE as error:
        raise BadFile(plan_folder / SPECS, f"not a list of specs: {error}") from None


def readable_specs(plan_folder: Path) -> dict[str, dict[str, Any]]:
    """Likewise, of a damaged file those lines that can be read; it is named in a warning."""
    try:
        return specs(plan_folder)
    except BadFile as error:
        log.warning("%s; the next `lab sweep` writes it again", error)
    found: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(BadFile):
        for line in _spec_lines(plan_folder):
            with contextlib.suppress(*UNREADABLE):
                spec = json.loads(line)
                found[spec["run_id"]] = spec
    return found


def _spec_lines(plan_folder: Path) -> list[bytes]:
    return (read_bytes(plan_folder / SPECS, LARGEST_SPECS) or b"").splitlines()


def all_specs(home: Home) -> dict[str, dict[str, Any]]:
    """{run_id: spec} over all plans of a home, as far as they can be read."""
    found: dict[str, dict[str, Any]] = {}
    for path in home.sweeps.glob(f"*/*/{SPECS}"):
        found |= readable_specs(path.parent)
    return found


def begin(run: RunFolder, spec: Mapping[str, Any] | None) -> None:
    """Make the folder of a planned run, if it has none. Raises FileNotFoundError when its plan has no spec either."""
    if (run.path / "spec.json").exists():
        return
    if spec is None:
        raise FileNotFoundError(f"run {run.run_id} has no spec: call `lab sweep` again")
    run.create(spec)
