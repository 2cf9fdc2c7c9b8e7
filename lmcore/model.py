"""The decoder: token ids to logits."""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore import mask
from lmcore.attention import Sight, runs_path
from lmcore.block import Block
from lmcore.cache import Cache
from lmcore.config import AttentionPath, ModelConfig
from lmcore.init import initialise, logit_factor
from lmcore.norm import stream_norm
from lmcore.position import rotation, sinusoids


class Ready(NamedTuple):
    """What forward passes over whole sequences of one length share; no parameters, so it never changes dtype."""

    tokens: int
    positions: Tensor
    absolute: Tensor | None
    sights: dict[str, Sight]


class LM(nn.Module):
    """Decoder-only language model: `LM(config)(token_ids)` is logits (B, T, vocab) for token_ids (B, T).

    Weights depend only on `config` and `seed`. `path` picks the attention kernel; both compute the same function.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, path: AttentionPath = "fused") -> None:
        super().__init__()
        self.config, self.path = config, path
        self.embedding = nn.Embedding(config.vocab, config.d_model)
        rows = config.context + config.position_offset
        self.positions = nn.Parameter(torch.empty(rows, config.d_model)) if config.position == "learned" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, kind, path) for kind in config.layer_kinds)
        self.norm = stream_norm(config) if config.norm_position != "post" else None
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab, bias=False)
        self.ready: Ready | None = None
        initialise(self, config, seed)

    def forward(self, token_ids: Tensor, real: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Logits (B, T, vocab). `real` (B, T) is False for padding, on either side; those rows of logits mean nothing.

        With a `cache` the tokens continue what it has seen, in which padding may only stand in front. Raises ValueError
        when it does not, or when a learned table of positions is shorter than the sequence.
        """
        batch, tokens = token_ids.shape
        seen = 0
        if cache is not None:
            seen = cache.seen
            cache.extend(batch, tokens, real, token_ids.device)
            real = cache.real
        if real is None and cache is None and self.ready is not None and self.ready.tokens == tokens:
            positions, absolute, sights = self.ready.positions, self.ready.absolute, self.ready.sights
        else:
            positions = self.token_positions(seen, tokens, real, token_ids.device)
            absolute, sights = self.absolute(positions), self.sights(positions, seen, tokens, real)
        x = self.dropout(self.embed(token_ids, positions, absolute, seen + tokens))
        for i, block in enumerate(self.blocks):
            x = block(x, sights[self.config.layer_kinds[i]], None if cache is None else cache.layers[i])
        return self.logits(x if self.norm is None else self.norm(x))

    def make_ready(self, tokens: int, device: torch.device) -> None:
        """Compute once what all forward passes over whole sequences of this length share.

        Compiled code would otherwise fuse the angles' powers, sines and cosines into every layer, head and sequence.
        """
        positions = self.token_positions(0, tokens, None, device)
        self.ready = Ready(tokens, positions, self.absolute(positions), self.sights(positions, 0, tokens, None))

    @property
    def attention_path(self) -> AttentionPath:
        """The path that the attention of this model really takes."""
        return runs_path(self.config, self.path)

    def token_positions(self, seen: int, tokens: int, real: Tensor | None, device: torch.device) -> Tensor:
        """(T), or (B, T) with padding: the first real token of a row is at position 0."""
        if real is None:
            return torch.arange(seen, seen + tokens, device=device)
        return (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, seen:]

    def absolute(self, positions: Tensor) -> Tensor | None:
        """(T, D) or (B, T, D): what is added to the embedding, where that follows from the position alone."""
        return sinusoids(positions, self.config.d_model) if self.config.position == "sinusoidal" else None

    def embed(self, token_ids: Tensor, positions: Tensor, absolute: Tensor | None, seen_end: int) -> Tensor:
        """(B, T, D) with absolute positions added, where the model has such; `seen_end` slots end this sequence."""
        x = cast(Tensor, self.embedding(token_ids)) * self.config.embedding_scale
        if absolute is not None:
            return x + absolute.to(x.dtype)
        if self.positions is None:
            return x
        # Unpadded positions are known from the shape; asking the tensor would wait for the device at every step.
        last = seen_end - 1 if positions.dim() == 1 else int(positions.max())
        if last >= self.config.context:
            raise ValueError(f"position {last}, but only {self.config.context} learned positions")
        return x + F.embedding(positions + self.config.position_offset, self.positions)

    def sights(self, positions: Tensor, seen: int, tokens: int, real: Tensor | None) -> dict[str, Sight]:
        """By kind of layer."""
        return {kind: self.sight(kind, positions, seen, tokens, real) for kind in set(self.config.layer_kinds)}

    def sight(self, kind: str, positions: Tensor, seen: int, tokens: int, real: Tensor | None) -> Sight:
        """Rotation and mask of all layers of one kind."""
        config, window = self.config, self.config.layer_window(kind)
        by = rotation(positions, config, kind) if config.layer_rotates(kind) else None
        queries = torch.arange(seen, seen + tokens, device=positions.device)
        first = 0 if window is None else max(0, seen - (window - 1))  # the oldest slot that a cache still holds
        keys = torch.arange(first, seen + tokens, device=positions.device)
        sees_all = window is None or seen + tokens <= window
        if real is None and sees_all and config.position != "alibi" and (seen == 0 or tokens == 1):
            return Sight(by, None)
        allowed = mask.visible(queries, keys, window, None if real is None else real[:, first:])
        if config.position != "alibi":
            return Sight(by, allowed, window)
        return Sight(by, mask.additive(allowed, mask.alibi_bias(queries, keys, config.n_head)), window)

    def logits(self, x: Tensor) -> Tensor:
        """(B, T, vocab) of the last hidden states, scaled and capped."""
        logits = F.linear(x, self.embedding.weight if self.head is None else self.head.weight)
        scale = logit_factor(self.config)
        if scale != 1:
            logits = logits * scale
        cap = self.config.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
