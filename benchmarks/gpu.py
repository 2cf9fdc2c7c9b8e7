"""Training speed on a GPU: `python -m benchmarks.gpu [--nanogpt model.py] [--smoke]`.

Needs torch with numpy and this source; no network, no other package. bf16, torch.compile, fused AdamW, random tokens.
Prints tokens/s, MFU and peak memory for GPT-2 small (124M), a model of about 1B and the stories shape. MFU is exact
causal training FLOPs over the products that this card was measured to make, and over --peak if it is given.
`--smoke` runs tiny cuts of the same shapes on the CPU, to see that it works.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import bare  # noqa: F401  first, because it stands in for a package that may be missing
from benchmarks.ours import our_step
from benchmarks.peers import nanogpt, training_step
from benchmarks.tokens import batches
from benchmarks.turns import Step
from lmcore.config import RunConfig, replace
from lmcore.count import params, train_flops_per_token
from lmcore.peak import measure_peak
from lmcore.presets import PRESETS

# Name -> run; the vocabulary of GPT-2 is rounded up to a multiple of 64, as its fast trainings do.
SHAPES: dict[str, dict[str, Any]] = {
    "124M": {
        "model.vocab": 50304,
        "model.d_model": 768,
        "model.n_layer": 12,
        "model.n_head": 12,
        "model.ffn": "gelu_tanh",
        "model.tied": True,
        "model.context": 1024,
        "train.batch": 32,
    },
    "1B": {
        "model.vocab": 50304,
        "model.d_model": 2048,
        "model.n_layer": 18,
        "model.n_head": 16,
        "model.context": 2048,
        "train.batch": 8,
    },
    "stories-810k": {"train.batch": 32},
}
CUT = {"model.d_model": 64, "model.n_layer": 2, "model.n_head": 2, "model.vocab": 256, "train.batch": 2}
GPU_ONLY = {"train.precision": "bf16", "train.compile": True}


@dataclass(frozen=True)
class Speed:
    """One contender at one shape."""

    tokens_per_s: float
    memory_bytes: int


def shapes(smoke: bool) -> Iterator[tuple[str, RunConfig]]:
    """Each shape as a run; with `smoke` a cut of it, not compiled."""
    for name, changes in SHAPES.items():
        base = RunConfig(model=PRESETS[name]) if name in PRESETS else RunConfig()
        yield name, replace(base, {**changes, **(CUT | {"model.context": 64} if smoke else GPU_ONLY)})


def nanogpt_step(run: RunConfig, device: torch.device, file: Path) -> Step:
    """The same of nanoGPT, at the same sizes."""
    model, loss = nanogpt(run.model, file)
    return training_step(model.to(device), loss, batches(run, device.type), run.train.means.compile, device.type)


def speed(step: Step, tokens: int, steps: int, device: torch.device) -> Speed:
    """Tokens a second over `steps` steps, after three that warm up and compile."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for number in range(1, 4):
        step(number)
    began = time.perf_counter()
    for number in range(steps):
        step(number)  # ends with the loss on the CPU: nothing is left in flight
    seconds = time.perf_counter() - began
    return Speed(tokens * steps / seconds, torch.cuda.max_memory_allocated() if device.type == "cuda" else 0)


def report(name: str, run: RunConfig, found: Speed, peaks: list[tuple[str, float]]) -> None:
    """One line."""
    flops = train_flops_per_token(run.model) * found.tokens_per_s
    mfu = ", ".join(f"{flops / peak:.1%} of {what}" for what, peak in peaks)
    memory = f"{found.memory_bytes / 2**30:.1f} GiB"
    print(f"{name:<24} {found.tokens_per_s:12,.0f} tokens/s  MFU {mfu}  {memory}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--nanogpt", type=Path, help="its model.py")
    parser.add_argument("--peak", type=float, help="bf16 FLOP/s of the data sheet")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--smoke", action="store_true", help="tiny cuts of the shapes, on the CPU")
    given = parser.parse_args(arguments)
    if not (given.smoke or torch.cuda.is_available()):
        sys.exit("no CUDA device here; --smoke runs tiny cuts of the shapes on the CPU")
    device = torch.device("cpu" if given.smoke else "cuda")
    print(f"torch {torch.__version__}, {'CPU' if given.smoke else torch.cuda.get_device_name()}")
    measured = measure_peak(device.type).flops_per_s["bf16"]
    peaks = [(f"the measured {measured / 1e12:.3g} TFLOP/s", measured)]
    peaks += [("the data sheet's", given.peak)] if given.peak else []
    for name, run in shapes(given.smoke):
        print(f"{name}: {params(run.model):,} parameters, context {run.model.context}, batch {run.train.batch}")
        tokens, steps = run.train.batch * run.model.context, 2 if given.smoke else given.steps
        report(f"  lab {name}", run, speed(our_step(run, device.type), tokens, steps, device), peaks)
        if given.nanogpt:
            torch.compiler.reset()
            report(
                f"  nanoGPT {name}", run, speed(nanogpt_step(run, device, given.nanogpt), tokens, steps, device), peaks
            )
        torch.compiler.reset()


if __name__ == "__main__":
    main()
