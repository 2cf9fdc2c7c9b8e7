"""Pictures of a search, and the importance of parameters where it is known."""

import numpy as np

from analysis.search_figures import Trial, importance, importance_figure, parallel_figure, slice_figure


def trials(n: int) -> list[Trial]:
    """The loss depends on the learning rate and a little on the gate; beta2 is without any effect."""
    dice = np.random.default_rng(0)
    found = []
    for i in range(n):
        lr, gate, beta2 = float(np.exp(dice.uniform(-9, -3))), str(dice.choice(["relu", "swiglu"])), dice.uniform()
        loss = 3 + 0.1 * (np.log(lr) + 6) ** 2 + 0.1 * (gate == "relu") + dice.normal(0, 0.01)
        outcome = "pruned" if i % 5 == 0 else "diverged" if i % 7 == 0 else "done"
        found.append(Trial(i, {"train.lr": lr, "model.ffn": gate, "train.beta2": float(beta2)}, outcome, float(loss)))
    return found


def test_importance_ranks_what_matters() -> None:
    shares = importance(trials(200))
    assert shares["train.lr"] > 0.6
    assert 0.01 < shares["model.ffn"] < 0.3
    assert shares["train.beta2"] < 0.05


def test_pictures_show_every_trial() -> None:
    found = trials(30)
    for key in found[0].params:
        axes = slice_figure(found, key).axes[0]
        assert sum(np.size(line.get_xdata()) for line in axes.lines) == 30
    assert len(parallel_figure(found).axes[0].lines) == 30
    assert len(importance_figure(importance(found)).axes[0].patches) == 3
    same = [Trial(0, {"train.lr": 1e-3}, "done", 3.0)]
    assert importance(same) == {"train.lr": 0.0}
    parallel_figure(same)
