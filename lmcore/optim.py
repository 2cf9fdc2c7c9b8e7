"""The optimiser and its parameter groups."""

from collections.abc import Iterable

import torch
from torch import nn

from lmcore.config import TrainConfig

Named = Iterable[tuple[str, nn.Parameter]]


def build(named: Named, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW with decoupled decay (Loshchilov & Hutter 2019) on weight matrices; on everything with `decay_all`.

    Norm gains, biases and embeddings are not decayed by default: shrinking them has no regularising meaning.
    """
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in named:
        (decayed if train.decay_all or _is_matrix(name, parameter) else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        eps=train.eps,
        fused=True,
    )


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() == 2 and name not in ("embedding.weight", "positions")


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The same learning rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr
