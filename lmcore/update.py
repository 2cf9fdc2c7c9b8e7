"""One update of the weights: forward pass, loss, gradients, optimiser. What happens between updates: `lmcore.train`."""

import contextlib
import copy
import hashlib
import math
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmcore import optim, parallel
from lmcore.config import RunConfig
from lmcore.init import lr_factor
from lmcore.model import LM
from lmcore.parallel import Team


class Objective(nn.Module):
    """Token ids and targets (B, T) to the mean cross-entropy in nats, taken in float32, and the z-loss penalty
    (Chowdhery et al. 2022, section 5). One module, so that all of it can be compiled as one."""

    def __init__(self, model: LM, config: RunConfig, device: torch.device) -> None:
        super().__init__()
        self.model, self.z_loss, self.device = model, config.train.z_loss, device.type
        self.mixed = config.train.precision == "bf16"

    def forward(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | float]:
        logits = self.logits(inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten())
        return loss, self.z_loss * logits.logsumexp(dim=-1).square().mean() if self.z_loss else 0.0

    def logits(self, inputs: Tensor) -> Tensor:
        """(B, T, vocab) in float32, computed in the run's precision."""
        with self.precision():
            return cast(Tensor, self.model(inputs)).float()

    def precision(self) -> contextlib.AbstractContextManager[object]:
        """bf16 matrix products over float32 weights; otherwise the weights' own dtype decides."""
        if not self.mixed:
            return contextlib.nullcontext()
        return torch.autocast(self.device, torch.bfloat16)


class Updater:
    """The model of one run and its optimisers.

    `master` is what they update and what is saved: float32 always. `model` is the same module, or its bf16 copy.
    """

    def __init__(self, config: RunConfig, device: torch.device, team: Team) -> None:
        means = config.train.means
        self.config, self.team = config, team
        self.master = LM(config.model, seed=config.seed, path=means.attention).to(device)
        self.master.make_ready(config.model.context, device)
        half = means.precision == "bf16_weights"
        self.model = copy.deepcopy(self.master).to(torch.bfloat16) if half else self.master
        self.objective = Objective(team.divide(self.model, config.train.sharding), config, device)
        if means.compile:
            compile_objective(self.objective, means.threads)
        self.shared = team.wrap(self.objective, config.train.sharding)
        self.optimizers = optim.build(
            self.master.named_parameters(), config.train, partial(lr_factor, config=config.model)
        )

    def update(self, step: int, inputs: Tensor, targets: Tensor, lr: float) -> tuple[Tensor, Tensor, bool]:
        """One update on this process's share of the batch; returns the mean cross-entropy before it, the norm of the
        gradient, and whether both are finite. If they are not, the weights stay."""
        optim.set_lr(self.optimizers, lr)
        loss = self.accumulate(step, inputs, targets)
        limit = self.config.train.clip
        norm = torch.nn.utils.clip_grad_norm_(self.master.parameters(), math.inf if limit is None else limit)
        grad_norm = parallel.whole(norm)
        finite = bool(torch.isfinite(loss) & torch.isfinite(grad_norm))
        if finite:
            optim.step(self.optimizers)
            self.lower_weights()
        optim.zero_grad(self.optimizers)
        return loss, grad_norm, finite

    def accumulate(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Gradients of the mean loss over the batch, by micro-batches; returns the mean cross-entropy.

        `inputs` are this process's share; the others' gradients come with the last micro-batch.
        """
        size, total = self.config.train.micro_batch or len(inputs), torch.zeros((), device=inputs.device)
        pairs = list(zip(torch.split(inputs, size), torch.split(targets, size), strict=True))
        for i, (x, y) in enumerate(pairs):
            if self.config.model.dropout:  # a function of the step: resume is exact
                torch.manual_seed(_noise_seed(self.config.seed, step, i * self.team.size + self.team.rank))
            share, last = len(x) / len(inputs), i == len(pairs) - 1 or self.model is not self.master
            with parallel.summed_late(self.shared, last):
                loss, penalty = self.shared(x, y)
                ((loss + penalty) * share).backward()
            self.lift_gradients()
            total += loss.detach() * share
        return self.team.mean(total)

    def lift_gradients(self) -> None:
        """Add those of the bf16 weights to their float32 masters, where there are two: bf16 would round the sum."""
        if self.model is self.master:
            return
        for master, parameter in zip(self.master.parameters(), self.model.parameters(), strict=True):
            if parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                parameter.grad = None

    def lower_weights(self) -> None:
        """The masters rounded into the bf16 weights, where there are two: small updates add up in the masters."""
        if self.model is self.master:
            return
        with torch.no_grad():
            for master, parameter in zip(self.master.parameters(), self.model.parameters(), strict=True):
                parameter.copy_(master)


def compile_objective(objective: Objective, threads: int) -> None:
    """Have later calls of `objective` run compiled code: built at the first call, for the shapes seen there.

    Kernels are kept in torch's cache, named after their source (TORCHINDUCTOR_CACHE_DIR, else a folder in /tmp), so
    runs of one shape on one machine share them. `objective.model` called by itself stays as it is.
    """
    import torch._inductor.config as inductor

    inductor.compile_threads = max(1, threads)  # many runs compile at once, and each has its share of the cores
    objective.compile(dynamic=False)


def _noise_seed(seed: int, step: int, micro: int) -> int:
    digest = hashlib.sha256(f"noise/{seed}/{step}/{micro}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
