"""What does a smaller KV cache cost, and what do the saved parameters buy in the FFN?"""

from lmcore.config import RunConfig, replace
from sweeps.spec import Match, Overrides, Sweep

ARMS: dict[str, Overrides] = {
    "mha": {},
    "gqa": {"model.n_kv_head": 2},
    "mqa": {"model.n_kv_head": 1},
    "gqa + ffn": {"model.n_kv_head": 2},
    "mqa + ffn": {"model.n_kv_head": 1},
    "window": {"model.window": 16},
    "window 3:1": {"model.window": 16, "model.window_pattern": "LLLF"},
}

BASE = replace(RunConfig(), {"train.lr": 3e-3, "train.warmup": 20})


def sweep() -> Sweep:
    """Fewer kv heads, alone and with d_ff widened to the parameters of MHA; windows in all layers and in most."""
    return Sweep(
        question="What does a smaller KV cache cost, and what do the saved parameters buy in the FFN?",
        base=BASE,
        arms=ARMS,
        baseline="mha",
        match=Match(by="params", over="d_ff", arms=("gqa + ffn", "mqa + ffn")),
        seeds=3,
        smallest_effect=0.005,
        default_scale="laptop",
        scales={
            "smoke": {
                "model.d_model": 32,
                "model.n_layer": 4,
                "model.n_head": 4,
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
