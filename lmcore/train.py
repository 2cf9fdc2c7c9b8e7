"""The training of ONE run. It knows no files, no scheduler and no database: everything goes through a `Sink`."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from lmcore import checkpoint, parallel, telemetry
from lmcore.checkpoint import Blobs, Progress
from lmcore.config import RunConfig
from lmcore.count import train_flops_per_token
from lmcore.data import TokenData
from lmcore.evaluate import position_losses, position_rows
from lmcore.heap import keep_freed_memory
from lmcore.schedule import learning_rate
from lmcore.update import Updater

Ending = Literal["done", "diverged", "stopped"]


@dataclass(frozen=True)
class TrainRow:
    """One logged update. `loss` is that batch's mean cross-entropy in nats, before the update."""

    step: int
    tokens: int
    flops: float
    wall_s: float
    loss: float
    lr: float
    grad_norm: float
    tokens_per_s: float


@dataclass(frozen=True)
class EvalRow:
    """One evaluation: mean cross-entropy in nats on the fixed sequences, after `tokens` training tokens."""

    step: int
    split: str
    tokens: int
    loss: float
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True)
class Outcome:
    """How a run ended; `stop_reason` is the sink's word when it was stopped."""

    ending: Ending
    step: int
    stop_reason: str | None
    summary: Mapping[str, float | int | str]


class Sink(Protocol):
    """Where a run's numbers and state go, and the only voice that can stop it."""

    def train_row(self, row: Mapping[str, float | int]) -> None: ...
    def eval_row(self, row: Mapping[str, float | int | str]) -> None: ...
    def position_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None: ...
    def telemetry_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None: ...
    def save_checkpoint(self, step: int, blobs: Blobs) -> None: ...
    def stop_reason(self, step: int) -> str | None: ...


def train(config: RunConfig, data: TokenData, sink: Sink, resume: Blobs | None = None, device: str = "cpu") -> Outcome:
    """Train until the last step, a non-finite loss, or the sink's stop request. Resuming is bitwise on CPU.

    Where processes were joined (`lmcore.parallel`), all call this; rank 0's sink is heard, the others take `Silent`.
    """
    torch.set_num_threads(config.train.means.threads)
    keep_freed_memory()
    return _Run(config, data, sink, device, resume).loop()


class Silent:
    """The sink of every process but the first: rank 0 writes and is asked."""

    def train_row(self, row: Mapping[str, float | int]) -> None: ...
    def eval_row(self, row: Mapping[str, float | int | str]) -> None: ...
    def position_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None: ...
    def telemetry_rows(self, rows: Sequence[Mapping[str, float | int | str]]) -> None: ...
    def save_checkpoint(self, step: int, blobs: Blobs) -> None: ...
    def stop_reason(self, step: int) -> str | None: ...


class _Run:
    """The state of the loop: model, optimiser, progress, and the last rows for the summary."""

    def __init__(self, config: RunConfig, data: TokenData, sink: Sink, device: str, resume: Blobs | None) -> None:
        self.config, self.data, self.sink, self.device = config, data, sink, torch.device(device)
        self.team = parallel.team()
        self.updater = Updater(config, self.device, self.team)
        self.model, self.master = self.updater.model, self.updater.master
        self.progress = checkpoint.unpack(resume, self.master, self.updater.optimizers) if resume else Progress()
        self.saved_at = self.progress.step if resume else None
        self.updater.lower_weights()
        self.flops_per_token = train_flops_per_token(config.model)
        self.last_train: TrainRow | None = None
        self.last_eval: EvalRow | None = None

    def loop(self) -> Outcome:
        """Updates, with evaluations and checkpoints between them."""
        steps, train = self.config.train.steps, self.config.train
        if self.progress.step == 0:
            self.evaluate()
        while self.progress.step < steps:
            if reason := self.team.agree(self.sink.stop_reason(self.progress.step)):
                self.save()
                return self.end("stopped", reason)
            finite = self.update()
            if not finite:
                return self.end("diverged")
            last = self.progress.step == steps
            if last or self.progress.step % train.eval_every == 0:
                self.evaluate()
            if last or self.progress.step % train.checkpoint_every == 0:
                self.save()
        if self.last_eval is None:
            self.evaluate()  # resumed from the last checkpoint of all: only the ending was missing
        return self.end("done")

    @property
    def tokens(self) -> int:
        """Training tokens so far."""
        return self.progress.step * self.config.train.batch * self.config.model.context

    @property
    def flops(self) -> float:
        """Training FLOPs so far."""
        return self.flops_per_token * self.tokens

    def update(self) -> bool:
        """One optimiser update; logs a row. False when the loss or the gradient is not finite."""
        train, step = self.config.train, self.progress.step + 1
        before = self.weights_before(step)
        began = time.perf_counter()
        lr = learning_rate(step, train)
        inputs, targets = self.batch(step)
        loss, grad_norm, finite = self.updater.update(step, inputs, targets, lr)
        seconds = time.perf_counter() - began
        self.progress = Progress(step, self.progress.wall_s + seconds)
        if not finite or step % train.log_every == 0 or step == train.steps:
            self.log(float(loss), lr, float(grad_norm), inputs.numel() * self.team.size / seconds)
        if before is not None and finite:
            self.look_inside(inputs, before)
        return finite

    def weights_before(self, step: int) -> telemetry.Weights | None:
        """A copy of the weights where telemetry follows this update, else None."""
        every = self.config.train.telemetry_every
        if not every or step % every:
            return None
        return telemetry.copied(telemetry.grouped(self.master.named_parameters()))

    def look_inside(self, inputs: Tensor, before: telemetry.Weights) -> None:
        """Telemetry rows of the update just made, and of the model after it on the first sequences of the batch."""
        ratios = telemetry.update_ratios(before, telemetry.grouped(self.master.named_parameters()))
        few = inputs[: max(1, telemetry.TOKENS // inputs.shape[1])]
        self.model.eval()
        # forward, not a call: a call may run compiled code, and the hooks would have it compiled anew. Sharded weights
        # are there within a call alone.
        forward = self.model if self.config.train.sharding == "fsdp" else self.model.forward
        with self.updater.objective.precision():
            seen = telemetry.forward_readings(forward, list(self.model.blocks), few)
        self.model.train()
        self.sink.telemetry_rows(telemetry.rows(self.progress.step, [*ratios, *seen]))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) of this process's share of one update, on the run's device."""
        arrays = self.data.batch(self.config.seed, step, self.config.train.batch, self.config.model.context)
        inputs, targets = (self.team.share(torch.from_numpy(array)).to(self.device) for array in arrays)
        return inputs, targets

    def evaluate(self) -> None:
        """One row for the fixed validation sequences, and some by position in them."""
        self.model.eval()
        losses = position_losses(self.updater.objective.logits, self.config, self.data, self.device, self.team)
        self.model.train()
        loss = float(losses.mean())
        bits_per_byte = loss / math.log(2) / self.data.info.bytes_per_token
        self.last_eval = EvalRow(self.progress.step, "val", self.tokens, loss, _exp(loss), bits_per_byte)
        self.sink.eval_row(asdict(self.last_eval))
        self.sink.position_rows(position_rows(self.progress.step, "val", losses))

    def log(self, loss: float, lr: float, grad_norm: float, tokens_per_s: float) -> None:
        """One row, counting tokens and FLOPs from the first update of the run."""
        step, wall_s = self.progress.step, self.progress.wall_s
        self.last_train = TrainRow(step, self.tokens, self.flops, wall_s, loss, lr, grad_norm, tokens_per_s)
        self.sink.train_row(asdict(self.last_train))

    def save(self) -> None:
        """Hand the whole state to the sink, unless it has that of this step."""
        if self.saved_at == self.progress.step:
            return
        self.saved_at = self.progress.step
        self.sink.save_checkpoint(
            self.progress.step, checkpoint.pack(self.master, self.updater.optimizers, self.progress)
        )

    def end(self, ending: Ending, stop_reason: str | None = None) -> Outcome:
        """What is known at the end; the numbers of a finished run go into its DONE record."""
        step, wall_s = self.progress.step, self.progress.wall_s
        summary: dict[str, float | int | str] = {
            "step": step,
            "tokens": self.tokens,
            "flops": self.flops,
            "wall_s": wall_s,
            "tokens_per_s": self.tokens / wall_s if wall_s else 0.0,
            "weights_sha256": checkpoint.weights_sha256(self.master),
        }
        if self.last_train:
            summary["train_loss"] = self.last_train.loss
        if self.last_eval:
            names = {"loss": "val_loss", "perplexity": "val_perplexity", "bits_per_byte": "val_bits_per_byte"}
            summary |= {names[k]: v for k, v in asdict(self.last_eval).items() if k in names}
        return Outcome(ending, step, stop_reason, summary)


def _exp(loss: float) -> float:
    return math.inf if loss > 700 else math.exp(loss)  # NaN stays NaN
