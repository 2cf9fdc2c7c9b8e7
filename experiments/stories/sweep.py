"""Does the 810,624-parameter character model reach its published validation loss?"""

from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

# torch's AdamW defaults with decay on everything and no clipping, as published; only the LR schedule is ours.
BASE = replace(
    RunConfig(),
    {
        "model.d_ff": 344,
        "data.max_chars": 1_000_000,
        "train.steps": 1501,
        "train.batch": 32,
        "train.lr": 3e-3,
        "train.beta2": 0.999,
        "train.weight_decay": 0.01,
        "train.decay_all": True,
        "train.clip": None,
        "train.threads": 2,
        "train.eval_every": 250,
        "train.eval_sequences": 800,
        "train.checkpoint_every": 250,
    },
)


def sweep() -> Sweep:
    """One model, one seed. Give the text with `--set data.path=...`; without it the default text is used."""
    return Sweep(
        question="Does the 810,624-parameter character model reach its published validation loss, 1.007?",
        base=BASE,
        arms={"stories-810k": {}},
        seeds=1,
        default_scale="cosine",
        scales={
            "cosine": {"train.warmup": 50},
            "fast": {
                "train.warmup": 50,
                "train.precision": "auto",
                "train.attention": "auto",
                "train.compile": "auto",
                "train.threads": "auto",
            },
            "constant": {"train.schedule": "constant"},
            "smoke": {"train.steps": 20, "train.eval_every": 10, "train.eval_sequences": 64, "train.threads": 1},
        },
    )
