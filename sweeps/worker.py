"""A pull-worker: claims the next run of a plan until none is left or time runs short.

The same worker serves the laptop and SLURM. It imports torch once and forks one child per run: a crash, a leak or
an out-of-memory kill takes one run with it, and the worker survives to say what happened.
"""

import argparse
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from results import planned
from results.files import now, read_json, write_json
from results.home import Home
from results.record import RunFolder
from results.state import SETTLED, RunState, State, claimable, run_state
from sweeps import environment, slurm
from sweeps.attempt import DISK_FULL, ENDED, NOT_CLAIMED, attempt_run
from sweeps.signals import StopFlag, die_with_parent

log = logging.getLogger("lab.worker")

LEAST_TIME_S = 10.0  # with less than this left no run is started: it would only be stopped again
SAVE_MARGIN_S = 60.0  # stop this long before the job's end: time to save and requeue


@dataclass(frozen=True)
class Assignment:
    """What a worker is told: where the record is, which plan, which call started it, and when its time ends."""

    home: Path
    plan: Path
    call: str
    end_time: float | None = None  # epoch seconds

    @property
    def deadline(self) -> float | None:
        """When runs must stop. Short jobs give up a tenth of what is left rather than a whole minute."""
        if self.end_time is None:
            return None
        return self.end_time - min(SAVE_MARGIN_S, 0.1 * max(0.0, self.end_time - time.time()))


class Worker:
    """One process pulling runs."""

    def __init__(self, assignment: Assignment) -> None:
        self.home, self.plan = Home(assignment.home), assignment.plan
        self.flag, self.deadline = StopFlag(), assignment.deadline
        self.time_given = 0.0 if self.deadline is None else self.deadline - time.time()
        call = read_json(self.plan / "calls" / f"{assignment.call}.json") or {}
        self.granted: dict[str, int] = call.get("granted", {})
        self.owner = {"job": slurm.own_job(), "code_hash": call.get("code_hash"), "call": assignment.call}
        plan = read_json(self.plan / "plan.json") or {"runs": []}
        self.specs = planned.specs(self.plan)
        self.waiting = [self.home.run(run["run_id"]) for run in plan["runs"]]
        self.started: list[RunFolder] = []

    def work(self) -> int:
        """Pull until nothing is left, time is up or a signal comes. Returns how many of its runs are FAILED."""
        self.flag.listen()
        environment.installed()  # looked up once, for all children
        while not self.stopping():
            found = self._next()
            if found is None:
                return self._failed()
            self.started.append(found[0])
            if not self._run_in_child(*found):
                return self._failed() or 1
        # A preempted job is requeued by SLURM, a cancelled one must not be: only our own time limit is ours to requeue.
        if self.flag.reason in (None, "time_limit") and self._next():
            slurm.requeue_self()
        return self._failed()

    def stopping(self) -> bool:
        """Whether a signal came or time is up."""
        short = self.deadline is not None and time.time() > self.deadline - min(LEAST_TIME_S, self.time_given / 4)
        return self.flag.reason is not None or short

    def _failed(self) -> int:
        return sum(run_state(run).state is State.FAILED for run in set(self.started))

    def _next(self) -> tuple[RunFolder, int] | None:
        """The first run that may be claimed, and the number of attempts it had when we looked."""
        for run in list(self.waiting):
            seen = run_state(run)
            if seen.state in SETTLED:
                self.waiting.remove(run)
            elif self._may_claim(run, seen) and not run.cancel_requested():
                return run, seen.attempts
        return None

    def _may_claim(self, run: RunFolder, seen: RunState) -> bool:
        if seen.state in (State.FAILED, State.UNKNOWN):
            # The launcher has seen more than we can: that a failure is to be tried again, that a host is gone.
            return self.granted.get(run.run_id) == seen.attempts or self._was_mine(run, seen)
        # `lab sweep` withdraws cancel requests, so a cancelled run without one is to go on.
        return claimable(seen.state) or seen.state is State.CANCELLED

    def _was_mine(self, run: RunFolder, seen: RunState) -> bool:
        """A requeued job has the id of the job it was: what that one left running is certainly over."""
        if seen.state is not State.UNKNOWN or self.owner["job"] is None:
            return False
        return any((attempt.claim or {}).get("job") == self.owner["job"] for attempt in run.attempts()[-1:])

    def _fork(self, run: RunFolder, after: int) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        worker = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            die_with_parent(worker)
            code = attempt_run(self.home, run, self.owner, self.flag, self.deadline, after, self.specs.get(run.run_id))
        finally:
            os._exit(code)  # never return into the parent's loop, whatever happened

    def _run_in_child(self, run: RunFolder, after: int) -> bool:
        """Let a child try `run`. False when the next run would meet the same obstacle, so that it is left in peace."""
        pid = self._fork(run, after)
        code = self._wait(pid)
        if code in (ENDED, NOT_CLAIMED):
            return True
        self._record_death(run, pid, code)
        return code != DISK_FULL and len(run.attempts()) > after

    def _wait(self, pid: int) -> int:
        """The exit code of the child; our own stop signal is passed on to it."""
        told = False
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            if self.flag.signal and not told:
                os.kill(pid, self.flag.signal)
                told = True
            time.sleep(0.02)
        return os.waitstatus_to_exitcode(status)

    def _record_death(self, run: RunFolder, pid: int, code: int) -> None:
        """Write the exit that the child could not.

        A child that was killed (9, 15) stays without an exit: it is LOST, and taken up again while it makes progress.
        """
        log.error("run %s ended with code %d", run.run_id, code)
        mine = [a for a in run.attempts() if (a.claim or {}).get("pid") == pid and a.exit is None]
        if mine and code != DISK_FULL and -code not in (signal.SIGKILL, signal.SIGTERM):
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            write_json(
                mine[-1].path / "exit.json",
                {"reason": "failed", "kind": "code", "error": f"the process died: {name}", "ended_at": now()},
            )


def run(assignment: Assignment) -> int:
    """Work, and return the number of failed runs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    return Worker(assignment).work()


def main() -> None:
    """Entry of `python -m sweeps.worker`."""
    parser = argparse.ArgumentParser(prog="sweeps.worker", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--call", required=True)
    given = parser.parse_args()
    sys.exit(1 if run(Assignment(given.home, given.plan, given.call)) else 0)


if __name__ == "__main__":
    main()
