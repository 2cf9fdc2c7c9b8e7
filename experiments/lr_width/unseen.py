"""A width that no law has seen: `lab sweep experiments/lr_width/unseen.py` after `lab sweep lr_width`."""

from dataclasses import replace

from experiments.lr_width.sweep import RATES, arm
from experiments.lr_width.sweep import sweep as seen
from sweeps.spec import Sweep

WIDTH = 512
NEAR = {"standard": RATES[:4], "transfer": RATES[3:]}  # the half of the grid where the laws of our runs lie


def sweep() -> Sweep:
    """One seed at twice the largest width of `lr_width`."""
    arms = {f"{kind} d{WIDTH} lr {rate:g}": arm(kind, WIDTH, rate) for kind, rates in NEAR.items() for rate in rates}
    return replace(seen(), question="Does the law of the smaller widths say the best rate here?", arms=arms, seeds=1)
