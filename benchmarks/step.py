"""One training step beside other implementations: `python -m benchmarks.step --nanogpt model.py`.

All take turns, each in its process, at the same shape, batches and threads; only ratios count. `--clock cpu` counts the
CPU seconds of the process instead of the wall's: on a machine with other load, with one thread, that is the fairer one.
"""

import argparse
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import peers, recorded
from benchmarks.ours import our_step
from benchmarks.turns import CLOCKS, Make, Step, measure
from lmcore import auto
from lmcore.config import ModelConfig, RunConfig, replace
from lmcore.count import train_flops_per_token
from lmcore.peak import DTYPES
from lmcore.presets import PRESETS
from sweeps.environment import cpu_name

FAST = "lab, auto"
SIZE, PRODUCTS = 768, 20  # of the products that give the peak
# Name -> run. The second is the layer stack of GPT-2 small; its vocabulary is small, so that the layers are measured.
SHAPES = {
    "stories-810k": replace(RunConfig(model=PRESETS["stories-810k"]), {"train.batch": 32, "train.steps": 1500}),
    "gpt2-stack": replace(
        RunConfig(),
        {
            "model.d_model": 768,
            "model.n_head": 12,
            "model.n_layer": 2,
            "model.context": 1024,
            "model.vocab": 512,
            "train.batch": 2,
            "train.steps": 1500,
        },
    ),
}
OURS: dict[str, dict[str, Any]] = {
    "lab, float32": {},
    "lab, bf16": {"train.precision": "bf16"},
    FAST: {"train.precision": "auto", "train.attention": "auto", "train.compile": "auto"},
}
SWITCHES: dict[str, dict[str, Any]] = {
    "base": {},
    "post-norm": {"model.norm_position": "post"},
    "GQA": {"model.n_kv_head": 2},
    "no RoPE": {"model.position": "none"},
}


def ours(run: RunConfig, changes: Mapping[str, Mapping[str, Any]], threads: int) -> dict[str, Make]:
    """For each set of changes a step, `auto` resolved."""
    made: dict[str, Make] = {}
    for name, change in changes.items():
        config, why = auto.resolve({name: replace(run, {**change, "train.threads": threads})})
        print(*(f"{name}: {line}" for line in why), sep="\n", end="\n" if why else "")
        made[name] = partial(our_step, config[name])
    return made


def products(precision: str) -> Step:
    """Large matrix products, as many as take about as long as a step: what the machine can do while it is measured."""
    a = torch.randn(SIZE, SIZE).to(DTYPES[precision])
    out = torch.empty_like(a)

    def step(number: int) -> float:
        for _ in range(PRODUCTS):
            torch.mm(a, a, out=out)
        return 0.0

    return step


def beside_peers(shape: str, threads: int, rounds: int, clock: str, nanogpt: Path | None) -> dict[str, float]:
    """Print a table; returns our best time over each other's."""
    run = SHAPES[shape]
    makes: dict[str, Make] = {f"products, {name}": partial(products, name) for name in DTYPES}
    found = measure(ours(run, OURS, threads) | peers.makes(run, nanogpt) | makes, rounds, threads, clock)
    peak = {name: PRODUCTS * 2 * SIZE**3 / found.pop(f"products, {name}").best for name in DTYPES}
    flops = step_flops(run.model, run.train.batch)
    print(
        f"\n{shape}, {threads} thread(s), {flops / 1e9:.1f} GFLOP a step, {clock} clock, {rounds} rounds; products of"
    )
    print(f"this machine: float32 {peak['float32'] / 1e12:.3f}, bf16 {peak['bf16'] / 1e12:.3f} TFLOP/s")
    fast = found[FAST].best
    for name, timed in sorted(found.items(), key=lambda item: item[1].best):
        rate = flops / timed.best / peak["float32" if name == "lab, float32" else "bf16"]
        times = f"best {timed.best * 1e3:7.1f} ms  median {timed.median * 1e3:7.1f} ms"
        print(f"{name:<30} {times}  {timed.best / fast:5.2f} x  {rate:4.0%} of the peak")
    return {name: fast / timed.best for name, timed in found.items() if name != FAST}


def switches(shape: str, threads: int, rounds: int, clock: str, eager: bool) -> dict[str, float]:
    """What each switch costs beyond what its FLOPs say: time over FLOPs, that of the base being 1."""
    run = SHAPES[shape]
    window = {"window": {"model.window": run.model.context // 4}}
    how = OURS[FAST] | ({"train.compile": False} if eager else {})
    changes = {name: how | change for name, change in {**SWITCHES, **window}.items()}
    found = measure(ours(run, changes, threads), rounds, threads, clock)
    base = step_flops(run.model, run.train.batch)
    ratios = {}
    for name, timed in found.items():
        share = step_flops(replace(run, changes[name]).model, run.train.batch) / base
        ratios[name] = timed.best / found["base"].best / share
        print(f"{name:<10} best {timed.best * 1e3:7.1f} ms, FLOPs x {share:.3f}, time over FLOPs {ratios[name]:.2f}")
    return ratios


def step_flops(m: ModelConfig, batch: int) -> float:
    return float(train_flops_per_token(m) * batch * m.context)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.step", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="stories-810k")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--nanogpt", type=Path, help="its model.py")
    parser.add_argument("--switches", action="store_true", help="our switches instead of peers")
    parser.add_argument("--eager", action="store_true", help="with --switches: not compiled")
    parser.add_argument("--record", action="store_true", help="keep the ratios in recorded.json")
    parser.add_argument("--compare", action="store_true", help="name what got worse than recorded by more than 15 %%")
    given = parser.parse_args(arguments)
    if given.switches:
        ratios = switches(given.shape, given.threads, given.rounds, given.clock, given.eager)
    else:
        ratios = beside_peers(given.shape, given.threads, given.rounds, given.clock, given.nanogpt)
    kind = f"step{'-switches' if given.switches else ''}{'-eager' if given.eager else ''}"
    name = f"{kind}/{given.shape}/{given.threads}"
    if given.record:
        recorded.record(name, ratios, f"{cpu_name()}, {os.cpu_count()} cores")
    if given.compare:
        print("\n".join(recorded.worse(name, ratios) or ["nothing got worse by more than 15 %"]))


if __name__ == "__main__":
    main()
