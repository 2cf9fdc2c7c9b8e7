"""Small searches, as a user writes them."""

from pathlib import Path

SEARCH = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Choices, Range, Search

BASE = replace(RunConfig(), {"data.path": %(text)r, "data.tokenizer": "byte", "model.d_model": 8, "model.n_layer": 1,
    "model.n_head": 1, "model.context": 8, "train.batch": 2, "train.steps": %(steps)d, "train.eval_sequences": 4,
    "train.log_every": 50, "train.eval_every": %(every)d, "train.checkpoint_every": %(every)d,
    "train.telemetry_every": 0})

def search():
    return Search("Which is best?", %(space)s, base=replace(BASE, %(base)s))
"""

LR = "{'train.lr': Range(1e-4, 1e-1, log=True)}"


def write(folder: Path, text: Path, space: str = LR, steps: int = 20, every: int = 10, base: str = "{}") -> Path:
    """A file whose function search() returns a search of tiny runs; `space` and `base` are Python source."""
    path = folder / "tiny.py"
    path.write_text(SEARCH % {"text": str(text), "steps": steps, "every": every, "space": space, "base": base})
    return path
