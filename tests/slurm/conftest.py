"""The `slurm` fixture: a running test cluster, or a skip that says how to get one."""

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.slurm import cluster
from tests.user import User


def _use_cluster() -> str | None:
    """Point SLURM_CONF at a running test cluster; the reason why not when there is none."""
    if "SLURM_CONF" not in os.environ:
        if not cluster.alive():
            return f"no SLURM in {cluster.folder()}: `make slurm-up` starts one (root, slurm-wlm, munge)"
        os.environ["SLURM_CONF"] = str(cluster.conf_path())
    # These tests requeue and preempt. On a shared cluster that happens to be configured here they have no business.
    if cluster.cluster_name(Path(os.environ["SLURM_CONF"])) != cluster.CLUSTER_NAME:
        return f"SLURM_CONF={os.environ['SLURM_CONF']} is not a cluster of tests/slurm/cluster.py, or does not answer"
    return None


@pytest.fixture(scope="session")
def slurm() -> None:
    """A one-node SLURM with the partitions `main` and `urgent`; without one skip, or fail if LAB_REQUIRE_SLURM=1."""
    reason = _use_cluster()
    if reason is None:
        return
    if os.environ.get("LAB_REQUIRE_SLURM") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _alone_on_the_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """The marker `slurm` brings the cluster, and one test at a time: a preemption would hit another test's job."""
    if request.node.get_closest_marker("slurm") is None:
        yield
        return
    request.getfixturevalue("slurm")
    # A lock on a file, because xdist's workers are processes.
    with Path(os.environ["SLURM_CONF"]).with_name("test.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if cluster.alive():
            cluster.bring_back()
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what the cluster says: whether it or we were at fault."""
    report = yield
    if report.failed and item.get_closest_marker("slurm") and cluster.alive():
        report.sections.append(("the cluster", cluster.log_tails()))
    return report


@pytest.fixture
def place() -> Iterator[Path]:
    """Jobs are killed within seconds of their end here; a folder of our own outlives them."""
    with tempfile.TemporaryDirectory(prefix="lab-sweep-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def user(place: Path) -> Iterator[User]:
    someone = User(place / "home")
    yield someone
    for path in [p for kind in ("submissions", "advances") for p in someone.home.glob(f"sweeps/*/*/{kind}/*.json")]:
        subprocess.run(["scancel", "--signal=KILL", "--full", "--name", path.stem], capture_output=True)
        subprocess.run(["scancel", "--name", path.stem], capture_output=True)
