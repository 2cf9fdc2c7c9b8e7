"""What the device at hand can do at most: matrix products per second, and bytes per second to and from its memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SECONDS = {"float32": 0.4, "bf16": 0.4, "copy": 0.2}  # together a second
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Peak:
    """Measured, not the data sheet's: `flops_per_s` by precision of the matrix product, `bytes_per_s` of a copy."""

    device: str
    threads: int
    flops_per_s: dict[str, float]
    bytes_per_s: float


def measure_peak(device: str, threads: int = 1) -> Peak:
    """The fastest of repeated products of large square matrices, and of copies of a tensor that no cache holds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        size = 8192 if device == "cuda" else 768
        flops = {name: 2 * size**3 / _product_seconds(size, name, device) for name in DTYPES}
        return Peak(device, threads, flops, _bytes_per_s(device))
    finally:
        torch.set_num_threads(before)


def _product_seconds(size: int, precision: str, device: str) -> float:
    generator = torch.Generator(device).manual_seed(0)  # zeros would need less power, and clocks would rise
    a = torch.randn(size, size, device=device, generator=generator).to(DTYPES[precision])
    out = torch.empty_like(a)
    return _fastest(lambda: torch.mm(a, a, out=out), device, SECONDS[precision])


def _bytes_per_s(device: str) -> float:
    n = 2**28 if device == "cuda" else 2**24
    source = torch.ones(n, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device, SECONDS["copy"])  # read and written


def _fastest(work: Callable[[], object], device: str, seconds: float) -> float:
    """Seconds of the fastest of as many calls as fit, and at least two, after one that warms up."""
    _timed(work, device)
    taken = [_timed(work, device) for _ in range(2)]
    while sum(taken) < seconds:
        taken.append(_timed(work, device))
    return min(taken)


def _timed(work: Callable[[], object], device: str) -> float:
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
