"""One layer: attention and FFN sublayers, one after the other or side by side, with their norms."""

from typing import cast

from torch import Tensor, nn

from lmcore.attention import Attention, Sight
from lmcore.cache import LayerCache
from lmcore.config import AttentionPath, ModelConfig
from lmcore.ffn import FFN
from lmcore.norm import stream_norm


class Residual(nn.Module):
    """x and f(x) joined, with the norm in its place; (B, T, D) to (B, T, D).

    pre       x + f(norm(x))         Xiong et al. 2020
    post      norm(x + f(x))         Vaswani et al. 2017
    sandwich  x + norm(f(norm(x)))   Ding et al. 2021; Gemma 2
    branch    x + norm(f(x))         OLMo 2
    """

    def __init__(self, sublayer: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        place = config.norm_position
        self.sublayer, self.scale = sublayer, config.residual_scale
        self.norm_in = stream_norm(config) if place in ("pre", "sandwich") else None
        self.norm_out = stream_norm(config) if place in ("sandwich", "branch") else None
        self.norm_sum = stream_norm(config) if place == "post" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, *context: Sight | LayerCache | None) -> Tensor:
        x = x + self.branch(x, *context)
        return cast(Tensor, x if self.norm_sum is None else self.norm_sum(x))

    def branch(self, x: Tensor, *context: Sight | LayerCache | None) -> Tensor:
        """What is added to the stream."""
        y = self.sublayer(x if self.norm_in is None else self.norm_in(x), *context)
        y = y if self.norm_out is None else self.norm_out(y)
        return cast(Tensor, self.scale * self.dropout(y) if self.scale != 1 else self.dropout(y))


class Block(nn.Module):
    """One transformer layer, (B, T, D) to (B, T, D).

    sequential       x = attention(x), then ffn(x), each a `Residual`
    parallel         x + attention branch(x) + ffn branch(x)   (Wang & Komatsuzaki 2021, GPT-J; GPT-NeoX)
    parallel_shared  the same with one norm for both           (PaLM; Cohere)
    """

    def __init__(self, config: ModelConfig, kind: str, path: AttentionPath) -> None:
        super().__init__()
        self.kind, self.residual = kind, config.residual
        self.attention = Residual(Attention(config, path), config)
        self.ffn = Residual(FFN(config), config)
        if self.residual == "parallel_shared":
            self.ffn.norm_in = self.attention.norm_in

    def forward(self, x: Tensor, sight: Sight, cache: LayerCache | None) -> Tensor:
        if self.residual == "sequential":
            return cast(Tensor, self.ffn(self.attention(x, sight, cache)))
        return x + self.attention.branch(x, sight, cache) + self.ffn.branch(x)
