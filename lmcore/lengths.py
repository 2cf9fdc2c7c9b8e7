"""A trained model on sequences longer than those it was trained on. Nothing is trained: the same weights are read with
more positions, RoPE as it was trained or stretched."""

from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor

from lmcore.config import FULL, ConfigError, RunConfig, replace
from lmcore.evaluate import edges

Scaling = Literal["none", "linear", "ntk", "yarn"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
ALONE = {"train.micro_batch": None, "train.processes": 1, "train.sharding": "ddp"}


def scalings(config: RunConfig) -> tuple[Scaling, ...]:
    """What can be tried on this model: nothing if a table of learned positions ends, all if it rotates unstretched."""
    model = config.model
    if model.position == "learned":
        return ()
    stretchable = FULL in model.layer_kinds and model.layer_rotates(FULL) and model.rope_scaling == "none"
    return SCALINGS if stretchable else ("none",)


def longer(config: RunConfig, context: int, scaling: Scaling) -> RunConfig:
    """The run's model and evaluation at `context` tokens; rotations are stretched by the ratio of the two lengths.

    Raises ConfigError where that cannot be: a context that is not longer, a scaling that the model does not take.
    """
    trained = config.model.context
    if context <= trained:
        raise ConfigError(f"{context} tokens are not more than the {trained} that the model was trained on")
    if scaling not in scalings(config):
        raise ConfigError(f"scaling {scaling!r} cannot be tried on positions of the kind {config.model.position!r}")
    original = config.model.rope_original_context if "yarn" in (scaling, config.model.rope_scaling) else context
    changes: dict[str, object] = {
        "model.context": context,
        "model.rope_original_context": original,
        "train.batch": max(1, config.train.batch * trained // context),  # as many tokens at once as in training
        **ALONE,
    }
    if scaling != "none":
        changes |= {"model.rope_scaling": scaling, "model.rope_factor": context / trained}
    return replace(config, changes)


def range_means(losses: Tensor, trained: int) -> list[dict[str, float]]:
    """`losses` (context,) as means over half octaves of the position, cut where training ended."""
    cuts = sorted({*edges(len(losses)), trained})
    return [{"start": start, "stop": stop, "loss": float(losses[start:stop].mean())} for start, stop in pairwise(cuts)]
