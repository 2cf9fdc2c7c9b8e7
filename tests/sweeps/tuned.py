"""A small sweep whose arms are tuned, as a user writes it."""

from pathlib import Path

SWEEP = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Choices, Match, Range, Sweep, Tune

BASE = replace(RunConfig(), {"data.path": %(text)r, "data.tokenizer": "byte", "model.d_model": 8, "model.n_layer": 1,
    "model.n_head": 1, "model.context": 8, "train.batch": 4, "train.steps": %(steps)d, "train.eval_sequences": 16,
    "train.warmup": 2, "train.log_every": 50, "train.eval_every": %(every)d, "train.checkpoint_every": %(every)d,
    "train.telemetry_every": 0})

def sweep():
    return Sweep("Does a gate help?", {"relu": {"model.ffn": "relu"}, "geglu": {"model.ffn": "geglu"}}, base=BASE,
        baseline="relu", match=Match(tolerance=0.05), seeds=2, tune=Tune(%(space)s, seeds=%(seeds)d))
"""

INSIDE = "{'train.lr': Range(1e-4, 1.0, log=True, points=3)}"  # too small, about right, too large
BELOW = "{'train.lr': Range(1e-8, 1e-7, log=True, points=3)}"  # as is every point of the widened grid


def write(folder: Path, text: Path, space: str = INSIDE, steps: int = 20, every: int = 10, seeds: int = 1) -> Path:
    """A file of two arms, two seeds and three points; `space` is Python source."""
    path = folder / "gate.py"
    path.write_text(SWEEP % {"text": str(text), "steps": steps, "every": every, "space": space, "seeds": seeds})
    return path
