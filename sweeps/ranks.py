"""A run of several processes is one attempt: rank 0 claims, writes and is signalled; the others only compute."""

import contextlib
import logging
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from lmcore import parallel
from sweeps.signals import REASONS, die_with_parent

log = logging.getLogger("lab")

Result = TypeVar("Result")
Task = Callable[[int, str], Result]

END_WAIT_S = 10.0  # for the other ranks to leave after rank 0 is done
HUNG_AFTER_S = 8.0  # without the end of a step, if that is more than three times the longest one before
HANG_LOOK_S = 0.5


class RankDied(RuntimeError):
    """Another process of this run ended before its time."""


class HangWatch:
    """Kills rank 0, and so all, where a stop was asked for and no step ends: while another rank hangs nobody hears it.

    The run is then LOST, as if it had been killed, and goes on from its checkpoint. `asked`: the reason to stop, or
    None.
    """

    def __init__(self, asked: Callable[[], str | None]) -> None:
        self.asked = asked
        self.last_step_ended, self.longest_step = time.monotonic(), 0.0  # seconds
        self.is_paused = False

    @contextlib.contextmanager
    def watching(self, size: int) -> Iterator[None]:
        """Within this a thread watches a run of `size` processes; one alone needs no watch."""
        if size == 1:
            yield
            return
        # Python runs no handler while the main thread waits in a collective; only this pipe tells of a signal then.
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(told,), daemon=True).start()
        try:
            yield
        finally:
            self.is_paused = True  # what is left is not training
            signal.set_wakeup_fd(-1)

    def step_ended(self) -> None:
        """To be called between two steps; what lies between them, an evaluation for one, counts with them."""
        now = time.monotonic()
        self.last_step_ended, self.longest_step = now, max(self.longest_step, now - self.last_step_ended)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within this rank 0 works alone, however long that takes."""
        self.is_paused = True
        yield
        self.is_paused = False
        self.last_step_ended = time.monotonic()

    def _watch(self, told: int) -> None:
        asked_at: float | None = None
        while True:
            has_signal = bool(select.select([told], [], [], HANG_LOOK_S)[0]) and os.read(told, 1)[0] in REASONS
            if asked_at is None and (has_signal or self.asked()):
                asked_at = time.monotonic()
            if asked_at is None or self.is_paused:
                continue
            silent = time.monotonic() - max(asked_at, self.last_step_ended)
            if silent > max(HUNG_AFTER_S, 3 * self.longest_step):
                log.error("no step has ended for %.0f s: another process of the run hangs", silent)
                os.kill(os.getpid(), signal.SIGKILL)


def in_ranks(size: int, task: Task[Result]) -> Result:
    """Call `task(rank, device)` in `size` processes that have joined, forked from this one; returns rank 0's result.

    Raises RankDied when another rank failed. One that was killed takes rank 0 with it: the run is then LOST, as if its
    one process had been killed, and goes on from its checkpoint.
    """
    if size == 1:
        return task(0, device_of(0, 1))
    meeting = Path(tempfile.mkdtemp(prefix="lab-ranks-"))
    pids = [_fork(rank, size, meeting / "ranks", task) for rank in range(1, size)]
    try:
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
