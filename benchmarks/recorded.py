"""Ratios of earlier measurements, and what got worse since: `recorded.json`, one entry per benchmark.

A ratio is our time over another's in the same run, so smaller is better and the machine's speed falls out.
"""

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("recorded.json")
TOLERATED = 1.15


def record(name: str, ratios: Mapping[str, float], machine: str) -> None:
    """Keep `ratios` as what later measurements are compared with."""
    entry = {"date": datetime.date.today().isoformat(), "machine": machine}
    entries = _entries() | {name: entry | {"ratios": {key: round(value, 3) for key, value in ratios.items()}}}
    FILE.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")


def worse(name: str, ratios: Mapping[str, float]) -> list[str]:
    """A line for each ratio that is more than 15 % above the recorded one."""
    entry = _entries().get(name)
    if entry is None:
        return [f"{name}: nothing recorded to compare with"]
    before = entry["ratios"]
    return [
        f"{name}: {key} was {before[key]:.2f} on {entry['date']} ({entry['machine']}), is {value:.2f}"
        for key, value in ratios.items()
        if key in before and value > TOLERATED * before[key]
    ]


def _entries() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found
