"""A training step of ours as a run makes it, for any device. Needs torch with numpy only."""

import torch

from benchmarks.tokens import batches
from benchmarks.turns import Step
from lmcore.config import RunConfig
from lmcore.heap import keep_freed_memory
from lmcore.parallel import ALONE
from lmcore.update import Updater


def our_step(run: RunConfig, device: str = "cpu") -> Step:
    """The update that a run makes."""
    keep_freed_memory()
    updater, batch = Updater(run, torch.device(device), ALONE), batches(run, device)

    def step(number: int) -> float:
        return float(updater.update(number, *batch(number), run.train.lr)[0])

    return step
