"""A run's whole state as named bytes, and back. Safetensors and JSON only: loading executes nothing.

Where the bytes are kept is the record's business. There is no random state: batches are functions of the step.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from lmcore.optim import Optimizers, state_of
from lmcore.parallel import like, whole

Blobs = Mapping[str, bytes]


class CheckpointError(ValueError):
    """A checkpoint that does not belong to this model."""


@contextlib.contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Let a CheckpointError inside the block say where the checkpoint lies, and what to do."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}; delete it to go on from the one before") from error


@dataclass
class Progress:
    """How far a run is. Step s means after s updates; wall_s counts training steps only."""

    step: int = 0
    wall_s: float = 0.0


def pack(model: nn.Module, optimizers: Optimizers, progress: Progress) -> dict[str, bytes]:
    """Weights, optimiser moments and progress as bytes; `unpack` restores them bit for bit."""
    return {
        "model.safetensors": pack_weights(model),
        "optimizer.safetensors": safetensors.torch.save(_moments(model, optimizers)),
        "progress.json": json.dumps(asdict(progress)).encode(),
    }


def unpack(blobs: Blobs, model: nn.Module, optimizers: Optimizers) -> Progress:
    """Load `blobs` into model and optimisers in place. Raises CheckpointError when they do not fit."""
    load_weights(model, blobs["model.safetensors"])
    moments = _tensors(blobs["optimizer.safetensors"])
    for name, parameter in model.named_parameters():
        state = {key.rpartition("/")[2]: value for key, value in moments.items() if key.rpartition("/")[0] == name}
        if state:
            # A fused optimiser keeps everything on the parameter's device, its step counters too.
            state_of(optimizers, parameter).update({k: like(v, parameter) for k, v in state.items()})
    try:
        return Progress(**json.loads(blobs["progress.json"]))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"progress.json does not say how far it is: {error}") from None


def pack_weights(model: nn.Module) -> bytes:
    """All parameters by name, as safetensors."""
    return safetensors.torch.save({name: _plain(p) for name, p in model.named_parameters()})


def load_weights(model: nn.Module, blob: bytes) -> None:
    """Copy weights in place. Raises CheckpointError naming what is missing, superfluous or of another shape."""
    stored, own = _tensors(blob), dict(model.named_parameters())
    if stored.keys() != own.keys():
        raise CheckpointError(f"checkpoint and model differ in {sorted(stored.keys() ^ own.keys())[:5]}")
    with torch.no_grad():
        for name, parameter in own.items():
            if stored[name].shape != parameter.shape:
                raise CheckpointError(f"{name} is {tuple(stored[name].shape)}, the model's {tuple(parameter.shape)}")
            parameter.copy_(like(stored[name], parameter))


def weights_sha256(model: nn.Module) -> str:
    """Equal for two models exactly when all their weights are bitwise equal."""
    return hashlib.sha256(pack_weights(model)).hexdigest()


def _moments(model: nn.Module, optimizers: Optimizers) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": _plain(value)
        for name, parameter in model.named_parameters()
        for key, value in state_of(optimizers, parameter).items()
        if isinstance(value, Tensor)
    }


def _tensors(blob: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(blob)
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"not a checkpoint of tensors: {error}") from None


def _plain(tensor: Tensor) -> Tensor:
    """Whole, on the CPU, in one piece."""
    return whole(tensor.detach()).cpu().contiguous()
