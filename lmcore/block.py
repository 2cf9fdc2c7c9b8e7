"""One layer: attention and FFN sublayers, each with its norm in one of four places."""

from typing import cast

from torch import Tensor, nn

from lmcore.attention import Attention, AttentionPath
from lmcore.config import ModelConfig
from lmcore.ffn import FFN
from lmcore.norm import Norm
from lmcore.position import Rotation


class Residual(nn.Module):
    """x and f(x) joined, with the norm in its place; D to D.

    pre       x + f(norm(x))         Xiong et al. 2020
    post      norm(x + f(x))         Vaswani et al. 2017
    sandwich  x + norm(f(norm(x)))   Ding et al. 2021; Gemma 2
    branch    x + norm(f(x))         OLMo 2
    """

    def __init__(self, sublayer: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        place = config.norm_position
        self.sublayer = sublayer
        self.norm_in = Norm(config) if place in ("pre", "sandwich") else None
        self.norm_out = Norm(config) if place in ("sandwich", "branch") else None
        self.norm_sum = Norm(config) if place == "post" else None

    def forward(self, x: Tensor, *context: Rotation | Tensor | None) -> Tensor:
        y = self.sublayer(x if self.norm_in is None else self.norm_in(x), *context)
        y = y if self.norm_out is None else self.norm_out(y)
        return cast(Tensor, x + y if self.norm_sum is None else self.norm_sum(x + y))


class Block(nn.Module):
    """One transformer layer, (B, T, D) to (B, T, D)."""

    def __init__(self, config: ModelConfig, path: AttentionPath) -> None:
        super().__init__()
        self.attention = Residual(Attention(config, path), config)
        self.ffn = Residual(FFN(config), config)

    def forward(self, x: Tensor, by: Rotation | None, mask: Tensor | None) -> Tensor:
        return cast(Tensor, self.ffn(self.attention(x, by, mask)))
