"""The table in words: what can be said about each arm, and what cannot."""

from typing import Any

from analysis.select import Plan
from analysis.table import troubles


def answer(plan: Plan, rows: list[dict[str, Any]]) -> list[str]:
    """Sentences for people, from the rows of `table.summary`; an interval that contains 0 is no difference."""
    base = next((row for row in rows if row["baseline"]), None)
    if not any(row["done"] for row in rows):
        return [
            f"No run has finished with a finite loss yet ({sum(row['planned'] for row in rows)} planned): no answer."
        ]
    if base is None:
        return [_alone(row) for row in rows] + ["There is no baseline to compare with."]
    if not base["done"]:
        return [f"The baseline {base['arm']} has no finished run: no arm can be compared yet."]
    others = [row for row in rows if not row["baseline"]]
    return [*_groups(others, base["arm"]), _alone(base), *_caveats(plan, others)]


def _alone(row: dict[str, Any]) -> str:
    if not row["done"]:
        return f"{row['arm']} has no finished run{_lost(row)}."
    interval = ""
    if row["val_loss_low"] is not None:
        interval = f" (95 % interval {row['val_loss_low']:.4f} to {row['val_loss_high']:.4f})"
    end = f"{row['val_loss']:.4f} nats per token{interval}, n\u00a0=\u00a0{row['done']}{_lost(row)}"
    return f"{row['arm']} ends at a validation loss of {end}."


def _groups(others: list[dict[str, Any]], base: str) -> list[str]:
    below = [row for row in others if row["difference_high"] is not None and row["difference_high"] < 0]
    above = [row for row in others if row["difference_low"] is not None and row["difference_low"] > 0]
    unclear = [row for row in others if row["difference_low"] is not None and row not in below + above]
    single = [row for row in others if row["difference_low"] is None and row["difference"] is not None]
    empty = [row for row in others if row["difference"] is None]
    sentences = []
    if below:
        sentences.append(f"Below {base}, which is better: {_gaps(below)}.")
    if above:
        sentences.append(f"Above {base}, which is worse: {_gaps(above)}.")
    sentences += [f"Not distinguishable from {base} at n\u00a0=\u00a0{n}: {_gaps(same)}." for n, same in _by_n(unclear)]
    if single:
        sentences.append(f"One seed only, so no interval and no conclusion: {_gaps(single)}.")
    if empty:
        sentences.append("No finished run: " + ", ".join(row["arm"] + _lost(row) for row in empty) + ".")
    return sentences


def _by_n(rows: list[dict[str, Any]]) -> list[tuple[int, list[dict[str, Any]]]]:
    counts = sorted({row["difference_n"] for row in rows})
    return [(n, [row for row in rows if row["difference_n"] == n]) for n in counts]


def _gaps(rows: list[dict[str, Any]]) -> str:
    return "; ".join(_gap(row) for row in sorted(rows, key=lambda row: row["difference"]))


def _gap(row: dict[str, Any]) -> str:
    interval = ""
    if row["difference_low"] is not None:
        interval = f" [{row['difference_low']:+.4f}, {row['difference_high']:+.4f}]"
    return f"{row['arm']} by {row['difference']:+.4f}{interval}, n\u00a0=\u00a0{row['difference_n']}{_lost(row)}"


def _lost(row: dict[str, Any]) -> str:
    lost = troubles(row)
    return " (" + ", ".join(f"{n} {kind}" for kind, n in lost.items()) + ")" if lost else ""


def _caveats(plan: Plan, others: list[dict[str, Any]]) -> list[str]:
    sentences = []
    if len(others) > 1:
        sentences.append(
            f"Each interval stands for itself; none is corrected for looking at {len(others)} arms at once."
        )
    if plan.smallest_effect:
        sentences.append(f"The plan calls {plan.smallest_effect:g} nats the smallest difference that matters.")
    return sentences
