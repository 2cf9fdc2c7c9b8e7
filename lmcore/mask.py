"""Who may look at whom. Slots count tokens in memory, padding included; T queries, S keys, B batch, H heads."""

import math

import torch
from torch import Tensor


def visible(queries: Tensor, keys: Tensor, window: int | None = None, real: Tensor | None = None) -> Tensor:
    """(T, S), or (B, 1, T, S) with `real`: True where the query at slot i may look at the key at slot j.

    That is j <= i, within the window i - j < window (which counts the query itself), and not at padding: `real` (B, S)
    is False there. Any slot sees itself, because a softmax over nothing would be NaN.
    """
    distance = queries[:, None] - keys[None, :]
    allowed = distance >= 0
    if window is not None:
        allowed &= distance < window
    if real is None:
        return allowed
    return (allowed & real[:, None, None, :]) | (distance == 0)


def alibi_bias(queries: Tensor, keys: Tensor, n_head: int) -> Tensor:
    """(H, T, S): minus the distance times a slope of each head (Press et al. 2022, section 3)."""
    slopes = torch.tensor(alibi_slopes(n_head), device=queries.device)
    return -slopes[:, None, None] * (queries[:, None] - keys[None, :])


def alibi_slopes(n_head: int) -> list[float]:
    """2^(-8 h / H) for h = 1 .. H; where H is no power of two, those of the next lower one and every other of the next.

    The second rule is that of the paper's published code.
    """
    below = 2 ** math.floor(math.log2(n_head))
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    if below < n_head:
        slopes += alibi_slopes(2 * below)[0::2][: n_head - below]
    return slopes


def additive(allowed: Tensor, bias: Tensor) -> Tensor:
    """`bias` where looking is allowed, minus infinity elsewhere; broadcast to (B or 1, H, T, S)."""
    return torch.where(allowed, bias, torch.tensor(-math.inf, device=bias.device, dtype=bias.dtype))
