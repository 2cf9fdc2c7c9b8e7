"""A small text, so that planning takes milliseconds."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.user import User

# Whoever is started in the background by a shell ignores Ctrl-C, and so would every process of these tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

SWEEP = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Match, Sweep

def sweep():
    return Sweep(
        question="Is a wider model better?",
        base=replace(RunConfig(), {"data.path": %(text)r, "data.tokenizer": "byte", "model.d_model": 16,
            "model.n_layer": 1, "model.n_head": 2, "model.context": 16, "model.ffn": "relu", "train.batch": 4,
            "train.steps": 30, "train.eval_every": 10, "train.eval_sequences": 8, "train.checkpoint_every": 10}),
        arms={"relu": {}, "swiglu": {"model.ffn": "swiglu"}},
        baseline="relu",
        match=Match(),
        seeds=2,
        scales={
            "short": {},
            "medium": {"train.steps": 600, "train.checkpoint_every": 50, "train.eval_every": 300},
            "long": {"train.steps": %(steps)d, "train.checkpoint_every": 2000, "seeds": 1},
        },
        default_scale="short",
    )
"""


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"{i} times {i % 9} is {i * (i % 9)};" for i in range(1500)))
    return path


@pytest.fixture
def sweep_file(tmp_path: Path, text_file: Path) -> Path:
    """A sweep of one's own outside the project: 2 arms x 2 seeds; 30 steps, 600 (`medium`), or too many (`long`)."""
    path = tmp_path / "width.py"
    path.write_text(SWEEP % {"text": str(text_file), "steps": 400_000})
    return path


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody whose workers end with the test."""
    someone = User(tmp_path / "home")
    yield someone
    someone.kill_workers()
