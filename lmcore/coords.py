"""The coordinate check: how much each activation changes in the first updates, against width.

In the width-transfer parametrisation the change has the same size at every width, so one learning rate serves all; in
the standard one it grows (Yang et al. 2022, section 3 and appendix D.1). A slope is that of log change over log width:
0 is flat, 1 doubles when the width does.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore import optim
from lmcore.config import ModelConfig, TrainConfig, replace
from lmcore.init import lr_factor
from lmcore.model import LM
from lmcore.resize import with_d_model

BATCH = 8


@dataclass(frozen=True)
class Coordinates:
    """Root mean square change of each activation after `steps` updates, mean over seeds, by width."""

    widths: tuple[int, ...]
    changes: Mapping[str, tuple[float, ...]]

    def slopes(self) -> dict[str, float]:
        """Least-squares slope of log change over log width, by activation."""
        x = [math.log(width) for width in self.widths]
        return {name: _slope(x, [math.log(value) for value in values]) for name, values in self.changes.items()}


def check(
    model: ModelConfig, widths: Sequence[int], transfer: bool, lr: float = 1e-2, steps: int = 4, seeds: int = 3
) -> Coordinates:
    """Train `model` at every width for a few steps of Adam on fixed random tokens and see what changed.

    Heads and d_ff grow with the width, d_head stays. `transfer`: in the width-transfer parametrisation whose base is
    the smallest width; otherwise in the standard one. Raises ConfigError for a width the model cannot have.
    """
    base = {"base_width": min(widths) if transfer else None}
    seen: dict[str, list[list[float]]] = {}
    for width in widths:
        sized = replace(with_d_model(model, width), base)
        runs = [_changes(sized, lr, steps, seed) for seed in range(seeds)]
        for name in runs[0]:
            seen.setdefault(name, []).append([run[name] for run in runs])
    means = {name: tuple(sum(values) / len(values) for values in by_width) for name, by_width in seen.items()}
    return Coordinates(tuple(widths), means)


def _changes(config: ModelConfig, lr: float, steps: int, seed: int) -> dict[str, float]:
    model = LM(config, seed=seed, path="plain")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, config.vocab, (BATCH, config.context + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    train = TrainConfig(lr=lr, weight_decay=0.0)
    optimizers = optim.build(model.named_parameters(), train, partial(lr_factor, config=config))
    optim.set_lr(optimizers, lr)
    before = _activations(model, inputs)
    for _ in range(steps):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optim.step(optimizers)
        optim.zero_grad(optimizers)
    after = _activations(model, inputs)
    return {name: float((after[name] - before[name]).square().mean().sqrt()) for name in before}


@torch.no_grad()
def _activations(model: LM, inputs: Tensor) -> dict[str, Tensor]:
    """What each sublayer adds to the stream, the stream at its end, and the logits."""
    found: dict[str, Tensor] = {}
    with _noted(model, found):
        found["logits"] = model(inputs)
    return found


@contextmanager
def _noted(model: LM, found: dict[str, Tensor]) -> Iterator[None]:
    handles = []
    for layer, block in enumerate(model.blocks):
        for kind in ("attention", "ffn"):
            sublayer = getattr(block, kind).sublayer
            handles.append(sublayer.register_forward_hook(_note(f"{kind} {layer}", found)))
        handles.append(block.register_forward_hook(_note(f"stream {layer}", found)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(name: str, found: dict[str, Tensor]) -> Callable[[nn.Module, object, Tensor], None]:
    def hook(module: nn.Module, arguments: object, output: Tensor) -> None:
        found[name] = output.clone()

    return hook


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
