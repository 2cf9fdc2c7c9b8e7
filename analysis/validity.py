"""Which arms cannot be compared with a baseline, however many runs there are, and why."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from analysis import tuning
from analysis.frames import arms_of, configs_of, final_losses
from analysis.lint import Finding
from analysis.tuning_runs import TuningRuns
from analysis.verdict import Arm

MATCH_LIMIT = 0.005  # of the matched quantity
BUDGET_LIMIT = 0.01  # of tokens and FLOPs
BUDGET_KEYS = frozenset({"train.steps", "train.batch", "model.context"})
TOKENIZER_KEYS = frozenset({"data.tokenizer", "data.bpe_vocab", "data.fingerprint", "model.vocab"})
Config = Mapping[str, Any]


def refusals(
    runs: pl.DataFrame,
    attempts: pl.DataFrame,
    baseline: str | None,
    tolerance: float | None = None,
    tuned: TuningRuns | None = None,
) -> dict[str, list[Finding]]:
    """{arm: why it cannot be compared}; what is wrong with the baseline's own runs stands under the baseline.

    `runs` as from `frames.runs_frame`, `attempts` as from `provenance.attempts_frame`; `tolerance` is the plan's for
    matched sizes, `tuned` the tuning that went before.
    """
    if baseline is None or baseline not in arms_of(runs):
        return {}
    base, configs = baseline, configs_of(runs)
    code = _code(attempts)
    found = {
        arm: [
            _mixed_code(arm, base, code),
            _mixed_data(arm, base, runs, configs),
            _mixed_evaluation(arm, base, configs),
            _unmatched(arm, runs, MATCH_LIMIT if tolerance is None else tolerance),
            _budget(arm, base, runs, configs),
            tuned.refusal(arm, base, configs) if tuned else _rates(arm, base, runs, configs),
        ]
        for arm in arms_of(runs)
    }
    return {arm: [reason for reason in reasons if reason] for arm, reasons in found.items() if any(reasons)}


def same_text(one: Config, other: Config) -> bool:
    """Whether two configurations read the same text, whatever tokens they cut it into."""
    keys = {key for key in one.keys() | other.keys() if key.startswith("data.") and key not in TOKENIZER_KEYS}
    return all(one.get(key) == other.get(key) for key in keys)


def fingerprints(runs: pl.DataFrame, arm: str) -> set[str]:
    """Of the data of an arm's runs."""
    return set(runs.filter(pl.col("arm") == arm)["data_fingerprint"].drop_nulls())


def other_tokens(arm: str, base: str, runs: pl.DataFrame, configs: Mapping[str, Config]) -> bool:
    """Whether the two arms cut the same text into different tokens, so that only bits per byte compare."""
    if fingerprints(runs, arm) == fingerprints(runs, base):
        return False
    tokenizers = [set(runs.filter(pl.col("arm") == a)["tokenizer"].drop_nulls()) for a in (arm, base)]
    return tokenizers[0] != tokenizers[1] and same_text(configs.get(arm, {}), configs.get(base, {}))


def _code(attempts: pl.DataFrame) -> dict[str, set[str]]:
    known = attempts.filter(pl.col("code_hash").is_not_null()).group_by("arm").agg(pl.col("code_hash").unique())
    return {arm: set(hashes) for arm, hashes in known.iter_rows()}


def _mixed_code(arm: str, base: str, code: Mapping[str, set[str]]) -> Finding | None:
    versions = code.get(arm, set()) | code.get(base, set())
    if len(versions) < 2:
        return None
    reason = f"mixed code: the runs of {_both(arm, base)} used {len(versions)} versions of the code"
    return Finding("mixed_code", "error", reason, "run the arms that are compared again under one version")


def _mixed_data(arm: str, base: str, runs: pl.DataFrame, configs: Mapping[str, Config]) -> Finding | None:
    prints = fingerprints(runs, arm) | fingerprints(runs, base)
    if len(prints) < 2 or (arm != base and other_tokens(arm, base, runs, configs)):
        return None
    reason = f"mixed data: the runs of {_both(arm, base)} used {len(prints)} different data sets"
    return Finding("mixed_data", "error", reason, "run the arms that are compared on the same data")


def _mixed_evaluation(arm: str, base: str, configs: Mapping[str, Config]) -> Finding | None:
    counts = [configs.get(a, {}).get("train.eval_sequences") for a in (arm, base)]
    if counts[0] == counts[1]:
        return None
    reason = f"mixed evaluation: {arm} ends on {counts[0]} validation sequences, {base} on {counts[1]}"
    return Finding("mixed_evaluation", "error", reason, "evaluate all arms on the same sequences")


def _both(arm: str, base: str) -> str:
    return arm if arm == base else f"{arm} and {base}"


def _unmatched(arm: str, runs: pl.DataFrame, limit: float) -> Finding | None:
    residuals = runs.filter(pl.col("arm") == arm)["match_residual"].drop_nulls()
    worst = max(residuals, key=abs, default=0.0)
    if abs(worst) <= limit + 1e-12:
        return None
    reason = f"arms not matched: {arm} {worst:+.2%} of the matched quantity, beyond {limit:.1%}"
    return Finding("not_matched", "error", reason, "choose a finer multiple so that the sizes agree")


def _budget(arm: str, base: str, runs: pl.DataFrame, configs: Mapping[str, Config]) -> Finding | None:
    """More training is no fault where it is all the arm changes, or where the FLOPs agree."""
    changed = changes(configs, arm, base)
    if not changed & BUDGET_KEYS or not changed - BUDGET_KEYS:
        return None
    sizes = {
        a: runs.filter(pl.col("arm") == a).select(pl.col("tokens", "train_flops").max()).row(0) for a in (arm, base)
    }
    ratios = [own / other for own, other in zip(sizes[arm], sizes[base], strict=True) if own and other]
    if not ratios or min(abs(ratio - 1) for ratio in ratios) <= BUDGET_LIMIT:
        return None
    what = ", ".join(
        f"{key} {configs[base].get(key)} → {configs[arm].get(key)}" for key in sorted(changed & BUDGET_KEYS)
    )
    reason = f"unequal training budget: {arm} changes more than its subject ({what})"
    return Finding("unequal_budget", "error", reason, "give all arms the same tokens or the same FLOPs")


def changes(configs: Mapping[str, Config], arm: str, base: str) -> set[str]:
    """Dotted keys in which two arms differ."""
    one, other = configs.get(arm, {}), configs.get(base, {})
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} if one and other else set()


def families(configs: Mapping[str, Config]) -> dict[str, dict[float, str]]:
    """{arm: {learning rate: arm}}: for each arm those that differ from it in nothing but the learning rate."""
    groups: dict[frozenset[tuple[str, str]], dict[float, str]] = {}
    for arm, config in configs.items():
        key = frozenset((k, repr(v)) for k, v in config.items() if k != "train.lr")
        groups.setdefault(key, {})[float(config.get("train.lr", 0))] = arm
    return {arm: group for group in groups.values() for arm in group.values()}


def _rates(arm: str, base: str, runs: pl.DataFrame, configs: Mapping[str, Config]) -> Finding | None:
    """Arms tuned with unequal effort, or best at the edge of what was tried; a grid of the baseline alone is a
    question about the learning rate and needs no such care."""
    grids = families(configs)
    if arm not in grids or base not in grids or base in grids[arm].values():
        return None
    own, other = grids[arm], grids[base]
    if len(own) != len(other):
        return tuning.unequal(f"{arm} was tried at {len(own)} learning rates, {base} at {len(other)}")
    if len(own) == 1:
        return (
            tuning.unequal(f"{arm} also changes the learning rate, {min(other):g} → {min(own):g}")
            if own.keys() != other.keys()
            else None
        )
    best = {name: tuning.best_rate(_evidence(grid, runs)) for name, grid in ((arm, own), (base, other))}
    if len(other) >= tuning.GRID and other[best[base]] != base:
        return tuning.unequal(f"{base} is not at the best of its own learning rates, which is {best[base]:g}")
    if own[best[arm]] != arm:
        return None  # not the one that stands for its kind
    return tuning.edge(base, best[base], list(other)) or tuning.edge(arm, best[arm], list(own))


def _evidence(grid: Mapping[float, str], runs: pl.DataFrame) -> dict[float, Arm]:
    lost = dict(runs.filter(pl.col("outcome") == "diverged").group_by("arm").len().iter_rows())
    return {lr: Arm(arm, final_losses(runs, arm), diverged=lost.get(arm, 0)) for lr, arm in grid.items()}
