"""A pull-worker: claims the next run of a plan until none is left or time runs short.

The same worker serves the laptop and SLURM. It imports torch once and forks one child per run, up to `slots` at a time:
a crash, a leak or an out-of-memory kill takes one run with it, and the worker survives to say what happened.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import planned
from results.files import full_disk_code, now, read_json, write_json
from results.home import Home
from results.record import RunFolder
from results.state import SETTLED, RunState, State, claimable, run_state
from sweeps import environment, gpus, hosts, slurm
from sweeps.attempt import attempt_run
from sweeps.exits import DISK_FULL, ENDED, FAILED, NO_ENVIRONMENT, NOT_CLAIMED
from sweeps.signals import StopFlag, die_with_parent
from sweeps.stored import grants, judge

log = logging.getLogger("lab.worker")

LEAST_TIME_S = 10.0  # with less than this left no run is started: it would only be stopped again
SAVE_MARGIN_S = 60.0  # stop this long before the job's end: time to save and requeue
POLL_S = 0.02
OPEN_POLL_S = 0.25  # between looks into a plan that grows, which is that of a search
OPEN_IDLE_S = 60.0  # without work a worker leaves even that: whoever makes it grow may be gone
CLOSER_EVERY_S = 15.0  # between questions to SLURM by a worker that waits
PATIENCE_S = 60.0  # how long after its start a suspect host waits for others to show that they work


@dataclass(frozen=True)
class Assignment:
    """What a worker is told: where the record is, which plan, which call started it, when its time ends, how many runs
    at once."""

    home: Path
    plan: Path
    call: str
    end_time: float | None = None  # epoch seconds
    slots: int = 1

    @property
    def deadline(self) -> float | None:
        """When runs must stop. Short jobs give up a tenth of what is left rather than a whole minute."""
        if self.end_time is None:
            return None
        return self.end_time - min(SAVE_MARGIN_S, 0.1 * max(0.0, self.end_time - time.time()))


@dataclass(frozen=True)
class Child:
    """A process that attempts a run; `after`: the number of attempts the run had before."""

    run: RunFolder
    after: int
    began: float  # monotonic seconds
    oom_kills: int  # on this machine, when it began
    gpu: str | None  # the one that it shall use; None: whatever there is


class Worker:
    """One process pulling runs."""

    def __init__(self, assignment: Assignment) -> None:
        self.home, self.plan, self.call = Home(assignment.home), assignment.plan, assignment.call
        self.slots = assignment.slots
        self.flag, self.deadline = StopFlag(), assignment.deadline
        self.time_given = 0.0 if self.deadline is None else self.deadline - time.time()
        call = read_json(self.plan / "calls" / f"{assignment.call}.json") or {}
        self.called_at = str(call.get("called_at", ""))
        self.granted = grants(self.plan, self.called_at)
        self.job, self.node, self.began = slurm.own_job(), slurm.own_node(), time.monotonic()
        self.owner = {"job": self.job, "node": self.node, "code_hash": call.get("code_hash"), "call": assignment.call}
        self.specs: dict[str, dict[str, Any]] = {}
        self.waiting: list[RunFolder] = []
        self.run_ids: list[str] = []
        self.open = self._read_plan()
        self.last_work = self.began
        self.looked_closer = -CLOSER_EVERY_S
        self.started: list[RunFolder] = []
        self.children: dict[int, Child] = {}
        self.disk_full = False
        self.obstructed = False  # the next run would meet the same obstacle, so that it is left in peace
        self.set_aside = False  # whether a run left no record: of one alone its folder may be gone
        self.host = hosts.Watch(self.node or socket.gethostname(), self._others_work)

    def work(self) -> int:
        """Pull until nothing is left, time is up or a signal comes. Returns how many of its runs are FAILED."""
        self.flag.listen()
        environment.installed()  # looked up once, for all children
        while not (self.stopping() or self.obstructed) or self.children:
            undecided = self._fill_slots() == "wait"
            if self.children:
                self._wait_for_one()
            elif undecided:
                time.sleep(1)
            elif self._more_may_come():
                time.sleep(OPEN_POLL_S)
            else:
                break
        # A preempted job is requeued by SLURM, a cancelled one must not be: only our own time limit is ours to requeue.
        if self.flag.reason in (None, "time_limit") and self.stopping() and self._next():
            slurm.requeue_self()
        failed = sum(run_state(run).state is State.FAILED for run in set(self.started))
        return failed or int(self.obstructed)

    def _read_plan(self) -> bool:
        """Take up the runs that the plan has and we do not know; returns whether it may still grow."""
        plan, known = planned.plan(self.plan) or {"runs": []}, set(self.run_ids)
        new = [run["run_id"] for run in plan["runs"] if run["run_id"] not in known]
        if new:
            self.specs = planned.readable_specs(self.plan)
            self.run_ids += new
            self.waiting += [self.home.run(run_id) for run_id in new]
        return bool(plan.get("open"))

    def _more_may_come(self) -> bool:
        """Whether to wait for the plan to grow, or to take up what it has grown by. A plan that was closed is whole."""
        if not self.open:
            return False
        self.open = self._read_plan()
        return self._next() is not None or (self.open and time.monotonic() - self.last_work < OPEN_IDLE_S)

    def stopping(self) -> bool:
        """Whether a signal came or time is up."""
        short = self.deadline is not None and time.time() > self.deadline - min(LEAST_TIME_S, self.time_given / 4)
        return self.flag.reason is not None or short

    def _fill_slots(self) -> str:
        """Start runs while there is room; returns what we think of this host."""
        while (verdict := self._verdict()) == "fine" and len(self.children) < self.slots:
            if self.stopping() or self.obstructed:
                break
            found = self._next() or (None if self.children else self._look_closer())
            if found is None:
                break
            self._fork(*found)
        return verdict

    def _verdict(self) -> str:
        """On a laptop there is no other host to leave the runs to."""
        if self.job is None:
            return "fine"
        verdict = self.host.verdict()
        if verdict == "bad" and not self.obstructed:
            log.error("%s: %d runs failed here at once and none worked: leaving", self.host.host, self.host.failures)
            self.obstructed = True
        return verdict

    def _others_work(self) -> bool | None:
        found = hosts.others_work(self.home, self.run_ids, self.host.host)
        if found is False and time.monotonic() - self.began < PATIENCE_S:
            return None if len(slurm.queue(self.plan).live) > 1 else False
        return found

    def _next(self) -> tuple[RunFolder, int] | None:
        """The first run that may be claimed, and the number of attempts it had when we looked."""
        mine = {child.run.run_id for child in self.children.values()}
        for run in list(self.waiting):
            seen = run_state(run)
            if seen.state in SETTLED:
                self.waiting.remove(run)
            elif run.run_id not in mine and self._may_claim(run, seen) and not run.cancel_requested():
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
        if seen.state is not State.UNKNOWN or self.job is None:
            return False
        return any((attempt.claim or {}).get("job") == self.job for attempt in run.attempts()[-1:])

    def _look_closer(self) -> tuple[RunFolder, int] | None:
        """With nothing left at first sight: what a later call grants, a dead job has lost, or a bad host has failed."""
        if self.open and time.monotonic() - self.looked_closer < CLOSER_EVERY_S:
            return None
        self.looked_closer = time.monotonic()
        self.granted |= grants(self.plan, self.called_at)
        if self.job is not None and self.waiting:
            _, states = judge(self.home, self.plan, [run.run_id for run in self.waiting])
            bad = hosts.bad_hosts(self.home, states)
            for state in states:
                excused = state.state is State.FAILED and self.host.host not in bad
                if state.state is State.LOST or (excused and hosts.failed_on(self.home, state, bad)):
                    self.granted[state.run_id] = state.attempts
        return self._next()

    def _fork(self, run: RunFolder, after: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.started.append(run)
        worker, gpu = os.getpid(), self._free_gpu(run)
        pid = os.fork()
        if pid:
            self.children[pid] = Child(run, after, time.monotonic(), oom_kills(), gpu)
            return
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # CUDA is not touched before the fork
        code = 1
        try:
            die_with_parent(worker)
            code = attempt_run(self.home, run, self.owner, self.flag, self.deadline, after, self.specs.get(run.run_id))
        finally:
            os._exit(code)  # never return into the parent's loop, whatever happened

    def _free_gpu(self, run: RunFolder) -> str | None:
        """The GPU that fewest of our children use; None where there is no choice, or the run spreads over all."""
        free = gpus.given() or []
        train = self.specs.get(run.run_id, {}).get("config", {}).get("train", {})
        if len(free) < 2 or self.slots < 2 or train.get("processes", 1) > 1:
            return None
        taken = Counter(child.gpu for child in self.children.values())
        return min(free, key=lambda gpu: taken[gpu])

    def _wait_for_one(self) -> None:
        """Until one child has ended; our own stop signal is passed on to all of them."""
        told: set[int] = set()
        while True:
            for pid in self.children:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    return self._ended(pid, os.waitstatus_to_exitcode(status))
                if self.flag.signal and pid not in told:
                    os.kill(pid, self.flag.signal)
                    told.add(pid)
            time.sleep(POLL_S)

    def _ended(self, pid: int, code: int) -> None:
        child = self.children.pop(pid)
        self.last_work = time.monotonic()
        if code == NOT_CLAIMED:
            return
        # Also after code 0: a run that ends the process itself has not said how it ended.
        self._record_death(child, pid, code)
        if code != ENDED:
            no_environment = code == NO_ENVIRONMENT and not self.host.worked
            self.disk_full = self.disk_full or code == DISK_FULL
            self.obstructed = self.obstructed or self.disk_full or no_environment
        if code == ENDED or len(child.run.attempts()) > child.after:
            self.set_aside = False
        else:
            self._set_aside(child.run)
        state = run_state(child.run)
        if state.state is not State.FAILED:
            self.host.saw(failed=False)
        elif state.kind not in hosts.NOT_THE_HOST and time.monotonic() - child.began < hosts.QUICK_S:
            self.host.saw(failed=True)

    def _set_aside(self, run: RunFolder) -> None:
        """Leave a run without a record of its attempt to the next call. Two in a row say that it is not the run; so
        does a home that is gone."""
        log.error("run %s left no attempt in %s: it is for the next call", run.run_id, run.path)
        self.obstructed = self.obstructed or self.set_aside or not self.plan.is_dir()
        self.set_aside = True
        if run in self.waiting:
            self.waiting.remove(run)

    def _record_death(self, child: Child, pid: int, code: int) -> None:
        """Write the exit that the child could not, or did not.

        A child that was killed (9, 15) stays without an exit: it is LOST, and taken up again while it makes progress;
        unless the kernel did it for want of memory, which would only happen again.
        """
        if code != ENDED:
            log.error("run %s ended with code %d", child.run.run_id, code)
        mine = [a for a in child.run.attempts() if (a.claim or {}).get("pid") == pid and a.exit is None]
        out_of_memory = code == -signal.SIGKILL and oom_kills() > child.oom_kills
        if not mine or code == DISK_FULL:
            return
        if out_of_memory:
            told = {"kind": "oom", "error": "the kernel killed the process: out of memory"}
        elif -code in (signal.SIGKILL, signal.SIGTERM):
            return
        else:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            told = {"kind": "code", "error": f"the process died: {name}"}
        try:
            write_json(mine[-1].path / "exit.json", {"reason": "failed", "ended_at": now()} | told)
        except OSError as error:  # then the run is LOST; our other runs go on
            log.error("run %s: %s", child.run.run_id, error)
            self.disk_full = self.disk_full or full_disk_code(error) is not None


def oom_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory; 0 where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def run(assignment: Assignment) -> int:
    """Work, and return the exit code: 0, FAILED, or DISK_FULL, for which there may be no room to say it in words."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    worker = Worker(assignment)
    failed = worker.work()
    if failed:
        log.error("%d run(s) failed; see `lab status`", failed)
    return DISK_FULL if worker.disk_full else FAILED if failed else ENDED


def main() -> None:
    """Entry of `python -m sweeps.worker`."""
    parser = argparse.ArgumentParser(prog="sweeps.worker", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--call", required=True)
    given = parser.parse_args()
    sys.exit(run(Assignment(given.home, given.plan, given.call)))


if __name__ == "__main__":
    main()
