"""What a run tells about its inside every k steps: numbers that drift before a loss shows it.

Nothing here takes part in training. The forward pass is one of its own, without gradient, on a few sequences; hooks are
set for its duration only, so kernels and compiled code of the training step stay as they are. The model is not known
here: its blocks and a forward function are given.

Names of the rows; `layer` counts from 0, and MODEL stands for the whole model:

update_ratio/GROUP    ||change of the weights|| / ||weights before|| in one update, per group of parameters
activation_rms        root mean square of the residual stream after a block
attention_max_logit   largest score before the softmax (Dehghani et al. 2023; Wortsman et al. 2023)
attention_entropy     mean entropy of the attention weights of a query, in nats (Zhai et al. 2023)
log_normaliser        mean over tokens of logsumexp(logits), in nats (Chowdhery et al. 2022, section 5)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmcore.parallel import whole

MODEL = -1
TOKENS = 1024  # of the batch that the separate forward pass sees: enough for a mean, little beside a step

Named = Iterable[tuple[str, nn.Parameter]]
Weights = dict[str, list[Tensor]]


class Reading(NamedTuple):
    """One number, still on its device: a scalar tensor."""

    name: str
    layer: int
    value: Tensor


def group_of(name: str) -> str:
    """The group of a parameter by its name: embedding, attention, ffn, head or norms."""
    parts = name.split(".")
    if any("norm" in part for part in parts):
        return "norms"
    if parts[0] in ("embedding", "positions"):
        return "embedding"
    return next((group for group in ("attention", "ffn") if group in parts), "head")


def grouped(named: Named) -> Weights:
    """The parameters of each group, as they are."""
    groups: Weights = {}
    for name, parameter in named:
        groups.setdefault(group_of(name), []).append(parameter.detach())
    return groups


def copied(weights: Weights) -> Weights:
    """The same values in memory of their own: as much as the weights take."""
    return {group: [weight.clone() for weight in weights[group]] for group in weights}


def update_ratios(before: Weights, after: Weights) -> list[Reading]:
    """||after - before|| / ||before|| of each group; none where all weights are still 0."""
    readings = []
    for group, old in before.items():
        changes = [new - weight for new, weight in zip(after[group], old, strict=True)]
        size = joint_norm(old)
        if size > 0:
            readings.append(Reading(f"update_ratio/{group}", MODEL, joint_norm(changes) / size))
    return readings


def joint_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of all entries of all tensors together, float32."""
    norms = [whole(torch.linalg.vector_norm(tensor.float())) for tensor in tensors]
    together: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together


def rms(x: Tensor) -> Tensor:
    """Root mean square over all entries, float32."""
    return x.float().square().mean().sqrt()


def entropy(scores: Tensor) -> Tensor:
    """Mean over all queries of the entropy of softmax(scores), in nats. scores (..., T, S), -inf where hidden."""
    of_queries: Tensor = torch.special.entr(scores.float().softmax(dim=-1)).sum(dim=-1)
    return of_queries.mean()


@torch.no_grad()
def forward_readings(
    forward: Callable[[Tensor], Tensor], blocks: Sequence[nn.Module], token_ids: Tensor
) -> list[Reading]:
    """Readings of one forward pass over token_ids (B, T); `forward` gives logits (B, T, vocab).

    `blocks` give the residual stream (B, T, D). Where a module inside them has a method `scores`, it is called with
    the module's own arguments and returns the scores (B, H, T, S) before the softmax.
    """
    readings: list[Reading] = []
    with _hooked(blocks, readings):
        logits = forward(token_ids)
    readings.append(Reading("log_normaliser", MODEL, logits.float().logsumexp(dim=-1).mean()))
    return readings


@contextmanager
def _hooked(blocks: Sequence[nn.Module], readings: list[Reading]) -> Iterator[None]:
    """While this is open, the forward passes of the blocks leave readings behind."""
    handles = []
    for layer, block in enumerate(blocks):
        handles.append(block.register_forward_hook(_stream_hook(layer, readings)))
        for module in block.modules():
            if hasattr(module, "scores"):
                handles.append(module.register_forward_hook(_scores_hook(layer, readings)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _stream_hook(layer: int, readings: list[Reading]) -> Callable[[nn.Module, object, Tensor], None]:
    def hook(module: nn.Module, arguments: object, stream: Tensor) -> None:
        readings.append(Reading("activation_rms", layer, rms(stream)))

    return hook


def _scores_hook(layer: int, readings: list[Reading]) -> Callable[[nn.Module, tuple[object, ...], object], None]:
    def hook(module: nn.Module, arguments: tuple[object, ...], result: object) -> None:
        scores: Tensor = module.scores(*arguments)  # type: ignore[operator]
        readings.append(Reading("attention_max_logit", layer, scores.max()))
        readings.append(Reading("attention_entropy", layer, entropy(scores)))

    return hook


def rows(step: int, readings: Sequence[Reading]) -> list[dict[str, float | int | str]]:
    """Readings as rows (step, name, layer, value); all values leave the device in one transfer."""
    values = torch.stack([reading.value.float() for reading in readings]).tolist()
    return [
        {"step": step, "name": reading.name, "layer": reading.layer, "value": value}
        for reading, value in zip(readings, values, strict=True)
    ]
