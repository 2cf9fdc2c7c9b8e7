"""The KV cache: rotated keys and unrotated values of the unrepeated heads, in local layers only the last window."""

import torch
from torch import Tensor

from lmcore.config import ModelConfig


class LayerCache:
    """Keys and values of one layer, (B, K, S, E) each; S is at most window - 1 + the newest tokens in a local layer."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest tokens; returns everything that their queries may see."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat((self.keys, keys), dim=2), torch.cat((self.values, values), dim=2)
        first = 0 if self.window is None else max(0, keys.shape[2] - (self.window - 1))  # the next query sees no older
        # A copy, because a view would keep what was dropped in memory.
        self.keys, self.values = (t if first == 0 else t[:, :, first:].clone() for t in (keys, values))
        return keys, values

    @property
    def bytes(self) -> int:
        """Bytes the kept tensors occupy."""
        return sum(t.numel() * t.element_size() for t in (self.keys, self.values) if t is not None)


class Cache:
    """What one batch of sequences has seen so far: a `LayerCache` a layer, and which slots hold real tokens."""

    def __init__(self, config: ModelConfig) -> None:
        self.layers = [LayerCache(config.layer_window(kind)) for kind in config.layer_kinds]
        self.seen = 0  # slots, padding included
        self.real: Tensor | None = None  # (B, seen); None while nothing was padding

    def extend(self, batch: int, tokens: int, real: Tensor | None, device: torch.device) -> None:
        """Count `tokens` new slots; `real` (B, tokens) marks padding among them, which only more padding may precede.

        Raises ValueError when what came before ends in padding or has a gap.
        """
        if self.real is not None and bool((self.real[:, :-1] & ~self.real[:, 1:]).any() | ~self.real[:, -1].all()):
            # A window counts slots and a rotation real tokens: behind a gap the two would disagree.
            raise ValueError("padding after a real token cannot be continued; move padding to the front of the rows")
        if real is not None or self.real is not None:
            old = self.real if self.real is not None else torch.ones(batch, self.seen, dtype=torch.bool, device=device)
            new = real if real is not None else torch.ones(batch, tokens, dtype=torch.bool, device=device)
            self.real = torch.cat((old, new), dim=1)
        self.seen += tokens

    @property
    def bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self.layers)
