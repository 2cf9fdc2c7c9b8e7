"""Numbers to meet that lie beside a checkout; tests that read them skip where they are absent."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("LAB_SHARED", Path(__file__).parents[2] / "shared"))


def case(name: str) -> Any:
    """The content of a JSON file of cases; skips the test without it."""
    path = SHARED / "cases" / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return json.loads(path.read_text())
