"""Several processes that train one run: each takes its share of every batch.

Alone, every method does nothing, so the training loop has one path. Rank 0 alone writes and decides; what is saved is
always whole, so a checkpoint does not know how many processes made it.
"""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

Sharding = Literal["ddp", "fsdp"]
PATIENCE = timedelta(minutes=10)  # for a process that does not come: it hangs, and the run fails
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class _Sharded(Protocol):
    """What we need of a DTensor."""

    def full_tensor(self) -> Tensor: ...


class Team:
    """The processes of one run: this one is `rank` of `size`."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def share(self, batch: Tensor) -> Tensor:
        """This rank's rows of a batch (B, ...); B is a multiple of the size."""
        return batch.chunk(self.size)[self.rank]

    def mean(self, value: Tensor) -> Tensor:
        """Mean over all ranks of a tensor that each has."""
        return self.total(value) / self.size

    def total(self, value: Tensor) -> Tensor:
        """Sum over all ranks."""
        if self.size > 1:
            dist.all_reduce(value)
        return value

    def agree(self, word: str | None) -> str | None:
        """Rank 0's word for rank 0, "stop" or None for the others: all stop at the same step."""
        if self.size == 1:
            return word
        stop = torch.tensor([word is not None], dtype=torch.int32, device=self._device())
        dist.broadcast(stop, src=0)
        return (word or "stop") if int(stop) else None

    def divide(self, model: AnyModule, sharding: Sharding) -> AnyModule:
        """`model`; with fsdp its weights and their moments are divided among the ranks, in place.

        Call it before the optimiser is built.
        """
        if self.size == 1 or sharding == "ddp":
            return model
        from torch.distributed.fsdp import fully_shard

        for block in cast(nn.ModuleList, model.blocks):
            fully_shard(block)
        # The outermost part too: what is left whole after an evaluation is not what the optimiser holds.
        fully_shard(model, reshard_after_forward=True)
        return model

    def wrap(self, objective: nn.Module, sharding: Sharding) -> nn.Module:
        """`objective` with gradients averaged over the ranks; what was divided does that by itself."""
        if self.size == 1 or sharding == "fsdp":
            return objective
        return nn.parallel.DistributedDataParallel(objective)

    def _device(self) -> torch.device:
        return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


ALONE = Team()


def team() -> Team:
    """The processes that were joined (by `joined`, or by a launcher of one's own); this one alone if none were."""
    if not dist.is_initialized():
        return ALONE
    return Team(dist.get_rank(), dist.get_world_size())


@contextlib.contextmanager
def joined(rank: int, size: int, meeting_place: Path, device: str) -> Iterator[None]:
    """Join `size` processes of this machine that name the same new file: a file, because ports collide."""
    if size == 1:
        yield
        return
    backend = "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(device)
    place = f"file://{meeting_place}"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def summed_late(model: nn.Module, last: bool) -> contextlib.AbstractContextManager[object]:
    """Within this, gradients of all micro-batches but the last stay on their rank."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a sharded one (all ranks must ask); any other as it is."""
    return cast(_Sharded, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def like(value: Tensor, other: Tensor) -> Tensor:
    """A full tensor on the device of `other`, sharded as that is if it has its shape."""
    if not hasattr(other, "full_tensor") or value.shape != other.shape:
        return value.to(other.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    sharded = cast(DTensor, other)
    return distribute_tensor(value.to(other.device), sharded.device_mesh, sharded.placements)
