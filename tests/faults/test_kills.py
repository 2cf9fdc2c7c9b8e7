"""Kills at scale: `LAB_KILLS` times kill -9 at random moments, then everything must be as if nothing had happened.

`make kills` does 200. The same over a real SLURM, daemons among the victims: `tests/slurm/test_kills.py`.
"""

import os
from pathlib import Path

import pytest

from tests.faults.conftest import MakeSweep
from tests.kills import assert_nothing_lost, storm
from tests.user import PATIENCE, User

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("LAB_KILLS", "12"))


def test_everything_is_killed_at_random_and_nothing_is_lost(tmp_path: Path, make_sweep: MakeSweep) -> None:
    path = make_sweep(seeds=4, steps=500 * KILLS, save_every=200)
    command = ["sweep", str(path), "--yes", "-j", "2"]
    calm, user = User(tmp_path / "calm"), User(tmp_path / "home")
    calm.lab(*command, timeout=PATIENCE * (60 + 12 * KILLS))
    print("\n" + storm(user, "tiny", command, KILLS))
    assert_nothing_lost(user, calm, "tiny", rows_per_run=20)
