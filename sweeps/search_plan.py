"""The plan of a search: it grows by a run per trial, and what is in it never changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from results.files import BadFile, now, read_json
from results.home import Home
from sweeps.plan import Plan


@dataclass(frozen=True)
class SearchPlan(Plan):
    """All trials so far. `open`: more may come, so that workers without a run wait for one."""

    search_id: str
    search: Mapping[str, Any]
    open: bool

    @cached_property
    def plan_id(self) -> str:
        """Named after what is searched and how, not after the trials that came of it."""
        return self.search_id

    def to_json(self) -> dict[str, Any]:
        """As of any plan, with what is searched and the parameters of each run."""
        return super().to_json() | {"search": dict(self.search), "open": self.open}

    def write(self, home: Home) -> None:
        """Store what is new. Raises SweepError on a changed default."""
        folder = self.folder(home)
        try:
            stored = read_json(folder / "plan.json") or {}
        except BadFile:
            stored = {}  # the study knows every trial
        content = self.to_json()
        if all(stored.get(key) == value for key, value in content.items()):
            return
        self.refuse_changed_defaults(home)
        self.store(folder, stored.get("created_at", now()))
