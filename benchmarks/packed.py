"""Several small runs on one device: `python -m benchmarks.packed [--device cuda] [--runs 4] [--smoke]`.

One run alone; several processes at once, a run each, as `--runs-per-gpu` does it; and as many runs in one process whose
weights are stacked, so that a product of all is one batched product (torch.func's vmap over the step of one). They take
turns; the rate counts steps of all runs. Needs torch with numpy only.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, stack_module_state

from benchmarks import bare  # noqa: F401  first, because it stands in for a package that may be missing
from benchmarks.gpu import CUT
from benchmarks.ours import our_step
from benchmarks.tokens import batches
from benchmarks.turns import Contender, Step, Timed
from lmcore.config import RunConfig, replace
from lmcore.heap import keep_freed_memory
from lmcore.model import LM
from lmcore.presets import PRESETS

Tensors = dict[str, Tensor]

# Without decay, so that one optimiser over stacked weights is the same as one for each run.
RUN = replace(RunConfig(model=PRESETS["stories-810k"]), {"train.batch": 32, "train.weight_decay": 0.0})


class Stacked:
    """Runs of one shape that differ in their seeds: parameters (runs, ...), updated by one AdamW."""

    def __init__(self, run: RunConfig, count: int, device: str) -> None:
        means = run.train.means
        models = [LM(run.model, seed=run.seed + i, path=means.attention).to(device) for i in range(count)]
        for model in models:
            model.make_ready(run.model.context, torch.device(device))
        self.run, self.device, self.base = run, device, models[0]
        self.parameters, self.buffers = stack_module_state(models)
        train = run.train
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), train.lr, (train.beta1, train.beta2), train.eps, 0.0, fused=True
        )
        self.losses: Callable[..., Tensor] = torch.vmap(self.loss)
        if means.compile:
            self.losses = torch.compile(self.losses, dynamic=False)

    def loss(self, parameters: Tensors, buffers: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of one run; a number."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.run.train.means.precision == "bf16"):
            logits = functional_call(self.base, (parameters, buffers), (inputs,))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def update(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Losses (runs,) before an update of every run, on batches (runs, B, T)."""
        losses = self.losses(self.parameters, self.buffers, inputs, targets)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses.detach()

    def clip(self) -> None:
        """Each run by its own norm."""
        limit = self.run.train.clip
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0).sqrt()
        factors = (float("inf") if limit is None else limit) / (norms + 1e-6)
        for gradient in gradients:
            gradient.mul_(factors.clamp(max=1.0).view(-1, *[1] * (gradient.dim() - 1)))


def stacked_step(run: RunConfig, count: int, device: str) -> Step:
    """An update of `count` runs at once, on the same batch each."""
    keep_freed_memory()
    stacked, batch = Stacked(run, count, device), batches(run, device)

    def step(number: int) -> float:
        inputs, targets = (part.expand(count, *part.shape) for part in batch(number))
        return float(stacked.update(inputs, targets)[0])

    return step


def several(make: Callable[[], Step], steps: int) -> Step:
    """`steps` steps as one turn."""
    step = make()

    def turn(number: int) -> float:
        for i in range(steps):
            last = step(number * steps + i + 1)
        return last

    return turn


def difference(run: RunConfig, steps: int = 5) -> float:
    """The largest difference of a loss between a run alone and the same run stacked with another."""
    alone, together = our_step(run), stacked_step(run, 2, "cpu")
    return max(abs(alone(number) - together(number)) for number in range(1, steps + 1))


def at_once(contenders: list[Contender], number: int) -> float:
    """Seconds until all have made their turn."""
    began = time.perf_counter()
    for contender in contenders:
        contender.begin(number)
    for contender in contenders:
        contender.answer()
    return time.perf_counter() - began


def measure(run: RunConfig, runs: int, steps: int, rounds: int, device: str) -> dict[str, tuple[int, Timed]]:
    """How many runs each way makes at once, and the seconds of its turns of `steps` steps."""
    alone, stacked = partial(our_step, run, device), partial(stacked_step, run, runs, device)
    ways = {"one run": [alone], f"{runs} processes": [alone] * runs, f"{runs} runs stacked": [stacked]}
    made = {
        name: [Contender(partial(several, make, steps), run.train.means.threads, "wall") for make in makes]
        for name, makes in ways.items()
    }
    try:
        for contenders in made.values():
            for number in range(2):  # warms up and compiles
                at_once(contenders, number)
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for number in range(2, 2 + rounds):
            for name, contenders in made.items():
                seconds[name].append(at_once(contenders, number))
    finally:
        for contender in (one for contenders in made.values() for one in contenders):
            contender.end()
    return {name: (1 if name == "one run" else runs, Timed(taken)) for name, taken in seconds.items()}


def main(arguments: list[str] | None = None) -> None:
    """Print the rate of each way."""
    parser = argparse.ArgumentParser(prog="benchmarks.packed", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="of one turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    parser.add_argument("--eager", action="store_true", help="not compiled")
    parser.add_argument("--smoke", action="store_true", help="tiny, not compiled")
    given = parser.parse_args(arguments)
    attention = "fused" if given.device == "cuda" else "plain"
    how = {"train.precision": given.precision, "train.attention": attention, "train.compile": not given.eager}
    run = replace(RUN, how | (CUT | {"model.context": 64, "train.compile": False} if given.smoke else {}))
    plain = replace(run, {"train.precision": "float32", "train.attention": "plain", "train.compile": False})
    print(f"largest difference of a loss between alone and stacked, float32: {difference(plain):.1e}")
    found = measure(run, given.runs, given.steps, given.rounds, given.device)
    alone = found["one run"][1].median
    for name, (runs, timed) in found.items():
        rate = runs * given.steps / timed.median
        print(f"{name:<20} {rate:8.1f} steps/s of all runs, {runs * alone / timed.median:5.2f} times one run alone")


if __name__ == "__main__":
    main()
