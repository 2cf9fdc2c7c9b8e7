"""Small real runs, and real processes to kill."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from results.home import Home
from results.record import Attempt, RunFolder
from results.state import claimable, run_state

ROOT = Path(__file__).parents[2]


@contextmanager
def without_fsync() -> Iterator[None]:
    """For tests that write very many files and do not cut the power."""
    with patch("os.fsync"):
        yield


def run_id(number: int) -> str:
    return f"{number:012x}"


def spec(number: int = 0, steps: int = 100, **changes: Any) -> dict[str, Any]:
    account = {"steps": steps, "params": 10, "params_non_embedding": 8, "tokens": 1000, "kv_bytes_per_token": 4}
    return {
        "format": 1,
        "run_id": run_id(number),
        "group_id": "group",
        "seed": number,
        "config": {"model": {"d_model": 64}, "train": {"lr": 1e-3}},
        "account": {**account, "flops_per_token": 60.0, "train_flops": 1e20},
        "data": {"name": "tiny", "fingerprint": "f", "tokenizer": "bytes", "vocab": 256},
        **changes,
    }


def new_run(home: Home, number: int = 0, steps: int = 100) -> RunFolder:
    run = home.run(run_id(number))
    run.create(spec(number, steps))
    return run


def claim_if_allowed(run: RunFolder) -> Attempt | None:
    """Look and claim, as a worker does."""
    seen = run_state(run)
    return run.claim({}, after=seen.attempts) if claimable(seen.state) else None


def must_claim(run: RunFolder, **owner: Any) -> Attempt:
    attempt = run.claim(owner)
    assert attempt is not None
    return attempt


def started(run: RunFolder, resume_step: int = 0, **owner: Any) -> Attempt:
    attempt = must_claim(run, **owner)
    attempt.start(resume_step, {"python": "3"})
    return attempt


def train_row(step: int, loss: float = 1.5) -> dict[str, float | int]:
    return {
        "step": step,
        "tokens": 10 * step,
        "flops": 600.0 * step,
        "wall_s": 0.1 * step,
        "loss": loss,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "tokens_per_s": 100.0,
    }


def eval_row(step: int, loss: float = 1.5, split: str = "val") -> dict[str, Any]:
    return {
        "step": step,
        "split": split,
        "tokens": 10 * step,
        "loss": loss,
        "perplexity": 4.5,
        "bits_per_byte": 2.0,
    }


def telemetry_rows(step: int, value: float = 0.5, layers: int = 2) -> list[dict[str, Any]]:
    return [{"step": step, "name": "activation_rms", "layer": layer, "value": value} for layer in range(layers)]


def finished(home: Home, number: int, steps: int = 5) -> RunFolder:
    """A run that is done, with one train row per step and an evaluation at both ends."""
    run = new_run(home, number, steps)
    attempt = started(run)
    attempt.eval_row(eval_row(0))
    for step in range(1, steps + 1):
        attempt.train_row(train_row(step, loss=1 / step))
    attempt.eval_row(eval_row(steps))
    attempt.done({"step": steps, "tokens": 10 * steps, "train_loss": 1 / steps, "val_loss": 1.5, "wall_s": 0.5})
    attempt.close()
    return run


def python(script: str, *args: object) -> "subprocess.Popen[str]":
    """Run `script` in an interpreter of its own, with pipes for its stdin and stdout."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def say(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> int:
    """Wait for the end and close the pipes."""
    process.communicate()
    return process.returncode


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of that size at `path`; skips the test where it cannot be mounted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root to mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Use up the space at `folder` except for `leave_bytes`; returns the file to delete again."""
    junk = folder / "junk"
    with junk.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(b"\0" * 4096) == 4096:
                continue
        if leave_bytes:
            file.truncate(max(0, file.tell() - leave_bytes))
    return junk
