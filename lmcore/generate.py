"""Sampling from a model, with a KV cache. Shapes: B rows, T prompt tokens, N new tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lmcore.cache import Cache
from lmcore.model import LM


class SamplingError(ValueError):
    """A request that no token can be drawn for."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 takes the likeliest; `top_k` and `top_p` cut the tail first."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise SamplingError(f"temperature must be at least 0, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise SamplingError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SamplingError(f"top_p must be above 0 and at most 1, not {self.top_p}")


@torch.no_grad()
def generate(
    model: LM,
    prompts: Tensor,
    new_tokens: int,
    sampling: Sampling | None = None,
    real: Tensor | None = None,
    eos: int | None = None,
) -> Tensor:
    """(B, N) new tokens after prompts (B, T). `real` (B, T) is False for padding, on either side of a row.

    A row that has drawn `eos` goes on with `eos`; the loop ends early when all rows have. Equal inputs and seed give
    equal tokens, whatever else is in the batch. Raises ValueError for an empty prompt or a table of learned positions
    that is too short.
    """
    sampling = sampling or Sampling()
    if new_tokens < 0 or len(prompts) == 0:
        raise SamplingError(f"{len(prompts)} prompts and {new_tokens} new tokens: nothing to generate")
    if prompts.shape[1] == 0 or (real is not None and not bool(real.any(dim=1).all())):
        raise SamplingError("every prompt needs at least one token")
    if real is not None:
        prompts, real = left_padded(prompts, real)
    model.eval()
    cache, drawn = Cache(model.config), []
    generators = [torch.Generator().manual_seed(sampling.seed) for _ in prompts]
    logits = model(prompts, real, cache)[:, -1]
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    for i in range(new_tokens):
        token = draw(logits, sampling, generators)
        if eos is not None:
            token = torch.where(ended, eos, token)
            ended |= token == eos
        drawn.append(token)
        if i + 1 == new_tokens or bool(ended.all()):
            break
        logits = model(token[:, None], cache=cache)[:, -1]
    new = torch.stack(drawn, dim=1) if drawn else prompts[:, :0]
    missing = new_tokens - new.shape[1]
    return new if missing == 0 else torch.nn.functional.pad(new, (0, missing), value=eos or 0)


def left_padded(prompts: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The same rows with their padding moved to the front: new tokens then follow the last real one directly."""
    order = real.int().argsort(dim=1, stable=True)  # padding first, real tokens after it in their order
    return prompts.gather(1, order), real.gather(1, order)


def draw(logits: Tensor, sampling: Sampling, generators: list[torch.Generator]) -> Tensor:
    """(B) token ids from logits (B, vocab), each row from its own generator."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    device = logits.device
    logits = logits.float() - logits.float().amax(dim=-1, keepdim=True)  # so that a small temperature cannot overflow
    logits = cut_tail(logits / sampling.temperature, sampling).cpu()
    rows = [torch.multinomial(row.softmax(-1), 1, generator=g) for row, g in zip(logits, generators, strict=True)]
    return torch.cat(rows).to(device)


def cut_tail(logits: Tensor, sampling: Sampling) -> Tensor:
    """Minus infinity outside the `top_k` likeliest and outside the smallest set of probability `top_p`.

    Nucleus sampling after Holtzman et al. 2020; the token that crosses the threshold is kept, so one always remains.
    """
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        likeliest = logits.topk(sampling.top_k, dim=-1)
        logits = torch.full_like(logits, float("-inf")).scatter(-1, likeliest.indices, likeliest.values)
    if sampling.top_p is not None:
        ordered, index = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        cut = (before >= sampling.top_p).scatter(-1, index, before >= sampling.top_p)
        logits = logits.masked_fill(cut, float("-inf"))
    return logits
