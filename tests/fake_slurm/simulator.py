"""The scheduler itself: jobs, arrays, nodes, limits and time, over local processes. Standard library only.

Jobs live in sessions of their own and outlive this process, as they outlive a real controller.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SETTINGS: dict[str, Any] = {
    "nodes": {"n1": 4},  # name -> how many jobs at once
    "partitions": ["main", "urgent"],
    "max_array_size": 1001,
    "max_submit": 10_000,  # queued and running tasks of the user
    "kill_wait": 30.0,  # seconds between TERM and KILL
    "requeue_delay": 0.0,  # seconds before a requeued job may start again
    "black_holes": [],  # nodes on which every job fails at once, before anything of it runs
    "failing_launches": [],  # nodes on which a launch fails and the job is requeued and held
    "down": [],
    "lies": {},  # command -> {"mode": "empty" | "fail" | "garbage" | "slow" | "words", ...}
    "lost_replies": 0,  # so many sbatch calls are obeyed and then answered with a time-out
}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclass
class Task:
    """One job, or one task of an array."""

    job: int
    index: int | None
    raw_id: int
    state: str = "PENDING"
    reason: str = "None"
    node: str = ""
    pid: int = 0
    start: float = 0.0
    end: float = 0.0
    not_before: float = 0.0
    code: str = "0:0"
    restarts: int = 0
    warned: bool = False
    terminated: float = 0.0  # when TERM was sent
    span: str = ""  # instead of an index, where squeue shows waiting tasks in one line
    then: str = ""  # what it becomes when its processes are gone: REQUEUE, CANCELLED, TIMEOUT, NODE_FAIL

    @property
    def id(self) -> str:
        return f"{self.job}{self.span}" if self.index is None else f"{self.job}_{self.index}"


@dataclass
class Job:
    """What one sbatch submitted. Array tasks that never started are only indices in `waiting`."""

    id: int
    name: str
    user: str
    partition: str
    script: str
    cwd: str
    env: dict[str, str]
    minutes: float
    warning: tuple[int, float] | None
    output: str
    throttle: int
    exclude: list[str]
    submitted: float
    waiting: list[int] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    held: str = ""  # reason, for all of its waiting tasks
    after: list[int] = field(default_factory=list)  # jobs that must have ended, however they ended


class Simulator:
    """State in memory, saved after every change so that a restarted one continues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = dict(SETTINGS)
        self.jobs: dict[int, Job] = {}
        self.next_id = 1
        self.most_running = 0
        self.changed = False
        if (folder / "state.json").exists():
            self._load()

    def _load(self) -> None:
        state = json.loads((self.folder / "state.json").read_text())
        self.settings |= state["settings"]
        self.next_id, self.most_running = state["next_id"], state["most_running"]
        for stored in state["jobs"]:
            tasks = {key: Task(**task) for key, task in stored.pop("tasks").items()}
            self.jobs[stored["id"]] = Job(**stored, tasks=tasks)

    def save(self) -> None:
        state = {
            "settings": self.settings,
            "next_id": self.next_id,
            "most_running": self.most_running,
            "jobs": [asdict(job) for job in self.jobs.values()],
        }
        temp = self.folder / "state.tmp"
        temp.write_text(json.dumps(state))
        temp.replace(self.folder / "state.json")
        self.changed = False

    # What is there

    def tasks(self) -> list[Task]:
        return [task for job in self.jobs.values() for task in job.tasks.values()]

    def running(self) -> list[Task]:
        return [task for task in self.tasks() if task.pid]

    def live_count(self) -> int:
        live = sum(task.state not in ENDED for task in self.tasks())
        return live + sum(len(job.waiting) for job in self.jobs.values())

    def depends(self, job: Job) -> bool:
        """Whether it waits for the end of another; one that nobody knows is over."""
        known = [self.jobs[number] for number in job.after if number in self.jobs]
        return any(one.waiting or any(t.state not in ENDED for t in one.tasks.values()) for one in known)

    def find(self, task_id: str) -> list[Task]:
        """Tasks that `12` (all of an array) or `12_3` name; those that wait are made to exist."""
        number, _, index = task_id.partition("_")
        job = self.jobs.get(int(number)) if number.isdigit() else None
        if job is None:
            return [task for task in self.tasks() if str(task.raw_id) == task_id]
        for waiting in [int(index)] if index.isdigit() else list(job.waiting):
            if waiting in job.waiting:
                self._task_of(job, waiting)
        return [task for task in job.tasks.values() if not index or task.id == task_id]

    def _task_of(self, job: Job, index: int | None) -> Task:
        if index is not None and index in job.waiting:
            job.waiting.remove(index)
        # As in SLURM the raw id of the first task is the array's own.
        raw = job.id if not job.tasks else self._new_id()
        task = Task(job.id, index, raw, reason=job.held or "None")
        job.tasks[task.id] = task
        return task

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    # What may be asked

    def submit(self, job: Job, array: list[int]) -> int:
        job.id = self._new_id()
        job.waiting = list(array)
        self.jobs[job.id] = job
        if not array:
            self._task_of(job, None)
        self.changed = True
        return job.id

    def signal(self, task: Task, number: int, batch: bool = False) -> None:
        """To the step's process group, as slurmstepd does; with `batch` to the batch shell's, too."""
        if not task.pid:
            return
        groups = [int(path.read_text()) for path in self._place(task).glob("step.*") if path.read_text()]
        if batch or number == signal.SIGKILL:
            groups.append(task.pid)
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)

    def cancel(self, task: Task) -> None:
        if task.state in ENDED:
            return
        if task.pid:
            self._terminate(task, "CANCELLED")
        else:
            self._end(task, "CANCELLED")

    def requeue(self, task: Task, then: str = "REQUEUE") -> None:
        """Back to the queue under the same id; a running one is ended first."""
        if task.pid:
            self._terminate(task, then)
        else:
            self._back(task)

    def hold(self, task: Task, reason: str) -> None:
        task.reason = reason
        self.changed = True

    def release(self, task: Task) -> None:
        task.reason = "None"
        self.jobs[task.job].held = ""
        self.changed = True

    def preempt(self, task: Task, grace: float, warn: bool) -> None:
        """TERM (or with `warn` the job's own warning signal), KILL after `grace` seconds, then requeue."""
        warning = self.jobs[task.job].warning
        self.signal(task, warning[0] if warn and warning else signal.SIGTERM)
        task.then, task.terminated = "REQUEUE", time.time() + grace - self.settings["kill_wait"]
        self.changed = True

    def fail_node(self, name: str) -> None:
        """Everything on it dies without a word and is requeued."""
        self.settings["down"] = [*self.settings["down"], name]
        for task in self.running():
            if task.node == name:
                task.then = "REQUEUE"
                self.signal(task, signal.SIGKILL, batch=True)
        self.changed = True

    # What happens by itself

    def tick(self) -> None:
        """Reap, warn, end, start."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        for task in self.running():
            self._look_after(task)
        self._start_what_fits()
        if self.changed:
            self.save()

    def _look_after(self, task: Task) -> None:
        now, job = time.time(), self.jobs[task.job]
        if not _alive(task.pid):
            self._over(task)
        elif task.terminated:
            if now > task.terminated + self.settings["kill_wait"]:
                self.signal(task, signal.SIGKILL, batch=True)
        elif now > task.end:
            self._terminate(task, "TIMEOUT")
        elif job.warning and not task.warned and now > task.end - job.warning[1]:
            task.warned, self.changed = True, True
            self.signal(task, job.warning[0])

    def _terminate(self, task: Task, then: str) -> None:
        self.signal(task, signal.SIGTERM)
        self.signal(task, signal.SIGCONT)
        task.then, task.terminated, self.changed = then, time.time(), True

    def _over(self, task: Task) -> None:
        self.signal(task, signal.SIGKILL, batch=True)  # whatever it left behind
        code = self._place(task) / "code"
        told = code.read_text().strip() if code.exists() else ""
        task.pid, task.code, self.changed = 0, f"{told}:0" if told else "0:9", True
        if task.then == "REQUEUE":
            self._back(task)
        else:
            self._end(task, task.then or ("COMPLETED" if told == "0" else "FAILED"))

    def _end(self, task: Task, state: str) -> None:
        task.state, task.end, self.changed = state, time.time(), True

    def _back(self, task: Task) -> None:
        task.state, task.restarts, task.warned, task.terminated, task.then = "PENDING", task.restarts + 1, False, 0, ""
        task.not_before, self.changed = time.time() + self.settings["requeue_delay"], True

    def _start_what_fits(self) -> None:
        room = {name: slots for name, slots in self.settings["nodes"].items() if name not in self.settings["down"]}
        for task in self.running():
            room[task.node] = room.get(task.node, 0) - 1
        for job in sorted(self.jobs.values(), key=lambda job: (job.partition != "urgent", job.id)):
            self._start_of(job, room)
        self.most_running = max(self.most_running, len(self.running()))

    def _start_of(self, job: Job, room: dict[str, int]) -> None:
        if self.depends(job):
            return
        busy = sum(bool(task.pid) for task in job.tasks.values())
        back = [t for t in job.tasks.values() if t.state == "PENDING" and t.reason in ("None", "Priority", "Resources")]
        fresh = [] if job.held else list(job.waiting)
        candidates: list[Task | int] = [*back, *fresh]
        for found in candidates:
            node = next((name for name, free in room.items() if free > 0 and name not in job.exclude), None)
            if node is None or busy >= job.throttle:
                return
            task = found if isinstance(found, Task) else self._task_of(job, found)
            if task.not_before > time.time():
                continue
            self._launch(job, task, node)
            room[node] -= 1
            busy += 1

    def _launch(self, job: Job, task: Task, node: str) -> None:
        self.changed = True
        if node in self.settings["failing_launches"]:
            task.reason = "launch failed requeued held"
            return
        place = self._place(task)
        place.mkdir(parents=True, exist_ok=True)
        for left in (*place.glob("step.*"), *place.glob("code")):
            left.unlink()
        task.start, task.node, task.state = time.time(), node, "RUNNING"
        task.end = task.start + 60 * job.minutes
        script = place / "script"
        script.write_text(job.script if node not in self.settings["black_holes"] else "#!/bin/sh\nsleep 0.3\nexit 1\n")
        task.pid = subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", SHEPHERD, node, str(script), str(place / "code")],
            cwd=job.cwd,
            env=job.env | self._variables(job, task, place),
            stdin=subprocess.DEVNULL,
            stdout=_output(job, task),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ).pid

    def _variables(self, job: Job, task: Task, place: Path) -> dict[str, str]:
        found = {
            "SLURM_JOB_ID": str(task.raw_id),
            "SLURM_JOB_NAME": job.name,
            "SLURM_JOB_END_TIME": str(int(task.end)),
            "SLURM_RESTART_COUNT": str(task.restarts),
            "SLURM_JOB_NODELIST": task.node,
            "SLURMD_NODENAME": task.node,
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_NTASKS": "1",
            "FAKE_SLURM_PLACE": str(place),
        }
        if task.index is not None:
            found |= {"SLURM_ARRAY_JOB_ID": str(job.id), "SLURM_ARRAY_TASK_ID": str(task.index)}
        return found

    def _place(self, task: Task) -> Path:
        return self.folder / "jobs" / task.id


# Runs the batch script on a node of that name and leaves its exit code.
SHEPHERD = 'hostname "$0" && bash "$1"; echo $? > "$2.tmp" && mv "$2.tmp" "$2"'


def _output(job: Job, task: Task) -> int:
    words = {"%A": str(task.job), "%a": str(task.index), "%j": str(task.raw_id), "%N": task.node, "%x": job.name}
    path = job.output or "slurm-%A_%a.out"
    for word, value in words.items():
        path = path.replace(word, value)
    return os.open(Path(job.cwd, path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
