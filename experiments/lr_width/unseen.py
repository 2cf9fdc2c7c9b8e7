"""A width that no law has seen: `lab sweep experiments/lr_width/unseen.py` after `lab sweep lr_width`."""

from dataclasses import replace

from experiments.lr_width.sweep import KINDS, RATES, arm
from experiments.lr_width.sweep import sweep as seen
from sweeps.spec import Sweep

WIDTH = 512


def sweep() -> Sweep:
    """The same grid, one seed, at twice the largest width of `lr_width`."""
    arms = {f"{kind} d{WIDTH} lr {rate:g}": arm(kind, WIDTH, rate) for kind in KINDS for rate in RATES}
    return replace(seen(), question="Does the law of the smaller widths say the best rate here?", arms=arms, seeds=1)
