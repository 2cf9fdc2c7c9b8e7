"""What went wrong in a sweep: failures grouped by what they have in common, and what to do about each."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.files import BadFile, open_regular, read_json
from results.home import Home
from results.record import AttemptInfo
from results.state import RunState, State, claimable
from sweeps import hosts, launch_local, slurm
from sweeps.stored import StoredPlan, calls, find_plan, judge

TROUBLE = (State.FAILED, State.LOST, State.HELD, State.UNKNOWN)
LOG_LINES = 5
REMEDY = {
    "code": "read the log; mend the code or the arm, then --retry-failed",
    "oom": "it does not fit: smaller train.micro_batch, a larger machine or --slurm mem=..., then --retry-failed",
    "env": "mend the Python environment (`lab doctor`), then --retry-failed",
    "no_progress": "three attempts saved nothing: save more often (train.checkpoint_every) or give more time",
    "disk": "make room at the results home, then call again",
    "lost": "the worker died without a word; calling again resumes from the last checkpoint",
    "held": "release the jobs",
    "unknown": "nobody here can tell whether it lives; if it is dead, --take-over",
    "worker": "these workers ended before they took a run; see their log and `lab doctor`, then call again",
}
NO_ENVIRONMENT = re.compile(
    r"ModuleNotFoundError|ImportError|No such file|not found|No module|cannot open shared object"
)
DISK_FULL = re.compile(r"StorageFull|No space left|Disk quota", re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Failures of one kind with the same message shape, on one host, at one step."""

    kind: str
    error: str
    host: str
    step: int
    runs: tuple[str, ...]
    log: tuple[str, ...]
    remedy: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "runs": list(self.runs), "log": list(self.log)}


def failures(home: Home, name: str) -> dict[str, Any]:
    """Groups, bad hosts, workers that never took a run, and the commands that go on; `left` counts runs to do on which
    nobody works. Raises SweepError."""
    plan = find_plan(home, name)
    queue, states = judge(home, plan.folder, plan.run_ids)
    bad = hosts.bad_hosts(home, states, slurm.endings(plan.folder))
    groups = [*_groups(home, states, queue.advice), *dead_workers(home, plan, states)]
    idle = queue.answered and not queue.live and not launch_local.living(plan.folder)
    left = sum(claimable(state.state) for state in states) if idle else 0
    return {
        "sweep": plan.content["sweep"],
        "plan_id": plan.content["plan_id"],
        "groups": [group.to_json() for group in groups],
        "bad_hosts": [vars(host) for host in bad.values()],
        "left": left,
        "commands": _commands(plan, groups) or ([newest_command(plan)] if left else []),
    }


def shape(error: str) -> str:
    """A message without what differs from run to run: numbers, addresses, paths, quoted words."""
    line = error.strip().splitlines()[0] if error.strip() else ""
    for pattern, word in (
        (r"0x[0-9a-fA-F]+", "ADDRESS"),
        (r"(/[\w.@+-]+){2,}/?", "PATH"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "ID"),
        (r"\d[\d,._]*", "N"),
    ):
        line = re.sub(pattern, word, line)
    return line


def _groups(home: Home, states: Iterable[RunState], advice: str) -> Iterator[Group]:
    found: dict[tuple[str, str, str, int], list[tuple[RunState, AttemptInfo | None]]] = defaultdict(list)
    for state in states:
        if state.state in TROUBLE:
            newest = home.run(state.run_id).attempts()[-1:]
            info = newest[0] if newest else None
            kind = state.kind or "code" if state.state is State.FAILED else state.state.value.lower()
            if state.state is State.LOST and DISK_FULL.search("\n".join(_log_of(info))):
                kind = "disk"  # there was no room to say so in the record
            # What only the observer says differs from run to run by its process ids; the state says it all.
            said = shape(state.detail) if state.state is State.FAILED else ""
            host = hosts.host_of(info) if info else ""
            found[kind, said, host, state.step].append((state, info))
    for (kind, _, host, step), members in sorted(found.items(), key=lambda item: -len(item[1])):
        state, info = members[0]
        remedy = advice if kind == "held" and advice else REMEDY.get(kind, REMEDY["code"])
        runs = tuple(member.run_id for member, _ in members)
        several = state.state is State.LOST and len(members) > 1
        error = f"{len(members)} workers are gone" if several else state.detail
        yield Group(kind, error, host, step, runs, _log_of(info), remedy)


def _log_of(info: AttemptInfo | None) -> tuple[str, ...]:
    return last_lines(info.path / "log.txt" if info else None)


def dead_workers(home: Home, plan: StoredPlan, states: Iterable[RunState]) -> Iterator[Group]:
    """Workers that ended in an error before they could claim a run: their environment or their host is broken.

    Of local ones those that the newest call to start any has started: earlier troubles may be over.
    """
    states = list(states)
    if all(state.state is State.DONE for state in states):
        return
    jobs = {end.task: end for end in slurm.endings(plan.folder) if end.state in hosts.JOB_FAILURES}
    claimed = {
        str((info.claim or {}).get("job")) for s in states if s.attempts for info in home.run(s.run_id).attempts()
    }
    found: dict[tuple[str, str, str], list[tuple[str, Path]]] = defaultdict(list)
    for task, end in jobs.items():
        if task not in claimed:
            log = plan.folder / "jobs" / f"{task}_0_log.out"
            kind, error = _reason(last_lines(log), f"job ended as {end.state} after {end.seconds:.0f} s")
            found[kind, error, end.node].append((task, log))
    logs = sorted((plan.folder / "workers").glob("*.log"))
    newest = _registered(logs[-1]).get("call") if logs else None
    for log in logs:
        lines, registered = last_lines(log), _registered(log)
        interrupted = lines and lines[-1].strip() == "KeyboardInterrupt"  # by a person, while it imported torch
        if "Traceback" in _text(log) and not interrupted and registered.get("call") == newest:
            kind, error = _reason(lines, "")
            found[kind, error, str(registered.get("host", ""))].append((log.stem, log))
    for (kind, error, host), members in found.items():
        names = tuple(name for name, _ in members)
        remedy = REMEDY["env" if kind == "env" else "worker"].replace("--retry-failed", "call again")
        yield Group(kind, error, host, 0, names, last_lines(members[-1][1]), remedy)


def _registered(log: Path) -> dict[str, Any]:
    """What the launcher noted of the worker that writes `log`; empty where that cannot be read."""
    try:
        return read_json(log.with_suffix(".json")) or {}
    except BadFile:
        return {}


def _reason(lines: tuple[str, ...], otherwise: str) -> tuple[str, str]:
    """(kind, one line) of a worker that died before its first run."""
    telling = [line for line in lines if NO_ENVIRONMENT.search(line)]
    if telling:
        return "env", telling[-1].strip()
    return "worker", (lines[-1].strip() if lines else "") or otherwise


def last_lines(path: Path | None, count: int = LOG_LINES) -> tuple[str, ...]:
    """The end of a log without blank lines; nothing if there is none."""
    return tuple(line for line in _text(path).splitlines() if line.strip())[-count:] if path else ()


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            return file.read(20_000).decode(errors="replace")
    except OSError:
        return ""


def _commands(plan: StoredPlan, groups: Iterable[Group]) -> list[str]:
    """What to type next; the newest call's own words with what is to be added."""
    kinds = {group.kind for group in groups}
    base = newest_command(plan)
    more = []
    if kinds & {"code", "oom", "env"}:
        more.append(f"{base} --retry-failed")
    if "unknown" in kinds:
        more.append(f"{base} --take-over")
    if kinds - {"code", "oom", "env", "unknown", "held"}:
        more.append(base)
    return more


def newest_command(plan: StoredPlan) -> str:
    """The `lab sweep` that called this plan last, without the switches that are for once only.

    --home is where the plan lies now: the folder may have moved since, or we are called from another one. It is added
    where $LAB_HOME said so: whoever types the command may have another.
    """
    newest = max(calls(plan.folder), key=lambda call: call.get("called_at", ""), default={})
    words = [word for word in newest.get("command", []) if word not in ("--retry-failed", "--take-over", "--json")]
    home = str(plan.folder.parents[2])
    for place, word in enumerate(words):
        if word.startswith("--home="):
            words[place] = f"--home={home}"
        elif place and words[place - 1] == "--home":
            words[place] = home
    words = words or ["lab", "sweep", plan.content["sweep"]]
    if not any(word.partition("=")[0] == "--home" for word in words) and home != str(Path("lab-home").absolute()):
        words += ["--home", home]
    return shlex.join(words)
