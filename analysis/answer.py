"""The verdicts of a plan in words, for people: what is established about each arm, and what is not."""

from typing import Any

from analysis.select import Plan
from analysis.table import troubles, with_interval

MOST = 6  # arms named in the headline under one word
GROUPS = {
    "better": "Better than {base}",
    "worse": "Worse than {base}",
    "equivalent": "Equivalent to {base}",
    "inconclusive": "Undecided against {base}",
    "invalid": "No verdict",
}


def headline(rows: list[dict[str, Any]]) -> str:
    """The one sentence of a plan, from the rows of `table.summary`: each word with the arms it is said of."""
    base = next((row["arm"] for row in rows if row["baseline"]), None)
    if not any(row["done"] for row in rows):
        planned = sum(row["planned"] for row in rows)
        return f"No run has finished with a finite loss yet ({planned} planned): no answer."
    if base is None:
        return "There is no baseline to compare with: no verdict."
    groups = {word: [row for row in rows if row["verdict"] == word] for word in GROUPS}
    if not any(groups.values()):
        return f"{base} is the only arm: no verdict."
    parts = [GROUPS[word].format(base=base) + ": " + _listed(arms) for word, arms in groups.items() if arms]
    return "; ".join(parts) + "."


def _listed(arms: list[dict[str, Any]]) -> str:
    more = f" and {len(arms) - MOST} more" if len(arms) > MOST else ""
    return ", ".join(map(_brief, arms[:MOST])) + more


def _brief(row: dict[str, Any]) -> str:
    if row["verdict"] == "invalid" or row["difference"] is None:
        return str(row["arm"])
    return f"{row['arm']} ({row['difference']:+.4f})"


def answer(plan: Plan, rows: list[dict[str, Any]]) -> list[str]:
    """The headline, then a sentence per arm with its numbers and its reason, then what all of them assume."""
    return [headline(rows), *(sentence(row) for row in judged(rows)), *own(rows), *terms(plan, rows)]


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that have a verdict; none before the first run has finished."""
    return [row for row in rows if row["verdict"]] if any(row["done"] for row in rows) else []


def sentence(row: dict[str, Any]) -> str:
    """One arm: its verdict, its difference, how many runs, the reason."""
    link = "by" if row["verdict"] in ("better", "worse") else "at"
    gap = "" if row["difference"] is None else f" {link} {with_interval(row, 'difference', '+.4f')}"
    n = f", n\u00a0=\u00a0{row['difference_n']}" if row["difference_n"] else ""
    return f"{row['arm']} is {row['verdict']}{gap}{n}{_lost(row)}: {row['reason']}."


def own(rows: list[dict[str, Any]]) -> list[str]:
    """Where the baseline ends; without verdicts, where every arm ends."""
    if not any(row["done"] for row in rows):
        return []
    return [_alone(row) for row in rows if row["baseline"] or not judged(rows)]


def _alone(row: dict[str, Any]) -> str:
    if not row["done"]:
        return f"{row['arm']} has no finished run{_lost(row)}."
    interval = ""
    if row["val_loss_low"] is not None:
        interval = f" (95 % interval {row['val_loss_low']:.4f} to {row['val_loss_high']:.4f})"
    end = f"{row['val_loss']:.4f} nats per token{interval}, n\u00a0=\u00a0{row['done']}{_lost(row)}"
    return f"{row['arm']} ends at a validation loss of {end}."


def _lost(row: dict[str, Any]) -> str:
    lost = troubles(row)
    return " (" + ", ".join(f"{n} {kind}" for kind, n in lost.items()) + ")" if lost else ""


def terms(plan: Plan, rows: list[dict[str, Any]]) -> list[str]:
    """What the verdicts mean, and the smallest difference that the plan declares."""
    others = judged(rows)
    if not others:
        return []
    unit = next((row["difference_unit"] for row in others if row["difference_unit"]), "nats per token")
    family = f"; better, worse and equivalent hold for all {len(others)} arms at once (Holm)" if len(others) > 1 else ""
    said = [f"Differences in {unit}, each with its own 95 % interval{family}."]
    if plan.smallest_effect:
        said.append(f"The plan calls {plan.smallest_effect:g} nats the smallest difference that matters.")
    tuned = [row["tuned"] for row in rows if row["tuned"]]
    if tuned:
        said.append(f"Tuned at equal effort, on seeds that count in no number here: {'; '.join(tuned)}.")
    return said
