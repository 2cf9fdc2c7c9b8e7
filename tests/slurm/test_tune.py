"""A tuned sweep and a search on a real scheduler, with nobody on the login node between the stages."""

import subprocess
from pathlib import Path

import pytest

from tests.sweeps import searches, tuned
from tests.sweeps.test_search import check_is_sound as check_search
from tests.sweeps.test_search import search
from tests.sweeps.test_tune import check_is_sound
from tests.user import User, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_the_stages_advance_and_a_lost_job_is_repaired_by_calling_again(
    user: User, place: Path, text_file: Path
) -> None:
    path = tuned.write(place, text_file, tuned.BELOW, steps=300, every=100)
    command = ["sweep", str(path), "--cluster", "slurm", "--yes", "-j", "2", "--no-wait"]
    user.lab(*command)
    first = next(user.home.glob("sweeps/*/*/advances/*.json"))
    assert "goes on when this stage has ended" in user.lab("status", "gate").stdout
    subprocess.run(["scancel", "--name", first.stem], check=True)
    wait_until(lambda: set(user.states("gate")) == {"DONE"}, "the tuning runs", 120, every=1)
    assert "`lab sweep` goes on from here" in user.lab("status", "gate").stdout
    user.lab(*command)

    def over() -> bool:
        told = user.json("status", "gate")
        return bool(told["stage"] == "verdict" and set(told["counts"]) == {"DONE"})

    wait_until(over, "all stages", 180, every=1)
    assert check_is_sound(user) == ["tune", "verdict", "widen"]
    assert user.json("verdict", "gate")["arms"][-1]["verdict"] == "invalid"


def test_a_search_runs_on_a_real_scheduler(user: User, place: Path, text_file: Path) -> None:
    path = searches.write(place, text_file)
    found = search(user, path, 6, "--cluster", "slurm", "-j", "2")
    assert [row["state"] for row in found["results"]] == ["DONE"] * 6
    check_search(user, 6)
    jobs = {row["job"] for row in user.json("sql", "SELECT job FROM attempts")}
    assert all(str(job).partition("_")[0].isdigit() for job in jobs)
