"""A search on SLURM: the same workers, jobs that are lost, a controller that is killed."""

import time
from pathlib import Path

import pytest

from tests.fake_slurm import Cluster
from tests.sweeps.searches import write
from tests.sweeps.test_search import check_is_sound, search
from tests.user import User, wait_until

pytestmark = pytest.mark.slow


def test_a_search_runs_on_slurm_and_outlives_its_controller(
    user: User, cluster: Cluster, tmp_path: Path, text_file: Path
) -> None:
    cluster.set(nodes={"n1": 1, "n2": 1})
    path = write(tmp_path, text_file, steps=400, every=50)
    command = ["search", str(path), "--trials", "12", "--cluster", "slurm", "--yes", "-j", "2"]
    controller = user.start(*command)
    wait_until(lambda: len(list(user.home.glob("runs/*/DONE.json"))) >= 2, "two trials", 120)
    controller.kill()
    controller.wait()
    user.kill_workers()
    time.sleep(1)
    answer = search(user, path, 12, "--cluster", "slurm", "-j", "2")
    assert [row["state"] for row in answer["results"]] == ["DONE"] * 12
    check_is_sound(user, 12)
    wait_until(lambda: not user.worker_pids(), "workers that leave when the search is over", 30)
