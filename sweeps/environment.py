"""What an attempt ran on: versions and hardware. No environment variables: they hold secrets."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

from lmcore.attention import runs_path
from lmcore.config import RunConfig

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "pydantic")


def describe(config: RunConfig, device: str) -> dict[str, Any]:
    """The `env` of start.json."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "threads": config.train.threads,
        "precision": config.train.precision,
        "attention": runs_path(config.model, config.train.attention),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def peak_memory_bytes(device: str) -> int:
    """Largest resident set of this process, or the largest allocation on the GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource

    kilobyte = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobyte
