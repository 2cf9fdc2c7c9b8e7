"""From a name that a person types to one plan of the database."""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from results import planned

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COLUMNS = (
    "sweep, plan_id, scale, question, baseline, smallest_effect, match_tolerance, created_at, last_call_at, code_hash, "
    "stage"
)


class UnknownSweep(LookupError):
    """No plan has that name; the message lists names that are near."""


@dataclass(frozen=True)
class Plan:
    """One row of the table `plans`. `baseline` and `smallest_effect` (nats per token) may be absent.

    `stage` is tune, widen or verdict of a tuned sweep.
    """

    sweep: str
    plan_id: str
    scale: str | None
    question: str | None
    baseline: str | None
    smallest_effect: float | None
    match_tolerance: float | None
    created_at: str | None
    last_call_at: str | None
    code_hash: str | None
    stage: str | None = None

    @property
    def name(self) -> str:
        """`sweep@scale`, or the sweep alone."""
        return planned.at_scale(self.sweep, self.scale)


def resolve_plan(con: "DuckDBPyConnection", name: str) -> Plan:
    """The plan meant by `sweep`, `sweep@scale` or `sweep/plan_id` (a prefix of the id is enough).

    Where several plans fit, the one called last wins, and among plans never called the newest.
    Raises UnknownSweep, which names the nearest sweeps.
    """
    rows = con.execute(
        f"SELECT {COLUMNS} FROM plans ORDER BY last_call_at DESC NULLS LAST, created_at DESC NULLS LAST, plan_id"
    ).fetchall()
    plans = [Plan(*row) for row in rows]
    for plan in plans:
        if planned.is_meant(name, plan.sweep, plan.scale, plan.plan_id):
            return plan
    raise UnknownSweep(_no_such(name, plans))


def _no_such(name: str, plans: list[Plan]) -> str:
    if not plans:
        return f"no sweep {name!r}: the database holds no plan yet"
    known = sorted({n for p in plans for n in (p.sweep, p.name, f"{p.sweep}/{p.plan_id}")})
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5) or sorted({p.name for p in plans})[:10]
    return f"no sweep {name!r}; known: {', '.join(near)}"
