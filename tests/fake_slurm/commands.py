"""What each command understands and answers, in the words and formats of the real ones. Standard library only."""

import getopt
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.fake_slurm.simulator import Job, Simulator, Task

FAR = 365 * 24 * 60.0  # minutes; a job without a limit


class Refused(Exception):
    """What the command prints on stderr before it ends with 1."""


Request = dict[str, Any]
SBATCH = [
    "array=", "cpus-per-task=", "error=", "exclude=", "exclusive", "gpus-per-node=", "gres=", "hold", "job-name=",
    "mem=", "nodes=", "ntasks-per-node=", "open-mode=", "output=", "parsable", "partition=", "requeue", "signal=",
    "time=", "wckey=", "dependency=", "wrap=", "account=", "qos=", "constraint=", "comment=",
]  # fmt: skip


def parsed(name: str, arguments: list[str], short: str, known: list[str]) -> tuple[dict[str, str], list[str]]:
    """(options by long name, positional words); an unknown option is refused, as the real command does."""
    try:
        options, rest = getopt.gnu_getopt(arguments, short, known)
    except getopt.GetoptError as error:
        raise Refused(f'{name}: {error.msg}\nTry "{name} --help" for more information') from None
    return {key.lstrip("-"): value for key, value in options}, rest


def sbatch(simulator: Simulator, request: Request) -> str:
    options, _ = parsed("sbatch", request["args"], "", SBATCH)
    script = request["script"] or f"#!/bin/sh\n{options.get('wrap', '')}\n"
    lines = [line.split(None, 1)[1] for line in script.splitlines() if line.startswith("#SBATCH ")]
    embedded, _ = parsed("sbatch", [line.replace("'", "") for line in lines], "", SBATCH)
    told = embedded | options
    array, throttle = _array(told.get("array", ""))
    if told.get("partition", "main") not in simulator.settings["partitions"]:
        raise Refused(
            f"sbatch: error: invalid partition specified: {told['partition']}\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified"
        )
    if array and max(array) >= simulator.settings["max_array_size"]:
        raise Refused("sbatch: error: Batch job submission failed: Invalid job array specification")
    if simulator.live_count() + max(1, len(array)) > simulator.settings["max_submit"]:
        raise Refused(
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: "
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
        )
    job = Job(
        0, told.get("job-name", "wrap"), "me", told.get("partition", "main"), script, request["cwd"], request["env"],
        _minutes(told.get("time", "10")), _warning(told.get("signal", "")), told.get("output", ""), throttle,
        [name for name in told.get("exclude", "").split(",") if name], time.time(),
        held="JobHeldUser" if "hold" in told else "", after=_after(told.get("dependency", "")),
    )  # fmt: skip
    number = simulator.submit(job, array)
    if simulator.settings["lost_replies"] > 0:
        simulator.settings["lost_replies"] -= 1
        raise Refused("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    return f"{number}\n" if "parsable" in told else f"Submitted batch job {number}\n"


def _after(text: str) -> list[int]:
    """The jobs of `afterany:12:13`, the only kind of dependency there is here."""
    if not text:
        return []
    kind, *jobs = text.split(":")
    if kind != "afterany" or not all(job.isdigit() for job in jobs):
        raise Refused("sbatch: error: Batch job submission failed: Job dependency problem")
    return [int(job) for job in jobs]


def _array(text: str) -> tuple[list[int], int]:
    spec, _, limit = text.partition("%")
    indices: list[int] = []
    for part in filter(None, spec.split(",")):
        first, _, last = part.partition("-")
        indices += range(int(first), int(last or first) + 1)
    return indices, int(limit) if limit else 10**9


def _minutes(text: str) -> float:
    if text.isdigit():
        return float(text)
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = 60 * total + float(part)
    return total / 60 + 1440 * float(days or 0)


def _warning(text: str) -> tuple[int, float] | None:
    found = re.fullmatch(r"(?:B:)?(\w+)@(\d+)", text)
    return (signal.Signals[f"SIG{found[1]}"], float(found[2])) if found else None


def squeue(simulator: Simulator, request: Request) -> str:
    options, _ = parsed("squeue", request["args"], "hrn:j:t:u:o:", [
        "noheader", "array", "name=", "job=", "jobs=", "states=", "user=", "format=", "me",
    ])  # fmt: skip
    names = (options.get("name") or options.get("n") or "").split(",")
    ids = next((options[k] for k in ("job", "jobs", "j") if k in options), "").split(",")
    layout = options.get("format") or options.get("o") or "%i %P %j %u %t %M %D %R"
    rows = []
    for job in simulator.jobs.values():
        if names != [""] and job.name not in names:
            continue
        for task in _shown(simulator, job, "array" in options or "r" in options):
            if ids != [""] and not {task.id, str(task.job), str(task.raw_id)} & set(ids):
                continue
            rows.append(_filled(simulator, layout, job, task))
    if ids != [""] and len(ids) == 1 and not simulator.find(ids[0].partition("_")[0]):
        raise Refused("slurm_load_jobs error: Invalid job id specified")
    head = [] if {"noheader", "h"} & set(options) else ["JOBID|..."]
    return "".join(f"{row}\n" for row in [*head, *rows])


def _shown(simulator: Simulator, job: Job, single: bool) -> Iterator[Task]:
    reason = job.held or ("Dependency" if simulator.depends(job) else "Resources")
    for task in job.tasks.values():
        if task.pid or task.state == "PENDING":
            yield task
    if single:
        for index in job.waiting:
            yield Task(job.id, index, job.id, reason=reason)
    elif job.waiting:
        yield Task(job.id, None, job.id, reason=reason, span=f"_[{job.waiting[0]}-{job.waiting[-1]}%{job.throttle}]")


def _filled(simulator: Simulator, layout: str, job: Job, task: Task) -> str:
    words = simulator.settings["lies"].get("squeue", {}).get("words", {})
    left = max(0, int(task.end - time.time())) if task.pid else int(60 * job.minutes)
    values = {
        "%i": task.id, "%F": str(task.job), "%A": str(task.raw_id), "%j": job.name, "%P": job.partition, "%u": job.user,
        "%T": words.get(task.id) or words.get("*") or ("COMPLETING" if task.terminated else task.state),
        "%r": task.reason, "%R": task.node or f"({task.reason})", "%N": task.node,
        "%L": f"{left // 86400}-{left % 86400 // 3600:02d}:{left % 3600 // 60:02d}:{left % 60:02d}",
        "%t": task.state[:2], "%M": "0:00", "%D": "1",
    }  # fmt: skip
    return re.sub(r"%\.?\d*(\w)", lambda match: values.get(f"%{match[1]}", match[0]), layout)


def sacct(simulator: Simulator, request: Request) -> str:
    options, _ = parsed(
        "sacct", request["args"], "Xnj:o:P", ["noheader", "parsable2", "jobs=", "format=", "allocations"]
    )
    ids = set((options.get("jobs") or options.get("j") or "").split(","))
    columns = (options.get("format") or options.get("o") or "JobID,JobName,State,ExitCode").split(",")
    rows = []
    for task in simulator.tasks():
        if {task.id, str(task.job)} & ids:
            job = simulator.jobs[task.job]
            elapsed = (task.end if not task.pid else time.time()) - task.start if task.start else 0
            values = {
                "jobid": task.id, "state": task.state, "nodelist": task.node or "None assigned",
                "elapsedraw": str(int(max(0, elapsed))), "exitcode": task.code, "jobname": job.name,
            }  # fmt: skip
            rows.append("|".join(values[column.lower()] for column in columns))
    head = [] if {"noheader", "n"} & set(options) else ["|".join(columns)]
    return "".join(f"{row}\n" for row in [*head, *rows])


def scancel(simulator: Simulator, request: Request) -> str:
    options, rest = parsed("scancel", request["args"], "s:fn:t:", ["signal=", "full", "name=", "state=", "quiet"])
    name = options.get("name") or options.get("n")
    found = [task for task_id in rest for task in simulator.find(task_id)]
    if name:
        found += [t for job in simulator.jobs.values() if job.name == name for t in simulator.find(str(job.id))]
    if rest and not found:
        raise Refused(f"scancel: error: Kill job error on job id {rest[0]}: Invalid job id specified")
    sent = options.get("signal") or options.get("s")
    for task in found:
        if sent:
            simulator.signal(
                task, signal.Signals[f"SIG{sent.removeprefix('SIG')}"], batch=bool({"full", "f"} & set(options))
            )
        else:
            simulator.cancel(task)
    return ""


def scontrol(simulator: Simulator, request: Request) -> str:
    verb, *words = request["args"]
    if verb == "show":
        return _show(simulator, words)
    actions: dict[str, Callable[[Task], None]] = {
        "requeue": simulator.requeue,
        "release": simulator.release,
        "hold": lambda task: simulator.hold(task, "JobHeldUser"),
    }
    if verb not in actions:
        raise Refused(f"invalid keyword: {verb}")
    for task_id in ",".join(words).split(","):
        tasks = simulator.find(task_id)
        if not tasks:
            raise Refused(f"Invalid job id specified for job {task_id}")
        for task in tasks:
            actions[verb](task)
    return ""


def _show(simulator: Simulator, words: list[str]) -> str:
    if words[:1] == ["config"]:
        return f"Configuration data as of now\nMaxArraySize            = {simulator.settings['max_array_size']}\n"
    if words[:1] == ["job"] and len(words) == 2:
        tasks = simulator.find(words[1])
        if not tasks:
            raise Refused("slurm_load_jobs error: Invalid job id specified")
        return "\n".join(_told(simulator, task) for task in tasks)
    raise Refused(f"invalid entity: {' '.join(words)}")


def _told(simulator: Simulator, task: Task) -> str:
    job = simulator.jobs[task.job]
    array = f"ArrayJobId={task.job} ArrayTaskId={task.index} " if task.index is not None else ""
    elapsed = int(max(0, (time.time() if task.pid else task.end) - task.start)) if task.start else 0
    return (
        f"JobId={task.raw_id} {array}JobName={job.name}\n   JobState={task.state} Reason={task.reason}\n"
        f"   RunTime={elapsed // 3600:02d}:{elapsed % 3600 // 60:02d}:{elapsed % 60:02d} ExitCode={task.code}\n"
        f"   NodeList={task.node}\n"
    )


COMMANDS = {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "scontrol": scontrol}
