"""Settings with the value `auto` become values: once, when runs are planned, from what the planning machine is.

Facts and not timings decide, for the values belong to a run's identity: a busy machine must not plan other runs.
Thresholds are from `benchmarks/README.md`. No torch is loaded unless something is `auto`.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lmcore.config import AUTO, AttentionPath, Means, RunConfig, replace
from lmcore.count import train_flops_per_token

BF16_FLAGS = ("amx_bf16", "avx512_bf16")  # of x86: products of bf16 at twice to eight times the float32 rate
# In bf16 on a CPU plain attention beats torch's kernel up to here; longer was not measured. In float32 and on a
# GPU the kernel wins.
PLAIN_UP_TO = 1024  # tokens
# Rough, on purpose: compiling must pay clearly. Rates are of the step that is not compiled.
CPU_FLOPS_PER_S = {"float32": 4e10, "bf16": 5e10}  # per thread
GPU_FLOPS_PER_S = 1e14
LAYER_S = 2e-3  # of a step whatever its size: a layer's small operations
SAVED = 0.4  # share of the step that compiling saves
COMPILE_S = 20.0
COMPILE_LAYER_S = 4.0


@dataclass(frozen=True)
class Machine:
    """What the machine at hand has. `no_compiler`: why torch.compile cannot work here, or None."""

    cores: int
    bf16: str | None  # what multiplies bf16 fast
    gpu: bool
    no_compiler: str | None


@cache
def this_machine() -> Machine:
    """The machine that asks: on a cluster that is the one that plans."""
    import torch

    gpu = torch.cuda.is_available()
    flags = _cpu_flags()
    unit = "this GPU" if gpu and torch.cuda.is_bf16_supported() else next((f for f in BF16_FLAGS if f in flags), None)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores, unit, gpu, None if gpu else _no_compiler())


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _no_compiler() -> str | None:
    """torch.compile builds C++ that includes Python's own headers."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return f"there is no {compiler}"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python.h is missing (python3-dev)"
    return None


def resolve(
    configs: Mapping[str, RunConfig], machine: Machine | None = None, at_once: int | None = None
) -> tuple[dict[str, RunConfig], list[str]]:
    """The configs of all arms without `auto`, and a line for each decision.

    Precision, threads and compile are one choice for all arms. `at_once`: the runs that may share the cores; None: one
    of each arm.
    """
    waiting = [c for c in configs.values() if AUTO in (getattr(c.train, name) for name in Means._fields)]
    if not waiting:
        return dict(configs), []
    machine = machine or this_machine()
    choices: dict[str, tuple[Any, str]] = {
        "precision": _precision(machine),
        "threads": _threads(machine, at_once or len(configs)),
    }
    first = {name: _filled(config, {k: v for k, (v, _) in choices.items()}) for name, config in configs.items()}
    asking = [config for config in first.values() if config.train.compile == AUTO]
    choices["compile"] = _compile(machine, asking)
    second = {name: _filled(config, {"compile": choices["compile"][0]}) for name, config in first.items()}
    paths = {name: attention_path(config, machine.gpu) for name, config in second.items()}
    done = {name: _filled(config, {"attention": paths[name]}) for name, config in second.items()}
    used = {name for c in waiting for name in Means._fields if getattr(c.train, name) == AUTO}
    lines = [f"{name} {_word(value)}: {why}" for name, (value, why) in choices.items() if name in used]
    if "attention" in used:
        lines.append(f"attention {', '.join(sorted(set(paths.values())))}: {_why_path(machine.gpu)}")
    return done, lines


def _filled(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    open_ones = {f"train.{name}": value for name, value in values.items() if getattr(config.train, name) == AUTO}
    return replace(config, open_ones) if open_ones else config


def _word(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _precision(machine: Machine) -> tuple[str, str]:
    if machine.bf16:
        return "bf16", f"{machine.bf16} multiplies it faster"
    return "float32", "nothing here multiplies bf16 faster"


def _threads(machine: Machine, at_once: int) -> tuple[int, str]:
    """Seeds do not count: more of them later must not make other runs of the first."""
    if machine.gpu:
        return 1, "the GPU computes"
    return max(1, machine.cores // at_once), f"{machine.cores} cores, {at_once} runs or more to share them"


def _compile(machine: Machine, configs: list[RunConfig]) -> tuple[bool, str]:
    """On only if it pays for every arm: speeds of arms are compared, too."""
    if machine.no_compiler:
        return False, machine.no_compiler
    if any(config.train.sharding == "fsdp" for config in configs):
        return False, "sharded weights"
    for config in configs:
        train, cost = config.train, COMPILE_S + COMPILE_LAYER_S * config.model.n_layer
        seconds = train.steps * step_seconds(config, machine.gpu)
        if SAVED * seconds < cost:
            steps = f"{train.steps} steps of {seconds / train.steps:.2g} s"
            return False, f"{steps} do not pay for {cost:.0f} s of compiling"
    return True, "the steps pay for compiling"


def step_seconds(config: RunConfig, gpu: bool) -> float:
    """A rough guess at the time of one step that is not compiled."""
    train = config.train
    flops = train_flops_per_token(config.model) * train.batch * config.model.context
    threads = train.threads if isinstance(train.threads, int) else 1
    rate = CPU_FLOPS_PER_S["float32" if train.precision == "float32" else "bf16"] * threads
    return flops / (GPU_FLOPS_PER_S if gpu else rate) / train.processes + LAYER_S * config.model.n_layer


def attention_path(config: RunConfig, gpu: bool) -> AttentionPath:
    """The faster kernel for this device, precision and length."""
    plain = not gpu and config.train.precision != "float32" and config.model.context <= PLAIN_UP_TO
    return "plain" if plain else "fused"


def _why_path(gpu: bool) -> str:
    return "a GPU" if gpu else f"on a CPU plain is faster in bf16 up to {PLAIN_UP_TO} tokens, else fused"
