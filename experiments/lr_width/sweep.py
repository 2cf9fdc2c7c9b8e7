"""Does the best learning rate stay where it is when the model gets wider?"""

from typing import Any

from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

WIDTHS = (32, 64, 128, 256)
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
D_HEAD = 16
KINDS = {"standard": None, "transfer": WIDTHS[0]}  # parametrisation -> model.base_width


def arm(kind: str, width: int, rate: float) -> dict[str, Any]:
    """Heads and d_ff grow with the width, d_head stays."""
    sizes = {"model.d_model": width, "model.n_head": width // D_HEAD, "model.d_head": D_HEAD}
    return sizes | {"model.base_width": KINDS[kind], "train.lr": rate}


def sweep() -> Sweep:
    """Every width at every learning rate, in the standard and in the width-transfer parametrisation."""
    return Sweep(
        question="Does the best learning rate stay where it is when the model gets wider?",
        base=replace(RunConfig(), {"train.warmup": 20}),
        arms={f"{k} d{w} lr {r:g}": arm(k, w, r) for k in KINDS for w in WIDTHS for r in RATES},
        seeds=2,
        default_scale="laptop",
        scales={
            "smoke": {
                "seeds": 1,
                "model.n_layer": 1,
                "model.context": 16,
                "train.batch": 4,
                "train.steps": 30,
                "train.eval_every": 30,
                "train.eval_sequences": 16,
            },
            "laptop": {
                "model.n_layer": 2,
                "model.context": 64,
                "train.batch": 16,
                "train.steps": 300,
                "train.eval_every": 300,
                "train.eval_sequences": 128,
                "train.checkpoint_every": 300,
            },
        },
    )
