"""The Optuna study of a search: who was asked, what was told. One controller writes it, anyone may read it.

It is a journal file, so that Optuna's dashboard and `trials_dataframe` read it while the search goes on. A trial is
RUNNING from its ask to the end of its run; nothing but the end of its run tells it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from sweeps.search_samplers import SamplerName, sampler
from sweeps.search_space import Space

JOURNAL = "study.journal"


class _HeldAlready:
    """The journal's lock. The controller holds the search's own, which outlives no process; a second one could."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """How the run of a trial ended. `value` is what the sampler is told; `curve` is {training tokens: loss}."""

    outcome: str
    value: float
    loss: float | None
    curve: Mapping[int, float]
    pruned: bool = False


class Trials:
    """Asks and tells."""

    def __init__(self, study: Study, space: Space, sampler: SamplerName, seed: int) -> None:
        self.study, self.space, self.sampler, self.seed = study, space, sampler, seed

    def all(self) -> list[FrozenTrial]:
        """Every trial, in the order of their numbers."""
        return self.study.get_trials(deepcopy=False)

    def running(self) -> list[FrozenTrial]:
        """Those whose result has not been told."""
        return [trial for trial in self.all() if trial.state is TrialState.RUNNING]

    def ask(self) -> FrozenTrial:
        """A new trial with all its parameters, on disk."""
        self.study.sampler = sampler(self.sampler, self.space, self.seed, len(self.all()))
        trial = self.study.ask(fixed_distributions=self.space.distributions)
        return self.all()[trial.number]

    def complete_asks(self) -> None:
        """Give trials the parameters that a controller was killed before it could give."""
        for frozen in self.running():
            if frozen.params.keys() != self.space.parts.keys():
                self.study.sampler = sampler(self.sampler, self.space, self.seed, frozen.number)
                trial = Trial(self.study, frozen._trial_id)
                for key, distribution in self.space.distributions.items():
                    _suggest(trial, key, distribution)

    def note_run(self, trial: FrozenTrial, run_id: str) -> None:
        """Say which run the trial is, once."""
        if "run_id" not in trial.user_attrs:
            self.study._storage.set_trial_user_attr(trial._trial_id, "run_id", run_id)

    def tell(self, trial: FrozenTrial, result: Result) -> None:
        """The end of a trial. The curve is told only now: until then a resumed run may still rewrite it."""
        handle = Trial(self.study, trial._trial_id)
        handle.set_user_attr("outcome", result.outcome)
        handle.set_user_attr("val_loss", result.loss)
        for tokens, loss in result.curve.items():
            if tokens not in trial.intermediate_values:
                handle.report(loss, tokens)
        if result.pruned:
            self.study.tell(trial.number, state=TrialState.PRUNED)
        else:
            self.study.tell(trial.number, result.value)

    def refuse(self, trial: FrozenTrial, why: str) -> None:
        """End a trial that no run can be."""
        Trial(self.study, trial._trial_id).set_user_attr("outcome", f"refused: {why}")
        self.study.tell(trial.number, state=TrialState.FAIL)


def open_study(folder: Path, name: str) -> Study:
    """The study in a search's folder, made if there is none. Only for who holds the search's lock."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    _mend(folder / JOURNAL)
    lock: Any = _HeldAlready()
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL), lock))
    return optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)


def imagined() -> Study:
    """A study in memory, to show what would be asked."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="minimize")


def _mend(journal: Path) -> None:
    """Cut off a last line that a crash left torn: Optuna would refuse the file, and never knew what it said."""
    if not journal.exists():
        return
    content = journal.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(journal, whole)


def _suggest(trial: Trial, key: str, distribution: object) -> None:
    """Ask for one parameter; one that was given already stays."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    elif isinstance(distribution, FloatDistribution):
        trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)
