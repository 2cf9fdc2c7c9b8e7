"""What generating costs: time of the prompt and of each further token, and the bytes the cache takes."""

import statistics
import time
from dataclasses import dataclass

import torch

from lmcore.cache import Cache
from lmcore.config import ModelConfig
from lmcore.count import kv_bytes_per_token
from lmcore.model import LM


@dataclass(frozen=True)
class DecodeCost:
    """One measurement: `batch` prompts of `prompt` tokens, then `new` tokens each. Seconds; bytes for the whole batch.

    `cache_bytes` is what the cache's tensors occupy at the end, `cache_bytes_counted` what the config says.
    """

    batch: int
    prompt: int
    new: int
    prefill_s: float
    token_s: float
    tokens_per_s: float
    cache_bytes: int
    cache_bytes_counted: int


@torch.no_grad()
def measure(model: LM, batch: int, prompt: int, new: int, rounds: int = 3) -> DecodeCost:
    """The fastest prefill and the median step over `rounds`; token ids do not matter to the time."""
    model.eval()
    device = model.embedding.weight.device
    ids = torch.arange(batch * prompt, device=device).reshape(batch, prompt) % model.config.vocab
    prefills, steps, cache = [], [], Cache(model.config)
    for _ in range(rounds):
        cache = Cache(model.config)
        began = _now(device)
        token = model(ids, cache=cache)[:, -1:].argmax(-1)
        prefills.append(_now(device) - began)
        for _ in range(new):
            began = _now(device)
            token = model(token, cache=cache).argmax(-1)
            steps.append(_now(device) - began)
    counted = batch * cache_bytes(model.config, prompt + new, model.embedding.weight.element_size())
    token_s = statistics.median(steps)
    return DecodeCost(batch, prompt, new, min(prefills), token_s, batch / token_s, cache.bytes, counted)


def cache_bytes(config: ModelConfig, tokens: int, bytes_per_element: int) -> int:
    """Bytes of one sequence's cache after `tokens` tokens; a local layer keeps window - 1, for the next query."""
    per_layer = kv_bytes_per_token(config, bytes_per_element) // config.n_layer
    windows = (config.layer_window(kind) for kind in config.layer_kinds)
    return per_layer * sum(tokens if window is None else min(tokens, window - 1) for window in windows)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
