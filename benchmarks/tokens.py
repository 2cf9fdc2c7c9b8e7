"""Tokens without meaning, for timings: the time of a step does not depend on what they say."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lmcore.config import RunConfig
from lmcore.data import DataInfo, TokenData

Batch = Callable[[int], tuple[Tensor, Tensor]]


def random_tokens(vocab: int, count: int = 100_000) -> TokenData:
    """Data as a run reads it."""
    ids = np.random.default_rng(0).integers(0, vocab, count).astype(np.uint16)
    return TokenData(DataInfo("random", "0" * 16, "none", vocab, count, count, 1.0), ids, ids)


def batches(run: RunConfig, device: str = "cpu") -> Batch:
    """Inputs and targets (B, T) of a step, assembled as in a run; the same for all contenders."""
    data = random_tokens(run.model.vocab)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        arrays = data.batch(0, step, run.train.batch, run.model.context)
        inputs, targets = (torch.from_numpy(array).contiguous().to(device) for array in arrays)
        return inputs, targets

    return batch
