"""The feed-forward sublayer, plain and gated."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from lmcore.config import ModelConfig


def relu2(x: Tensor) -> Tensor:
    """ReLU squared (So et al. 2021)."""
    return F.relu(x).square()


_gelu_tanh = partial(F.gelu, approximate="tanh")

# Gated kinds apply the function to the gate only (Shazeer 2020).
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "relu2": relu2,
    "glu": F.sigmoid,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": _gelu_tanh,
    "swiglu": F.silu,
}


class FFN(nn.Module):
    """down(act(up x)), or down(act(gate x) * up x) when gated. (..., D) to (..., D)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        bias = config.bias in ("all", "ffn")
        self.gated, self.activation = config.gated, ACTIVATION[config.ffn]
        # One matrix for gate and up (rows: gate, then up): one large product is faster than two small ones.
        self.up = nn.Linear(config.d_model, config.d_ff * (2 if self.gated else 1), bias=bias)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)  # type: ignore[no-any-return]
