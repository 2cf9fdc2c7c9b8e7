"""Large counts as short numbers: 12.3 TFLOPs, 2.46 M tokens."""

from collections.abc import Sequence

PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def scale(largest: float, names: Sequence[str], enough: float = 2.0) -> tuple[float, str]:
    """(divisor, name): the largest power of 1000 that leaves at least `enough`; `names` are for powers 0, 1, 2, ..."""
    power = max((p for p in range(len(names)) if largest >= enough * 1000.0**p), default=0)
    return 1000.0**power, names[power]


def si(value: float | None, unit: str = "") -> str:
    """`value` to three digits with an SI prefix, or a dash for None."""
    if value is None:
        return "–"
    divisor, prefix = scale(abs(value), PREFIXES, enough=1.0)
    return f"{value / divisor:.3g} {prefix}{unit}".strip()
