"""Does the place of the norm decide how large a learning rate a model tolerates?"""

from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

PLACES = ("pre", "post", "sandwich", "branch")
RATES = (3e-3, 3e-2)


def sweep() -> Sweep:
    """Four places at a moderate and a large LR; the places are matched but for the gains of a few norms."""
    arms = {
        f"{place} lr {rate:g}": {"model.norm_position": place, "train.lr": rate} for rate in RATES for place in PLACES
    }
    return Sweep(
        question="Does pre-norm tolerate a larger learning rate than post-norm?",
        base=replace(RunConfig(), {"train.warmup": 10}),
        arms=arms,
        baseline="pre lr 0.003",
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
                "train.eval_every": 20,
                "train.eval_sequences": 32,
            },
            "laptop": {
                "model.d_model": 64,
                "model.n_layer": 8,
                "model.n_head": 4,
                "model.context": 64,
                "train.batch": 16,
                "train.steps": 400,
                "train.eval_every": 100,
            },
        },
    )
