"""The decoder: token ids to logits."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore.attention import AttentionPath, padded_causal_mask
from lmcore.block import Block
from lmcore.config import ModelConfig
from lmcore.init import initialise
from lmcore.norm import Norm
from lmcore.position import rotation, sinusoids


class LM(nn.Module):
    """Decoder-only language model: `LM(config)(token_ids)` is logits (B, T, vocab) for token_ids (B, T).

    Weights depend only on `config` and `seed`. `path` picks the attention kernel; both compute the same function.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, path: AttentionPath = "fused") -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.d_model)
        learned = config.position == "learned"
        self.positions = nn.Parameter(torch.empty(config.context, config.d_model)) if learned else None
        self.blocks = nn.ModuleList(Block(config, path) for _ in range(config.n_layer))
        self.norm = Norm(config) if config.norm_position != "post" else None
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab, bias=False)
        initialise(self, config, seed)

    def forward(self, token_ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Logits (B, T, vocab). `real` (B, T) is False for padding, on either side; those rows of logits mean nothing.

        Raises ValueError when a learned table of positions is shorter than the sequence.
        """
        positions = self._positions(token_ids, real)
        x = self._embed(token_ids, positions)
        by = rotation(positions, self.config) if self.config.position == "rope" else None
        mask = None if real is None else padded_causal_mask(real)
        for block in self.blocks:
            x = block(x, by, mask)
        x = x if self.norm is None else self.norm(x)
        weight = self.embedding.weight if self.head is None else self.head.weight
        return F.linear(x, weight)

    def _positions(self, token_ids: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            return torch.arange(token_ids.shape[1], device=token_ids.device)
        return (real.long().cumsum(dim=1) - 1).clamp(min=0)  # the first real token is at position 0

    def _embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        x = cast(Tensor, self.embedding(token_ids))
        if self.config.position == "sinusoidal":
            return x + sinusoids(positions, self.config.d_model).to(x.dtype)
        if self.positions is not None:
            if token_ids.shape[1] > self.config.context:
                raise ValueError(f"{token_ids.shape[1]} tokens, but only {self.config.context} learned positions")
            return x + F.embedding(positions, self.positions)
        return x
