"""Which GPUs this process may use, without importing torch."""

import os
import shutil
import subprocess


def given() -> list[str] | None:
    """Ids in CUDA_VISIBLE_DEVICES; None where it is not set."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if told is None else [gpu for gpu in told.split(",") if gpu.strip()]


def visible() -> list[str]:
    """Those given, else all that the driver lists."""
    told = given()
    if told is not None:
        return told
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return []  # a driver that does not answer serves no run either
    return [str(i) for i, line in enumerate(listed.stdout.splitlines()) if line.startswith("GPU ")]
