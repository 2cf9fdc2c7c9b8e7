"""Which positions should a small model have?"""

from lmcore.config import RunConfig, replace
from sweeps.spec import Match, Sweep

KINDS = ("rope", "learned", "sinusoidal", "alibi", "none")

BASE = replace(RunConfig(), {"train.lr": 3e-3, "train.warmup": 20})


def sweep() -> Sweep:
    """Five kinds; the learned table has parameters, for which that arm gives up a little of its FFN."""
    return Sweep(
        question="Which positions should a small model have: rotary, learned, sinusoidal, ALiBi or none?",
        base=BASE,
        arms={kind: {"model.position": kind} for kind in KINDS},
        baseline="rope",
        match=Match(by="params"),
        seeds=3,
        smallest_effect=0.01,
        default_scale="laptop",
        scales={
            "smoke": {
                "model.d_model": 32,
                "model.n_layer": 2,
                "model.n_head": 2,
                "model.context": 32,
                "train.batch": 8,
                "train.steps": 40,
                "train.warmup": 5,
                "train.eval_every": 20,
                "train.eval_sequences": 32,
                "train.checkpoint_every": 20,
            },
            "laptop": {
                "model.d_model": 64,
                "model.n_layer": 4,
                "model.n_head": 4,
                "model.context": 128,
                "train.batch": 16,
                "train.steps": 600,
                "train.eval_every": 100,
                "train.eval_sequences": 256,
                "train.checkpoint_every": 200,
                "seeds": 5,
            },
        },
    )
