"""Does a gated FFN help at equal parameters?"""

from lmcore.config import RunConfig, replace
from sweeps.spec import Match, Range, Sweep, Tune

KINDS = ("relu", "gelu", "silu", "swiglu", "geglu")

BASE = replace(
    RunConfig(),
    {"train.lr": 3e-3, "train.warmup": 20, "train.weight_decay": 0.1},
)


# Factor 2 between neighbours. A gate changes the gradients of its factors, so the best rate need not be that of ReLU.
RATES = Range(2.5e-4, 4e-3, log=True, points=5)


def sweep() -> Sweep:
    """Five activations; d_ff of each solved so that all have the parameters of the ReLU model."""
    return Sweep(
        question="Does a gated FFN help at equal parameters?",
        base=BASE,
        arms={kind: {"model.ffn": kind} for kind in KINDS},
        baseline="relu",
        match=Match(by="params"),
        seeds=3,
        smallest_effect=0.005,
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
            "cluster": {
                "data.tokenizer": "bpe",
                "data.bpe_vocab": 4096,
                "model.d_model": 512,
                "model.n_layer": 8,
                "model.n_head": 8,
                "model.context": 512,
                "train.batch": 64,
                "train.steps": 4000,
                "train.warmup": 200,
                "train.precision": "bf16",
                "train.eval_every": 200,
                "train.checkpoint_every": 400,
                "train.log_every": 10,
                "seeds": 5,
                "tune": Tune({"train.lr": RATES}),
            },
        },
    )
