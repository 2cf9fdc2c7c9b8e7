"""A run of several processes is one attempt: rank 0 claims, writes and is signalled; the others only compute."""

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from lmcore import parallel
from sweeps.hang import Leave, StopAsked, watched
from sweeps.signals import REASONS, die_with_parent

log = logging.getLogger("lab")

Result = TypeVar("Result")
Task = Callable[[int, str], Result]

END_WAIT_S = 10.0  # for the other ranks to leave after rank 0 is done


class RankDied(RuntimeError):
    """Another process of this run ended before its time."""


def in_ranks(size: int, task: Task[Result], stop_asked: StopAsked, leave: Leave) -> Result:
    """Call `task(rank, device)` in `size` processes that have joined, forked from this one; returns rank 0's result.

    `leave(reason)` is called instead, and must end this process, where one of them hangs and there is a reason to stop.
    Raises RankDied when another rank failed. One that was killed takes rank 0 with it: the run is then LOST, as if its
    one process had been killed, and goes on from its checkpoint.
    """
    if size == 1:
        return task(0, device_of(0, 1))
    meeting = Path(tempfile.mkdtemp(prefix="lab-ranks-"))
    pids = [_fork(rank, size, meeting / "ranks", task) for rank in range(1, size)]

    def leave_clean(reason: str) -> None:
        shutil.rmtree(meeting, ignore_errors=True)
        leave(reason)

    try:
        with watched(stop_asked, leave_clean):
            result = _join(0, size, meeting / "ranks", task)
    except BaseException as error:
        if code := _end(pids, wait_s=1.0):
            raise RankDied(f"another process of the run ended with exit code {code}") from error
        raise
    finally:
        shutil.rmtree(meeting, ignore_errors=True)
    _end(pids, END_WAIT_S)
    return result


def device_of(rank: int, size: int) -> str:
    """The GPU of a rank, of those that this run may see; the CPU where there are too few."""
    if not torch.cuda.is_available() or torch.cuda.device_count() < size:
        return "cpu"
    return "cuda" if size == 1 else f"cuda:{rank}"


def _join(rank: int, size: int, meeting: Path, task: Task[Result]) -> Result:
    device = device_of(rank, size)
    with parallel.joined(rank, size, meeting, device):
        return task(rank, device)


def _fork(rank: int, size: int, meeting: Path, task: Task[Result]) -> int:
    """The pid of a new process that does its part and ends. Only rank 0 listens to signals."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in REASONS:
            signal.signal(number, signal.SIG_IGN)
        die_with_parent(parent, signal.SIGKILL)
        _join(rank, size, meeting, task)
        code = 0
    except BaseException:
        log.exception("rank %d failed", rank)
    finally:
        os._exit(code)


def _end(pids: list[int], wait_s: float) -> int:
    """Wait for the other ranks, then kill those left; the exit code of one that failed by itself, or 0."""
    deadline, failed = time.monotonic() + wait_s, 0
    for pid in pids:
        while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.02)
        if not ended[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            continue
        code = os.waitstatus_to_exitcode(ended[1])
        if code == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)
        failed = failed or code
    return failed
