"""What a reader must know before believing a plan's numbers: each a plain sentence that ends with what to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.frames import arms_of, changes_between_arms, runs_frame
from analysis.provenance import Provenance, attempts_frame, listed, provenance
from analysis.select import Plan
from analysis.spikes import by_run, spikes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MATCH_LIMIT = 0.005
MIN_SEEDS = 3
BUDGET_KEYS = frozenset({"train.lr", "train.steps", "train.batch", "model.context"})


@dataclass(frozen=True)
class Notice:
    """`kind` is a stable word for machines; `serious` is False where the arms differ on purpose."""

    kind: str
    text: str
    serious: bool = True


def warnings_for(con: "DuckDBPyConnection", plan: Plan) -> list[Notice]:
    """Everything that weakens a comparison within the plan, the most serious kind first."""
    runs, origin = runs_frame(con, plan), provenance(con, plan)
    notices = [
        *_troubled_runs(runs, attempts_frame(con, plan)),
        *_mixed(origin),
        *_unmatched(runs),
        *_few_seeds(runs),
        *_budgets(runs, plan),
        *_spikes(runs, by_run(spikes(con, plan))),
    ]
    return sorted(notices, key=lambda notice: not notice.serious)


def _troubled_runs(runs: pl.DataFrame, attempts: pl.DataFrame) -> Iterator[Notice]:
    todo = {
        "diverged": "Means leave them out, which flatters the arm; lower the learning rate or report how many diverge.",
        "failed": "Read the error with `lab logs RUN`, mend it and call `lab sweep --retry-failed`.",
        "unfinished": "The numbers will change; call `lab sweep` again to finish them.",
    }
    errors = dict(attempts.filter(pl.col("error").is_not_null()).select("run_id", "error").iter_rows())
    for outcome, advice in todo.items():
        rows = runs.filter(pl.col("outcome") == outcome).to_dicts()
        if rows:
            names = "; ".join(_run_name(row, errors if outcome == "failed" else {}) for row in rows[:12])
            more = f"; and {len(rows) - 12} more" if len(rows) > 12 else ""
            yield Notice(outcome, f"{len(rows)} of {len(runs)} runs {outcome}: {names}{more}. {advice}")


def _run_name(row: dict[str, Any], errors: dict[str, str]) -> str:
    how = row["state"].lower() + (f", {row['kind']}" if row["kind"] else "")
    error = errors.get(row["run_id"], "").strip().splitlines()[-1:]
    return f"{row['arm']} seed {row['seed']} ({how}{': ' + error[0][:120] if error else ''}, run {row['run_id']})"


def _mixed(origin: Provenance) -> Iterator[Notice]:
    again = "Run the arms that you compare again under one of them."
    if len(origin.code) > 1:
        shares = ", ".join(f"{c['code_hash']} ({c['runs']} runs)" for c in origin.code)
        yield Notice("mixed_code", f"The runs used {len(origin.code)} versions of the code: {shares}. {again}")
    versions = {name: found for name, found in origin.packages.items() if len(found) > 1}
    if versions:
        shares = "; ".join(f"{name} " + listed(found, ", ") for name, found in versions.items())
        yield Notice("mixed_versions", f"The runs used different package versions: {shares}. {again}")
    for kind, what, found in (
        ("mixed_data", "different data", origin.data),
        ("mixed_hardware", "different hardware, so do not compare their speed", origin.hardware),
        ("mixed_numerics", "different threads, precision or attention", origin.numerics),
    ):
        if len(found) > 1:
            yield Notice(kind, f"The runs used {what}: {listed(found, '; ')}. {again}")


def _unmatched(runs: pl.DataFrame) -> Iterator[Notice]:
    size = pl.col("match_residual").abs()
    worst = runs.filter(size > MATCH_LIMIT).sort(size, descending=True).unique("arm", keep="first", maintain_order=True)
    if len(worst):
        arms = ", ".join(f"{row['arm']} {row['match_residual']:+.2%}" for row in worst.to_dicts())
        yield Notice(
            "unmatched",
            f"Not matched within {MATCH_LIMIT:.1%}: {arms}. A larger arm is expected to be better; "
            "choose a finer multiple for d_ff so that the sizes agree.",
        )


def _few_seeds(runs: pl.DataFrame) -> Iterator[Notice]:
    finished = dict.fromkeys(arms_of(runs), 0)
    finished |= dict(runs.filter(pl.col("outcome") == "done").group_by("arm").len().iter_rows())
    few = [f"{arm} ({n})" for arm, n in finished.items() if n < MIN_SEEDS]
    if few:
        yield Notice(
            "few_seeds",
            f"Fewer than {MIN_SEEDS} finished seeds: {', '.join(few)}. An interval from so few is wide or missing; "
            "add seeds before you decide.",
        )


def _budgets(runs: pl.DataFrame, plan: Plan) -> Iterator[Notice]:
    """Arms with another learning rate or number of tokens: a note where that is all they change, else a warning."""
    changes = changes_between_arms(runs, plan.baseline) if plan.baseline else {}
    for arm, changed in changes.items():
        budget = {key: changed[key] for key in changed if key in BUDGET_KEYS}
        if not budget:
            continue
        what = ", ".join(f"{key} {old} → {new}" for key, (old, new) in budget.items())
        if len(budget) == len(changed):
            yield Notice(
                "budget_is_the_question",
                f"{arm} differs from {plan.baseline} in {what} and in nothing else: "
                "that is what this arm asks, so read its difference as the effect of it.",
                serious=False,
            )
        else:
            yield Notice(
                "budget",
                f"{arm} changes more than its subject: {what}. Give all arms the same, "
                "or say that each was tuned with the same effort.",
            )


def _spikes(runs: pl.DataFrame, found: pl.DataFrame) -> Iterator[Notice]:
    """Runs whose training loss jumped and that went on; of one that diverged enough is said."""
    rows = found.join(runs.filter(pl.col("outcome") == "diverged"), on="run_id", how="anti").to_dicts()
    if rows:
        names = [
            f"{row['arm']} seed {row['seed']} ({row['n']} {'step' if row['n'] == 1 else 'steps'}, "
            f"the highest {row['excess']:+.3f} nats at step {row['step']})"
            for row in rows[:12]
        ]
        more = f"; and {len(rows) - 12} more" if len(rows) > 12 else ""
        yield Notice(
            "loss_spikes",
            f"The training loss spiked in {len(rows)} of {len(runs)} runs: {'; '.join(names)}{more}. A spike near the "
            "end is in the final loss; see whether the run came back, else lower the learning rate or lengthen warmup.",
        )
