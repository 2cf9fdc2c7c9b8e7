"""Tables of scaling runs with a known truth."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.shared import SHARED

TRUTH = {"E": 1.8, "A": 420.0, "B": 1400.0, "alpha": 0.34, "beta": 0.37}


def surface(n: Any, d: Any, truth: dict[str, float] = TRUTH) -> Any:
    """L(N, D) of the truth."""
    return truth["E"] + truth["A"] / n ** truth["alpha"] + truth["B"] / d ** truth["beta"]


def runs(rows: int = 200, noise: float = 0.003, seed: int = 0, truth: dict[str, float] = TRUTH) -> pl.DataFrame:
    """Runs over three decades of N and D with log-normal noise: columns n, d, loss."""
    generator = np.random.default_rng(seed)
    n, d = 10 ** generator.uniform(7, 10, rows), 10 ** generator.uniform(9, 12, rows)
    return pl.DataFrame({"n": n, "d": d, "loss": surface(n, d, truth) * np.exp(generator.normal(0, noise, rows))})


def public(name: str) -> Path:
    """A table of a public study; skips the test without it."""
    path = SHARED / "data" / "scaling" / name
    if not path.exists():
        pytest.skip(f"no {path}")
    return path
