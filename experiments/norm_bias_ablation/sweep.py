"""What do LayerNorm's mean and the biases buy over RMSNorm without biases?"""

from lmcore.config import RunConfig, replace
from sweeps.spec import Overrides, Sweep

ARMS: dict[str, Overrides] = {
    "rmsnorm": {},
    "layernorm": {"model.norm": "layernorm"},
    "rmsnorm + qkv biases": {"model.bias": "qkv"},
    "rmsnorm + biases": {"model.bias": "all"},
    "layernorm + biases": {"model.norm": "layernorm", "model.bias": "all"},
}

BASE = replace(RunConfig(), {"train.lr": 3e-3, "train.warmup": 20})


def sweep() -> Sweep:
    """Two norms by two uses of biases, and biases on q, k, v only. Biases are 1.3 % of the parameters and not matched:
    the question is what they add."""
    return Sweep(
        question="What do LayerNorm's mean and the biases buy over RMSNorm without biases?",
        base=BASE,
        arms=ARMS,
        baseline="rmsnorm",
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
