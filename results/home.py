"""Where everything lies: one folder, one layout."""

import os
from pathlib import Path

from results.files import BadName, StorageFull, naming_full_disk, safe_name
from results.record import RunFolder
from results.shapes import RUN_ID


class Home:
    """The folder of all runs, plans and reports. Without a path: $LAB_HOME, else ./lab-home."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path or os.environ.get("LAB_HOME") or "lab-home").expanduser().absolute()

    def __repr__(self) -> str:
        return f"Home({str(self.path)!r})"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def sweeps(self) -> Path:
        return self.path / "sweeps"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def locks(self) -> Path:
        return self.path / "locks"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def reports(self) -> Path:
        return self.path / "reports"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def database(self) -> Path:
        return self.path / "lab.duckdb"

    def run(self, run_id: str) -> RunFolder:
        """The folder of one run, which need not exist yet."""
        return RunFolder(self.runs / safe_name(run_id))

    def folders(self) -> set[str]:
        """Names of the folders of runs: what has none has not begun."""
        try:
            return {path.name for path in self.runs.iterdir()}
        except FileNotFoundError:
            return set()

    def run_ids(self) -> list[str]:
        """Ids of all runs that have a spec or have begun, sorted, and of whatever else stands in the place of one."""
        names = sorted(name for name in self.folders() if RUN_ID.fullmatch(name))
        return [name for name in names if self._is_begun(self.runs / name)]

    def _is_begun(self, run: Path) -> bool:
        return any((run / name).exists() for name in ("spec.json", "attempts")) or not run.is_dir()

    def must_exist(self) -> None:
        """FileNotFoundError in plain words where nothing was ever swept: whoever only reads makes no home."""
        if not self.runs.is_dir():
            raise FileNotFoundError(f"no results in {self.path}: nothing was swept there yet; see --home and LAB_HOME")

    def ensure(self) -> None:
        """Create the folders; PermissionError in plain words if that cannot be, StorageFull without space, BadName for
        a path that DuckDB or PYTHONPATH reads otherwise."""
        if odd := _odd_in(str(self.path)):
            raise BadName(f"the results home {self.path!a} has {' and '.join(odd)} in its path. Set LAB_HOME.")
        try:
            with naming_full_disk(self.path):
                for folder in (self.runs, self.sweeps, self.snapshots, self.data, self.reports):
                    folder.mkdir(parents=True, exist_ok=True)
        except StorageFull:
            raise
        except OSError as error:
            raise PermissionError(f"cannot create the results home {self.path}: {error}. Set LAB_HOME.") from error
        if not os.access(self.path, os.W_OK):
            raise PermissionError(f"the results home {self.path} is not writable. Set LAB_HOME.")


def _odd_in(path: str) -> list[str]:
    """What a results home must not have in its path: DuckDB takes ? and \\ for more than letters and knows no bytes
    that are not UTF-8, and workers find their source through PYTHONPATH."""
    foreign = path.encode(errors="ignore").decode() != path
    return sorted(set("?\\" + os.pathsep) & set(path)) + foreign * ["bytes that are not UTF-8"]
