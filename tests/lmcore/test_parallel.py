"""A run shared by two processes is the same run: losses, checkpoints in either direction, one record."""

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from lmcore import parallel
from lmcore.config import ConfigError, RunConfig, replace
from lmcore.data import TokenData
from lmcore.train import Silent, train
from sweeps.ranks import RankDied, in_ranks
from tests.lmcore.test_train import RUN, Memory, numbers, tokens

__all__ = ["tokens"]

FORKS = get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

TWO = replace(RUN, {"train.processes": 2, "train.steps": 16, "train.telemetry_every": 8})
ONE = replace(TWO, {"train.processes": 1})
CHANGES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp, micro-batches": {"train.micro_batch": 2},
    "ddp, tied, learned": {"model.tied": True, "model.position": "learned"},
    "ddp, muon": {"train.optimizer": "muon"},
    "fsdp": {"train.sharding": "fsdp"},
    "fsdp, micro-batches": {"train.sharding": "fsdp", "train.micro_batch": 2},
    "fsdp, tied, learned": {"train.sharding": "fsdp", "model.tied": True, "model.position": "learned"},
}


def alone(config: RunConfig) -> RunConfig:
    return replace(config, {"train.processes": 1, "train.sharding": "ddp"})


def in_child(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` gives, in a process without threads: ranks are forked, in a worker too, before torch starts any."""
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:
        return pool.submit(work, *arguments).result()


def run_together(config: RunConfig, data: TokenData, resume: Any = None, stop_at: int | None = None) -> Memory:
    """The sink of rank 0 after a run of `config.train.processes` processes."""
    memory: Memory = in_child(ranks_train, config, data, resume, stop_at)
    return memory


def nothing(*_: object) -> None:
    return None


UNWATCHED = (nothing, nothing)  # nobody asks it to stop


def ranks_train(config: RunConfig, data: TokenData, resume: Any, stop_at: int | None) -> Memory:
    def task(rank: int, device: str) -> Memory:
        sink = Memory(stop_at)
        train(config, data, sink if rank == 0 else Silent(), resume=resume, device="cpu")
        return sink

    return in_ranks(config.train.processes, task, *UNWATCHED)


def close(a: list[dict[str, Any]], b: list[dict[str, Any]], within: float = 1e-5) -> bool:
    """Equal steps, and losses."""
    same = [row["step"] for row in a] == [row["step"] for row in b]
    return same and all(math.isclose(x["loss"], y["loss"], abs_tol=within) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", CHANGES)
def test_two_processes_train_what_one_does(name: str, tokens: TokenData) -> None:
    config = replace(TWO, CHANGES[name])
    one, two = (run_together(c, tokens) for c in (alone(config), config))
    # Muon orthogonalises in bf16, where the last bit of a gradient may become a step of 2^-8.
    within = 5e-3 if config.train.optimizer == "muon" else 1e-5
    assert close(one.rows, two.rows, within)
    assert close(one.evals, two.evals, within)
    assert [row["tokens"] for row in one.rows] == [row["tokens"] for row in two.rows]
    assert {row["name"] for row in one.telemetry} == {row["name"] for row in two.telemetry}
    assert one.checkpoints.keys() == two.checkpoints.keys()
    again = run_together(config, tokens)
    assert numbers(again.rows) == numbers(two.rows), "bit for bit"


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_checkpoint_loads_in_either_number_of_processes(sharding: str, tokens: TokenData) -> None:
    two = replace(TWO, {"train.sharding": sharding})
    one = alone(two)
    whole = run_together(one, tokens)
    for first, second in ((one, two), (two, one), (two, two)):
        stopped = run_together(first, tokens, stop_at=6)
        assert list(stopped.checkpoints) == [6], "all ranks stop at the same step"
        rest = run_together(second, tokens, resume=stopped.checkpoints[6])
        assert close(whole.rows, stopped.rows + rest.rows)


def test_a_rank_that_fails_ends_the_run_with_its_reason() -> None:
    with pytest.raises(RankDied, match="exit code 1"):
        in_child(in_ranks, 2, second_fails, *UNWATCHED)


def second_fails(rank: int, device: str) -> None:
    if rank == 1:
        raise MemoryError("no more")
    parallel.team().total(torch.zeros(1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.processes": 3}, "cannot be shared by 3"),
        ({"train.processes": 2, "train.micro_batch": 4}, "a process has 4 sequences"),
        ({"train.sharding": "fsdp"}, "no effect with one process"),
        ({"train.processes": 2, "train.sharding": "fsdp", "train.optimizer": "muon"}, "whole matrices"),
        ({"train.processes": 2, "train.sharding": "fsdp", "train.precision": "bf16_weights"}, "masters"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(RUN, changes)
