"""Loss on the fixed validation sequences: of the whole, and by how much context a token has before it."""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from lmcore import parallel
from lmcore.config import RunConfig
from lmcore.data import TokenData
from lmcore.parallel import Team

PER_OCTAVE = 2  # parts of a doubling of the position


def position_losses(
    logits: Callable[[Tensor], Tensor],
    config: RunConfig,
    data: TokenData,
    device: torch.device | None = None,
    team: Team = parallel.ALONE,
) -> Tensor:
    """Mean cross-entropy in nats over the run's fixed validation sequences at each position: (context,), float64.

    Position t is the prediction from the first t + 1 tokens. The mean over all is the validation loss.

    `logits` maps token ids (B, T) to (B, T, vocab); batches of the training size are summed in float64. The ranks of a
    team take turns, and all make as many forward passes, because sharded weights need every rank.
    """
    sequences, context = config.train.eval_sequences, config.model.context
    inputs, targets = (torch.from_numpy(a).to(device) for a in data.validation(sequences, context))
    total, size = torch.zeros(context, dtype=torch.float64, device=device), config.train.batch
    batches = list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))
    with torch.no_grad():
        for first in range(0, len(batches), team.size):
            mine = first + team.rank
            x, y = batches[min(mine, len(batches) - 1)]
            losses = F.cross_entropy(logits(x).flatten(0, 1), y.flatten(), reduction="none").view_as(y)
            if mine < len(batches):
                total += losses.sum(dim=0, dtype=torch.float64)
    return team.total(total).cpu() / len(targets)


def position_rows(step: int, split: str, losses: Tensor) -> list[dict[str, float | int | str]]:
    """`losses` (context,) as rows, a mean for every half octave: positions from `start` up to but not `stop`."""
    return [
        {"step": step, "split": split, "start": start, "stop": stop, "loss": float(losses[start:stop].mean())}
        for start, stop in pairwise(edges(len(losses)))
    ]


def edges(context: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 11, 16 ... `context`: powers of the square root of two, rounded."""
    powers = (round(2 ** (k / PER_OCTAVE)) for k in range(PER_OCTAVE * context.bit_length()))
    return [0, *sorted({power for power in powers if power < context}), context]
