"""Pull-workers as local processes in sessions of their own, so that closing the terminal ends none of them."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.files import now, read_folder, write_json
from results.home import Home
from results.process import claim_identity, process_alive
from sweeps import gpus

STOP_WITHIN_S = 60.0
LEAVE_WITHIN_S = 10.0  # workers whose runs are all done


def start(home: Home, plan: Path, call: str, snapshot: Path, workers: int) -> list[subprocess.Popen[bytes]]:
    """Start workers; their own words go to `<plan>/workers/*.log`, those of runs to the runs' logs."""
    (plan / "workers").mkdir(parents=True, exist_ok=True)
    free = gpus.visible()
    taken = Counter(claim.get("gpu") for claim in _living(plan))
    processes = []
    for _ in range(workers):
        gpu = min(free, key=lambda gpu: taken[gpu]) if free else None
        taken[gpu] += 1
        processes.append(_start(home, plan, call, snapshot, gpu))
    return processes


def _start(home: Home, plan: Path, call: str, snapshot: Path, gpu: str | None) -> subprocess.Popen[bytes]:
    # -P keeps the current folder off the import path: the worker must find the snapshot and nothing else.
    command = [sys.executable, "-P", "-m", "sweeps.worker"]
    command += ["--home", str(home.path), "--plan", str(plan), "--call", call]
    environment = os.environ | {"PYTHONPATH": str(snapshot), "OPENBLAS_NUM_THREADS": "1"}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    log = plan / "workers" / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    # Registered by us, at once: another launcher must not start its own while this one imports torch.
    claim = claim_identity(process.pid) | {"call": call, "gpu": gpu, "started_at": now()}
    try:
        write_json(log.with_suffix(".json"), claim)
    except OSError:
        stop([process])  # nobody would know of it
        raise
    return process


def living(plan: Path) -> list[int]:
    """Process ids of workers of this plan that are alive on this host."""
    return [int(claim["pid"]) for claim in _living(plan)]


def _living(plan: Path) -> list[dict[str, Any]]:
    # A file that a crash has torn is left out: its process is gone.
    return [claim for claim in read_folder(plan / "workers", {"gpu?": str | None}) if process_alive(claim)]


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Ask workers to save and end; True when all have ended within STOP_WITHIN_S."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    return ended(processes, STOP_WITHIN_S)


def ended(processes: Sequence[subprocess.Popen[bytes]], within_s: float) -> bool:
    """Whether all have ended, waiting so long at most."""
    end = time.monotonic() + within_s
    while any(p.poll() is None for p in processes) and time.monotonic() < end:
        time.sleep(0.05)
    return all(p.poll() is not None for p in processes)
