"""One attempt at one run: claim it, resume it, train it, and say how it ended. Runs in a child process of a worker."""

import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch._dynamo  # every optimiser loads it, for seconds: once here in the worker, not again in each child

from lmcore import checkpoint, data
from lmcore.checkpoint import Blobs
from lmcore.config import read_config
from lmcore.train import Outcome, Silent, train
from results import planned
from results.files import full_disk_code
from results.home import Home
from results.record import BEAT_EVERY_S, Attempt, RunFolder, Superseded
from sweeps import environment
from sweeps.exits import DISK_FULL, ENDED, FAILED, NO_ENVIRONMENT, NOT_CLAIMED
from sweeps.ranks import in_ranks
from sweeps.signals import StopFlag

log = logging.getLogger("lab")

CODES = {"disk": DISK_FULL, "env": NO_ENVIRONMENT}  # by kind of failure
LOOK_EVERY_S = 0.5  # how often the loop looks for a cancel request


class RecordSink:
    """The sink that writes a run folder, and the voice that stops the run."""

    def __init__(self, attempt: Attempt, flag: StopFlag, deadline: float | None, step: int) -> None:
        self.attempt, self.flag, self.deadline, self.step = attempt, flag, deadline, step
        self.looked = 0.0

    def beat_on(self) -> None:
        """Beat from now on in a thread of its own: a long step, evaluation or save is no silence."""
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # a full disk is met by whoever has rows to write
                self.attempt.beat(self.step)
            time.sleep(BEAT_EVERY_S)

    def train_row(self, row: Mapping[str, float | int]) -> None:
        self.attempt.train_row(row)

    def eval_row(self, row: Mapping[str, float | int | str]) -> None:
        self.attempt.eval_row(row)

    def position_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None:
        self.attempt.position_rows(rows)

    def telemetry_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None:
        self.attempt.telemetry_rows(rows)

    def save_checkpoint(self, step: int, blobs: Blobs) -> None:
        self.attempt.save_checkpoint(step, blobs)
        log.info("checkpoint at step %d", step)

    def stop_reason(self, step: int) -> str | None:
        """The first reason to stop, or None. Being superseded ends the attempt at once, without a checkpoint."""
        self.step = step
        if self.attempt.superseded():
            raise Superseded(f"attempt {self.attempt.number} of run {self.attempt.run.run_id}")
        if not self.flag.reason and time.monotonic() - self.looked < LOOK_EVERY_S:
            return None
        self.looked = time.monotonic()
        return self.stop_asked()

    def stop_asked(self) -> str | None:
        """What a signal, a person or the clock asks for."""
        if self.flag.reason:
            return self.flag.reason
        if self.attempt.run.cancel_requested() and (asked := self.attempt.run.stop_request()):
            return asked
        return "time_limit" if self.deadline is not None and time.time() > self.deadline else None

    def leave(self, reason: str) -> None:
        """End this process at once, for another of the run hangs; the run goes on from its last checkpoint."""
        log.error("nothing of this run computes any more, and it is to stop (%s): a process hangs", reason)
        with contextlib.suppress(OSError):
            self.attempt.finish(reason, step=self.step)
        os._exit(ENDED)


def attempt_run(
    home: Home,
    run: RunFolder,
    owner: Mapping[str, object],
    flag: StopFlag,
    deadline: float | None,
    after: int,
    spec: Mapping[str, object] | None,
) -> int:
    """Claim `run` and train it to its end; returns the exit code. NOT_CLAIMED: somebody else was first.

    `after` is the number of attempts the run had when it was found claimable, `spec` what its plan says it is.
    """
    try:
        planned.begin(run, spec)
        attempt = run.claim(owner, after=after)
    except OSError as error:
        log.error("run %s cannot be claimed: %s", run.run_id, error)
        return CODES.get(kind_of(error), FAILED)
    if attempt is None:
        return NOT_CLAIMED
    return _run_claimed(home, run, attempt, flag, deadline)


def _run_claimed(home: Home, run: RunFolder, attempt: Attempt, flag: StopFlag, deadline: float | None) -> int:
    try:
        _log_into(attempt.path / "log.txt")
        outcome, device = _train(home, run, attempt, flag, deadline)
        return _finish(attempt, outcome, device)
    except Superseded as error:
        log.warning("superseded: %s", error)
        attempt.finish("superseded")
        return ENDED
    except BaseException as error:  # including SystemExit: whatever ends a run early is a failure on the record
        text = traceback.format_exc()
        log.error("%s", text)
        details = {"kind": kind_of(error), "error": f"{type(error).__name__}: {error}", "traceback": text}
        with contextlib.suppress(OSError):  # a full disk may refuse this too; the exit code still tells
            attempt.finish("failed", **details)
        return CODES.get(details["kind"], FAILED)


def _train(home: Home, run: RunFolder, attempt: Attempt, flag: StopFlag, deadline: float | None) -> tuple[Outcome, str]:
    spec = run.spec()
    config = read_config(spec)
    tokens = data.load(data.find(spec["data"]["fingerprint"], home.data))
    step, blobs = run.latest_checkpoint() or (0, None)
    sink = RecordSink(attempt, flag, deadline, step)

    def task(rank: int, device: str) -> tuple[Outcome, str]:
        if rank == 0:
            environment.write_lock(home)
            attempt.start(step, environment.describe(config, device))
            log.info(
                "attempt %d of run %s starts at step %d of %d", attempt.number, run.run_id, step, config.train.steps
            )
            sink.beat_on()
            return train(config, tokens, sink, blobs, device), device
        return train(config, tokens, Silent(), blobs, device), device

    with checkpoint.naming(run.checkpoint_folder(step)):
        return in_ranks(config.train.processes, task, sink.stop_asked, sink.leave)


def _finish(attempt: Attempt, outcome: Outcome, device: str) -> int:
    log.info("%s at step %d (%s)", outcome.ending, outcome.step, outcome.stop_reason or "end")
    if outcome.ending == "done":
        attempt.done(dict(outcome.summary) | {"peak_memory_bytes": environment.peak_memory_bytes(device)})
    elif outcome.ending == "diverged":
        attempt.finish("diverged", step=outcome.step, error="loss or gradient is not finite")
    else:
        attempt.finish(str(outcome.stop_reason), step=outcome.step)
    return ENDED


def kind_of(error: BaseException) -> str:
    """What went wrong, in one word: oom, disk, env or code."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "can't allocate memory" in str(error):
        return "oom"
    if full_disk_code(error):
        return "disk"
    return "env" if isinstance(error, ImportError) else "code"


def _log_into(path: Path) -> None:
    """Everything this process prints goes to the attempt's own log, also what C libraries print."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
