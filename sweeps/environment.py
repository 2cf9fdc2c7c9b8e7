"""What an attempt ran on: versions and hardware. No environment variables: they hold secrets."""

import hashlib
import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lmcore.attention import runs_path
from lmcore.config import RunConfig
from results.files import write_bytes
from results.home import Home

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "pydantic")


def describe(config: RunConfig, device: str) -> dict[str, Any]:
    """The `env` of start.json."""
    return {
        "lock": _hash(installed()),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "threads": config.train.means.threads,
        "processes": config.train.processes,
        "precision": config.train.means.precision,
        "attention": runs_path(config.model, config.train.means.attention),
        "compile": config.train.means.compile,
    }


@cache
def installed() -> tuple[str, ...]:
    """Every installed package as name==version, sorted."""
    found = ((dist.metadata["Name"], dist.version) for dist in importlib.metadata.distributions())
    return tuple(sorted({f"{name.lower()}=={version}" for name, version in found if name}))


def write_lock(home: Home) -> None:
    """Store the versions installed here under their hash, once; again if somebody damaged them."""
    path = home.locks / f"{_hash(installed())}.txt"
    if _locked(path) != installed():
        home.locks.mkdir(parents=True, exist_ok=True)
        write_bytes(path, ("\n".join(installed()) + "\n").encode())


def differences(lock: Path) -> list[str]:
    """What is installed here otherwise than `lock` says: 'name 1.0 -> 1.1'. A lock that is gone differs in itself."""
    locked = _locked(lock)
    if locked is None:
        return [f"{lock} is gone"]
    there, here = (dict(line.partition("==")[::2] for line in lines) for lines in (locked, installed()))
    names = sorted(name for name in there | here if there.get(name) != here.get(name))
    return [f"{name} {there.get(name, '(absent)')} -> {here.get(name, '(absent)')}" for name in names]


def _locked(lock: Path) -> tuple[str, ...] | None:
    try:
        return tuple(lock.read_text(errors="replace").split())
    except FileNotFoundError:
        return None


def _hash(lines: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def cpu_name() -> str:
    """The model of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_memory_bytes(device: str) -> int:
    """Largest resident set of this process, or the largest allocation on the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated()
    import resource

    kilobyte = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte
