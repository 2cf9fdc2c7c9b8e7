"""A user in front of a fake cluster, and sweeps that are small, slow or bound to fail."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake_slurm import Cluster, possible
from tests.user import User

EVERYTHING = os.environ.get("LAB_FAULTS") == "all"  # not only as much as fits into the usual check
ON_SLURM = ["--cluster", "slurm", "--yes", "--no-report"]

TINY = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

BASE = replace(RunConfig(), {"data.path": %(text)r, "data.tokenizer": "byte", "model.d_model": 8, "model.n_layer": 1,
    "model.n_head": 1, "model.context": 8, "train.batch": 2, "train.steps": %(steps)d, "train.eval_sequences": 4,
    "train.log_every": %(log_every)d, "train.eval_every": 1000000, "train.checkpoint_every": %(save_every)d})

def sweep():
    return Sweep("Does it end?", %(arms)s, base=BASE, seeds=%(seeds)d)
"""

MakeSweep = Callable[..., Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here takes processes and patience."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("slow")


@pytest.fixture
def make_sweep(tmp_path: Path, text_file: Path) -> MakeSweep:
    """Write a sweep file: tiny runs of `steps` steps; `arms` is Python source."""

    def make(
        name: str = "tiny", arms: str = "{'a': {}}", seeds: int = 1, steps: int = 3, save_every: int = 10**6
    ) -> Path:
        path = tmp_path / f"{name}.py"
        log_every = max(1, steps // 20)
        path.write_text(TINY % {**locals(), "text": str(text_file)})
        return path

    return make


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if not possible():
        pytest.skip("host names for processes need root and unshare")
    found = Cluster()
    yield found
    found.close()


@pytest.fixture
def user(tmp_path: Path, cluster: Cluster) -> Iterator[User]:
    """Somebody whose SLURM is the fake one."""
    someone = User(tmp_path / "home", cluster.environment)
    yield someone
    someone.kill_workers()
