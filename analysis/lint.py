"""What a warning is: `lab lint`, `lab fit` and the report say them in the same four fields."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`code` is stable and machine-readable; `level` is error, warning or note; then what is wrong and what to do."""

    code: str
    level: str
    reason: str
    remedy: str

    @property
    def sentences(self) -> tuple[str, str]:
        """Reason and remedy, each with its full stop."""
        return f"{self.reason.rstrip('.')}.", f"{self.remedy.rstrip('.')}."
