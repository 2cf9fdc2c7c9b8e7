"""A compiled run is the run: losses, resume, telemetry, several processes.

Each in a process of its own: what dynamo keeps of one run must not reach the next.
"""

import shutil
from typing import Any

import pytest

from lmcore.config import ConfigError, replace
from lmcore.data import TokenData
from tests.lmcore.test_parallel import close, run_together
from tests.lmcore.test_train import RUN, numbers, tokens

__all__ = ["tokens"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # torch's compiler itself still uses it
]

EAGER = replace(RUN, {"model.n_layer": 1, "train.attention": "plain", "train.steps": 12, "train.telemetry_every": 6})
COMPILED: dict[str, Any] = {"train.compile": True}


def test_losses_resume_and_telemetry_of_a_compiled_run(tokens: TokenData) -> None:
    eager, compiled = (run_together(c, tokens) for c in (EAGER, replace(EAGER, COMPILED)))
    assert close(eager.rows, compiled.rows, 1e-4)
    assert close(eager.evals, compiled.evals, 1e-4)
    assert [(r["step"], r["name"], r["layer"]) for r in eager.telemetry] == [
        (r["step"], r["name"], r["layer"]) for r in compiled.telemetry
    ]
    first = run_together(replace(EAGER, COMPILED), tokens, stop_at=5)
    rest = run_together(replace(EAGER, COMPILED), tokens, resume=first.checkpoints[5])
    assert numbers(first.rows + rest.rows) == numbers(compiled.rows), "bit for bit"
    assert rest.checkpoints[12]["model.safetensors"] == compiled.checkpoints[12]["model.safetensors"]


@pytest.mark.parametrize(
    "changes",
    [
        {"train.precision": "bf16", "model.dropout": 0.1, "model.base_width": 16, "train.z_loss": 1e-3},
        {"train.precision": "bf16_weights", "train.micro_batch": 3, "model.window": 8, "model.n_kv_head": 2},
    ],
    ids=["bf16, dropout, width transfer, z-loss", "bf16 weights, uneven micro-batches, window, GQA"],
)
def test_what_else_a_run_may_be(changes: dict[str, Any], tokens: TokenData) -> None:
    config = replace(EAGER, changes)
    eager, compiled = (run_together(c, tokens) for c in (config, replace(config, COMPILED)))
    within = 0.1 if config.model.dropout else 0.02  # compiled code draws other dropout masks
    assert close(eager.rows, compiled.rows, within)


def test_two_processes(tokens: TokenData) -> None:
    two = replace(EAGER, {"train.processes": 2})
    eager, compiled = (run_together(c, tokens) for c in (two, replace(two, COMPILED)))
    assert close(eager.rows, compiled.rows, 1e-4)


def test_sharded_weights_are_not_compiled() -> None:
    with pytest.raises(ConfigError, match="compile goes with sharding='ddp'"):
        replace(RUN, {"train.processes": 2, "train.sharding": "fsdp", **COMPILED})
