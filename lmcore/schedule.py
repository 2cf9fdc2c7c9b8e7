"""The learning rate as a pure function of the step."""

import math

from lmcore.config import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """LR of update number `step`, counted from 1.

    Linear warmup from 0, reaching `lr` at step `warmup`, then by `schedule` down to `lr * lr_min_ratio` at the last:
    constant (no fall), cosine, linear, or wsd: constant, then linear over the last `wsd_decay` of all steps.
    """
    if step < train.warmup:
        return train.lr * step / train.warmup
    if train.schedule == "constant":
        return train.lr
    low = train.lr * train.lr_min_ratio
    if train.schedule == "cosine":
        return cosine(step, train.warmup, train.steps, train.lr, low)
    start = (
        train.warmup if train.schedule == "linear" else max(train.warmup, round(train.steps * (1 - train.wsd_decay)))
    )
    fallen = min(1.0, max(0.0, (step - start) / max(1, train.steps - start)))
    return train.lr + fallen * (low - train.lr)


def cosine(step: int, warmup: int, end: int, lr_max: float, lr_min: float) -> float:
    """Warmup to `lr_max` at step `warmup`, half a cosine to `lr_min` at step `end`, `lr_min` after it."""
    if step < warmup:
        return lr_max * step / warmup
    progress = min(1.0, (step - warmup) / max(1, end - warmup))
    return lr_min + 0.5 * (lr_max - lr_min) * (1 + math.cos(math.pi * progress))
