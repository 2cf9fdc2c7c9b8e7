"""Optimisers and their parameter groups."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from lmcore.config import TrainConfig

Named = Iterable[tuple[str, nn.Parameter]]
Optimizers = Sequence[torch.optim.Optimizer]


LrFactor = Callable[[str, int], float]


def same_for_all(name: str, dim: int) -> float:
    """The learning rate of the run for every parameter."""
    return 1.0


def build(named: Named, train: TrainConfig, lr_factor: LrFactor = same_for_all) -> Optimizers:
    """One optimiser, or two with Muon; every parameter is in exactly one of their groups.

    adamw    decoupled decay (Loshchilov & Hutter 2019)
    adam_l2  the same with decay added to the gradient, so that the second moment divides it too (Kingma & Ba 2015)
    muon     orthogonalised momentum for the matrices of the layers (Jordan et al. 2024), its step scaled to AdamW's
             size so that one learning rate serves both (Liu et al. 2025); AdamW for everything else. A stored matrix
             is orthogonalised as a whole: q, k, v together, gate and up together

    Weight matrices are decayed; norm gains, biases and embeddings only with `decay_all`, for shrinking them has no
    regularising meaning. `lr_factor(name, dim)` is a parameter's learning rate in units of the run's; where it is not 1
    the decay is divided by it, so that learning rate times decay is the same for all (Yang et al. 2022, B.3).
    """
    parameters = list(named)
    if train.optimizer == "muon":
        hidden = [(name, p) for name, p in parameters if name.startswith("blocks.") and p.dim() == 2]
        rest = [(name, p) for name, p in parameters if not (name.startswith("blocks.") and p.dim() == 2)]
        return [_muon(hidden, train), _adam(rest, train, lr_factor)]
    return [_adam(parameters, train, lr_factor)]


def _adam(named: Named, train: TrainConfig, lr_factor: LrFactor) -> torch.optim.Optimizer:
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        decayed = train.decay_all or _is_matrix(name, parameter)
        groups.setdefault((not decayed, lr_factor(name, parameter.dim())), []).append(parameter)
    kind = torch.optim.Adam if train.optimizer == "adam_l2" else torch.optim.AdamW
    options = [
        {"params": groups[key], "weight_decay": 0.0 if kept else _decay(train, factor), "lr_factor": factor}
        for key in sorted(groups)
        for kept, factor in [key]
    ]
    return kind(options, lr=train.lr, betas=(train.beta1, train.beta2), eps=train.eps, fused=True)


def _decay(train: TrainConfig, factor: float) -> float:
    return train.weight_decay if train.optimizer == "adam_l2" else train.weight_decay / factor


def _muon(named: Named, train: TrainConfig) -> torch.optim.Optimizer:
    parameters = [parameter for _, parameter in named]
    return torch.optim.Muon(parameters, lr=train.lr, weight_decay=train.weight_decay, adjust_lr_fn="match_rms_adamw")


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() == 2 and name not in ("embedding.weight", "positions")


def set_lr(optimizers: Optimizers, lr: float) -> None:
    """The run's learning rate, times the factor of each group."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)


def step(optimizers: Optimizers) -> None:
    """One update of everything."""
    for optimizer in optimizers:
        optimizer.step()


def zero_grad(optimizers: Optimizers) -> None:
    """Forget all gradients."""
    for optimizer in optimizers:
        optimizer.zero_grad()


def state_of(optimizers: Optimizers, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    """The state that belongs to a parameter, in whichever optimiser it is; filled in place when resuming."""
    for optimizer in optimizers:
        if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
            state: dict[str, torch.Tensor] = optimizer.state[parameter]
            return state
    raise KeyError("a parameter that no optimiser holds")
