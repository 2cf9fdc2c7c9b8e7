"""What a reader must know before believing the numbers of a plan: each with its reason and what to do."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.frames import arms_of, configs_of, runs_frame
from analysis.lint import Finding
from analysis.provenance import Provenance, attempts_frame, listed, provenance
from analysis.select import Plan
from analysis.spikes import by_run, spikes
from analysis.tuning import GRID
from analysis.tuning_runs import tuning_runs
from analysis.validity import BUDGET_KEYS, MATCH_LIMIT, changes, families, other_tokens, refusals

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MIN_SEEDS = 3
LONG_WARMUP = 0.1  # of the steps
LEVELS = ("error", "warning", "note")


def lint(con: "DuckDBPyConnection", plan: Plan) -> list[Finding]:
    """Everything that weakens a comparison within the plan, the worst level first."""
    runs, attempts, origin = runs_frame(con, plan), attempts_frame(con, plan), provenance(con, plan)
    configs = configs_of(runs)
    by_arm = refusals(runs, attempts, plan.baseline, plan.match_tolerance, tuning_runs(con, plan))
    refused = list(dict.fromkeys(finding for found in by_arm.values() for finding in found))
    found = [
        *refused,
        *_troubled_runs(runs, attempts),
        *_mixed(origin, {finding.code for finding in refused}),
        *_sizes(runs, plan),
        *_few_seeds(runs),
        *_questions(configs, plan),
        *_schedules(configs),
        *_epochs(runs),
        *_tokens(runs, configs, plan),
        *_spikes(runs, by_run(spikes(con, plan))),
    ]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _troubled_runs(runs: pl.DataFrame, attempts: pl.DataFrame) -> Iterator[Finding]:
    todo = {
        "diverged": "a mean of the others flatters the arm: lower the learning rate, or report how many diverge",
        "failed": "read the error with `lab logs RUN`, mend it and call `lab sweep --retry-failed`",
        "unfinished": "the numbers will change: call `lab sweep` again to finish them",
    }
    errors = dict(attempts.filter(pl.col("error").is_not_null()).select("run_id", "error").iter_rows())
    for outcome, remedy in todo.items():
        rows = runs.filter(pl.col("outcome") == outcome).to_dicts()
        if rows:
            names = _first([_run_name(row, errors if outcome == "failed" else {}) for row in rows])
            yield Finding(outcome, "warning", f"{len(rows)} of {len(runs)} runs {outcome}: {names}", remedy)


def _first(names: list[str], most: int = 12) -> str:
    return "; ".join(names[:most]) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _run_name(row: dict[str, Any], errors: dict[str, str]) -> str:
    how = row["state"].lower() + (f", {row['kind']}" if row["kind"] else "")
    error = errors.get(row["run_id"], "").strip().splitlines()[-1:]
    return f"{row['arm']} seed {row['seed']} ({how}{': ' + error[0][:120] if error else ''}, run {row['run_id']})"


def _mixed(origin: Provenance, refused: set[str]) -> Iterator[Finding]:
    again = "run the arms that you compare again under one of them"
    if len(origin.code) > 1 and "mixed_code" not in refused:
        shares = ", ".join(f"{c['code_hash']} ({c['runs']} runs)" for c in origin.code)
        yield Finding(
            "mixed_code", "warning", f"the runs used {len(origin.code)} versions of the code: {shares}", again
        )
    versions = {name: found for name, found in origin.packages.items() if len(found) > 1}
    if versions:
        shares = "; ".join(f"{name} " + listed(found, ", ") for name, found in versions.items())
        yield Finding("mixed_versions", "warning", f"the runs used different package versions: {shares}", again)
    for code, what, found in (
        ("mixed_hardware", "different hardware, so do not compare their speed", origin.hardware),
        ("mixed_numerics", "different threads, precision or attention", origin.numerics),
    ):
        if len(found) > 1:
            yield Finding(code, "warning", f"the runs used {what}: {listed(found, '; ')}", again)


def _sizes(runs: pl.DataFrame, plan: Plan) -> Iterator[Finding]:
    """Arms that nobody matched and that are larger or smaller than the baseline: often the question, so a note."""
    sizes = {row["arm"]: row["params"] for row in runs.unique("arm", keep="first", maintain_order=True).to_dicts()}
    free = set(runs.filter(pl.col("match_residual").is_null())["arm"])
    base = sizes.get(plan.baseline or "")
    gaps = {arm: size / base - 1 for arm, size in sizes.items() if base and size and arm in free}
    apart = [f"{arm} {gap:+.1%}" for arm, gap in gaps.items() if abs(gap) > MATCH_LIMIT]
    if apart:
        reason = f"parameters differ from {plan.baseline} and were not matched: {_first(apart)}"
        yield Finding("sizes_differ", "note", reason, "read a difference as that of the whole arm, size included")


def _few_seeds(runs: pl.DataFrame) -> Iterator[Finding]:
    finished = dict.fromkeys(arms_of(runs), 0)
    finished |= dict(runs.filter(pl.col("outcome") == "done").group_by("arm").len().iter_rows())
    few = [f"{arm} ({n})" for arm, n in finished.items() if n < MIN_SEEDS]
    if few:
        code = "one_seed" if max(finished.values()) == 1 else "few_seeds"
        reason = f"fewer than {MIN_SEEDS} finished seeds: {', '.join(few)}; an interval from so few is wide or missing"
        yield Finding(code, "warning", reason, "add seeds before you decide")


def _questions(configs: Mapping[str, dict[str, Any]], plan: Plan) -> Iterator[Finding]:
    """Arms that change the training budget or the learning rate and nothing else: that is what they ask."""
    keys = BUDGET_KEYS | {"train.lr"}
    for arm in configs:
        changed = changes(configs, arm, plan.baseline or "")
        if changed and changed <= keys:
            base = configs[plan.baseline or ""]
            what = ", ".join(f"{key} {base.get(key)} → {configs[arm].get(key)}" for key in sorted(changed))
            reason = f"{arm} differs from {plan.baseline} in {what} and in nothing else"
            yield Finding("budget_is_the_question", "note", reason, "read its difference as the effect of it")
    grids = families(configs)
    most = max((len(grid) for grid in grids.values()), default=0)
    if 1 < most < GRID and most < len(grids):
        reason = f"arms were tried at {most} learning rates: no inside, so no tuned learning rate"
        yield Finding("lr_grid_short", "note", reason, f"{GRID} rates or more show where the best lies")


def _schedules(configs: Mapping[str, dict[str, Any]]) -> Iterator[Finding]:
    shares = {arm: c.get("train.warmup", 0) / c["train.steps"] for arm, c in configs.items() if c.get("train.steps")}
    long = [f"{arm} {share:.0%}" for arm, share in shares.items() if share > LONG_WARMUP]
    if long:
        reason = f"warmup is a large share of the run: {_first(long)}"
        yield Finding("long_warmup", "warning", reason, f"warm up for at most {LONG_WARMUP:.0%} of the steps")
    flat = [arm for arm, config in configs.items() if config.get("train.schedule") == "constant"]
    if flat:
        reason = f"the learning rate does not fall to the end of the run: {_first(flat)}"
        remedy = "a schedule matched to the horizon (cosine, linear, wsd); else the order of arms may change with decay"
        yield Finding("schedule_not_matched", "warning", reason, remedy)


def _epochs(runs: pl.DataFrame) -> Iterator[Finding]:
    epochs = pl.col("tokens") / pl.col("train_tokens")
    rows = runs.with_columns(epochs=epochs).filter(pl.col("epochs") > 1).unique("arm", maintain_order=True).to_dicts()
    if rows:
        names = _first([f"{row['arm']} {row['epochs']:.2g} epochs" for row in rows])
        remedy = "more text, or say that the question is about repeated data"
        yield Finding("data_repeated", "warning", f"training data is repeated: {names}", remedy)


def _tokens(runs: pl.DataFrame, configs: Mapping[str, dict[str, Any]], plan: Plan) -> Iterator[Finding]:
    base = plan.baseline or ""
    arms = [arm for arm in configs if base in configs and other_tokens(arm, base, runs, configs)]
    if arms:
        reason = f"losses of different tokenizers: {_first(arms)} against {base}"
        yield Finding("mixed_tokenizers", "warning", reason, "compare bits per byte, as the verdict does, never nats")
    contexts = {config.get("model.context") for config in configs.values()}
    if len(contexts) > 1:
        reason = f"losses of different evaluation sets: contexts of {', '.join(map(str, sorted(contexts, key=str)))}"
        yield Finding("mixed_evaluation", "warning", reason, "evaluate all arms on the same sequences")


def _spikes(runs: pl.DataFrame, found: pl.DataFrame) -> Iterator[Finding]:
    """Runs whose training loss jumped and that went on; of one that diverged enough is said."""
    rows = found.join(runs.filter(pl.col("outcome") == "diverged"), on="run_id", how="anti").to_dicts()
    if rows:
        names = [
            f"{row['arm']} seed {row['seed']} ({row['n']} {'step' if row['n'] == 1 else 'steps'}, "
            f"the highest {row['excess']:+.3f} nats at step {row['step']})"
            for row in rows
        ]
        reason = f"the training loss spiked in {len(rows)} of {len(runs)} runs: {_first(names)}"
        remedy = "one near the end is in the final loss: see whether the run came back, or lower the learning rate"
        yield Finding("loss_spikes", "warning", reason, remedy)
