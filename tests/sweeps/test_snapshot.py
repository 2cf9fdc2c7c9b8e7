"""The snapshot that queued jobs run holds the code as it is, committed or not, byte for byte."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from results.home import Home
from sweeps import snapshot

FILES = {
    "lmcore/config.py": "STEPS = 3\n",
    "lmcore/model.py": "WIDTH = 8\n",
    "results/schema.sql": "CREATE TABLE runs (run_id TEXT);\n",
    "sweeps/worker.py": "JOBS = 1\n",
    "analysis/plot.py": "COLOUR = 'red'\n",
}


def git(folder: Path, *arguments: str) -> None:
    options = ["-c", "user.name=me", "-c", "user.email=me@here", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all of it")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed checkout whose room `lmcore` has a submodule."""
    library, found = tmp_path / "library", tmp_path / "source"
    for path, text in {library / "kernels.py": "FAST = False\n", **{found / n: t for n, t in FILES.items()}}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (library, found):
        git(folder, "init", "-q")
        commit(folder)
    git(found, "submodule", "add", str(library), "lmcore/library")
    commit(found)
    monkeypatch.setattr(snapshot, "SOURCE", found)
    return found


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def code_in(folder: Path) -> dict[str, bytes]:
    rooms = (path for room in snapshot.ROOMS for path in (folder / room).rglob("*") if path.suffix in (".py", ".sql"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in rooms}


def test_the_snapshot_of_a_dirty_checkout_is_byte_for_byte_its_code(source: Path, home: Home) -> None:
    clean = snapshot.take(home)
    assert json.loads((home.snapshots / clean / "SNAPSHOT.json").read_text())["dirty"] is False
    (source / "lmcore/model.py").write_bytes(b"WIDTH = 16\r\n# \xc3\xa9, no newline at the end")
    (source / "sweeps/extra").mkdir()
    (source / "sweeps/extra/untracked.py").write_text("NEW = True\n")
    (source / "lmcore/library/kernels.py").write_text("FAST = True\n")
    dirty = snapshot.take(home)
    assert dirty != clean
    assert code_in(home.snapshots / dirty) == code_in(source)
    assert {"sweeps/extra/untracked.py", "lmcore/library/kernels.py"} < set(code_in(source))
    told = json.loads((home.snapshots / dirty / "SNAPSHOT.json").read_text())
    assert (told["code_hash"], told["dirty"]) == (dirty, True)
    assert "+WIDTH = 16" in told["git_diff"]
    assert code_in(home.snapshots / clean)["lmcore/model.py"] == b"WIDTH = 8\n", "an earlier one stays as it was"


def test_a_damaged_snapshot_is_mended_by_the_next_call(source: Path, home: Home) -> None:
    """A file that is gone would be imported from an installed package, an empty one does nothing without a word."""
    folder = home.snapshots / snapshot.take(home)
    whole = code_in(folder)
    shutil.rmtree(folder / "lmcore")
    for name, content in (("sweeps/worker.py", b""), ("results/schema.sql", b"CREATE TA")):
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    (folder / "SNAPSHOT.json").unlink()
    assert home.snapshots / snapshot.take(home) == folder
    assert code_in(folder) == whole == code_in(source)
    assert json.loads((folder / "SNAPSHOT.json").read_text())["code_hash"] == folder.name


@pytest.mark.parametrize("changed", ["lmcore/model.py", "sweeps/untracked.py", "lmcore/library/kernels.py"])
def test_trees_that_differ_have_different_hashes_and_a_tree_has_one(source: Path, home: Home, changed: str) -> None:
    hashes = [snapshot.take(home)]
    for text in ("A = 1\n", "A = 2\n"):
        (source / changed).write_text(text)
        hashes.append(snapshot.take(home))
    assert len(set(hashes)) == 3
    assert {path.name for path in home.snapshots.iterdir()} == set(hashes)
    (source / changed).write_text("A = 1\n")
    assert snapshot.take(home) == hashes[1]
    commit((source / changed).parent)
    assert snapshot.take(home) == hashes[1], "to commit changes no code"


def test_a_moved_module_is_other_code(source: Path, home: Home) -> None:
    before = snapshot.take(home)
    (source / "lmcore/model.py").rename(source / "lmcore/models.py")
    assert snapshot.take(home) != before


def test_what_no_run_executes_changes_nothing(source: Path, home: Home) -> None:
    before = snapshot.take(home)
    for stray in ("notes.ipynb", "analysis/notebook.ipynb", "scratch.py", "lmcore/notes.ipynb", "lmcore/.hidden.swp"):
        (source / stray).write_text("{}")
    (source / "lmcore/__pycache__").mkdir()
    (source / "lmcore/__pycache__/model.py").write_text("stale = True\n")
    (source / "analysis/plot.py").write_text("COLOUR = 'blue'\n")
    assert snapshot.take(home) == before
    assert [path.name for path in home.snapshots.iterdir()] == [before]
