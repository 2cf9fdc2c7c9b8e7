"""Site limits: the size of arrays, the number of queued jobs, the throttle."""

import re
import time

import pytest

from tests.fake_slurm import Cluster
from tests.faults.conftest import ON_SLURM, MakeSweep
from tests.user import User, wait_until


def indices(cluster: Cluster) -> list[tuple[int, int]]:
    """(largest index, throttle) of every array that was asked for."""
    found = []
    for arguments in cluster.calls("sbatch"):
        text = open(arguments[-1]).read()  # noqa: PTH123, SIM115
        if match := re.search(r"--array=0-(\d+)%(\d+)", text):
            found.append((int(match[1]), int(match[2])))
    return found


@pytest.mark.slow
def test_2500_runs_under_a_small_limit_all_run_once(user: User, cluster: Cluster, make_sweep: MakeSweep) -> None:
    cluster.set(nodes={"n1": 2, "n2": 2}, max_array_size=1001, max_submit=500)
    began = time.monotonic()
    user.lab("sweep", str(make_sweep(seeds=2500, steps=1)), *ON_SLURM, "-j", "4", "--no-wait")
    print(f"submitted in {time.monotonic() - began:.1f} s")
    wait_until(lambda: len(list(user.home.glob("runs/*/DONE.json"))) == 2500, "2,500 runs", 900, every=2)
    print(f"done after {time.monotonic() - began:.1f} s")
    assert set(user.attempts().values()) == {1}
    assert cluster.order()["most_running"] <= 4
