"""Names that would like to be paths, SQL, HTML or markup, and files that would like to be code."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.user import User

NAMES = [
    "../../escape",
    "/etc/passwd",
    'it\'s "quoted"; DROP TABLE runs; --',
    "é 漢字 😀",
    "<script>alert(1)</script>",
    "[red]markup[/red] ${HOME} $(id) `id`",
    "x" * 100,
]
SWEEP = """
from lmcore.config import RunConfig, replace
from sweeps.spec import Sweep

def sweep():
    return Sweep(
        question="<b>Does</b> a 'name' \\" break it?",
        base=replace(RunConfig(), {"data.path": %(text)r, "data.tokenizer": "byte", "model.d_model": 16,
            "model.n_layer": 1, "model.n_head": 2, "model.context": 16, "train.batch": 4, "train.steps": 6,
            "train.eval_every": 3, "train.eval_sequences": 8, "train.checkpoint_every": 3}),
        arms={name: {"train.lr": 1e-3 * (i + 1)} for i, name in enumerate(%(names)r)},
        baseline=%(names)r[0],
        seeds=1,
    )
"""


class Payload:
    """What a pickle can do."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


def vouch_for_a_pickle(checkpoint: Path, blob: str, target: Path) -> None:
    """A pickle in place of a file, and a manifest that says so: whoever can write the one can write the other."""
    bad, manifest = pickle.dumps(Payload(target)), checkpoint / "manifest.json"
    listed = json.loads(manifest.read_text())
    listed["files"][blob] = {"bytes": len(bad), "sha256": hashlib.sha256(bad).hexdigest()}
    (checkpoint / blob).write_bytes(bad)
    manifest.write_text(json.dumps(listed))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Somebody whose home, arms and question all have unusual names; the sweep is done."""
    place = tmp_path_factory.mktemp("names")
    text = place / "a text.txt"
    text.write_text(" ".join(f"{i} times {i % 9};" for i in range(1500)))
    (place / "names.py").write_text(SWEEP % {"text": str(text), "names": NAMES})
    someone = User(place / "home of 'mine' é")
    someone.lab("sweep", str(place / "names.py"), "--yes", "-j", "2")
    yield someone
    someone.kill_workers()


def test_names_stay_names_everywhere(user: User, tmp_path: Path) -> None:
    around = {path.name for path in user.home.parent.iterdir()}
    assert around == {user.home.name, "a text.txt", "names.py"}, "nothing was written outside the home"
    assert [run["arm"] for run in user.json("status", "names")["runs"]] == NAMES
    assert {row["arm"] for row in user.json("sql", "SELECT arm FROM plan_runs")} == set(NAMES)
    assert len(user.json("sql", "SELECT * FROM runs")) == len(NAMES)
    assert [arm["arm"] for arm in user.json("verdict", "names")["arms"]] == NAMES[1:]
    for command in ("status", "verdict", "lint", "failures"):
        user.lab(command, "names")
    page = Path(user.json("report", "names")["html"])
    text = page.read_text()
    assert "<script>alert" not in text
    assert "<b>Does" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert page.is_relative_to(user.home)
    for kind in ("md", "latex"):
        user.lab("report", "names", "--format", kind)
    exported = user.json("export", "names", "--tensorboard", str(tmp_path / "tb"))["tensorboard"]
    assert len(exported) == len(NAMES)
    assert all(Path(folder).parent == tmp_path / "tb" for folder in exported)


@pytest.mark.parametrize("name", ["../names", "a/b", "x" * 300, "", "two\nlines", "../../../etc/passwd"])
def test_a_name_that_is_no_run_or_sweep_is_said_to_be_none(user: User, name: str) -> None:
    for command in ("status", "show", "logs", "report", "cancel", "failures"):
        said = user.lab(command, name, code=None)
        assert said.returncode in (1, 2)
        assert "Traceback" not in said.stderr


@pytest.mark.parametrize("arm", ["two\nlines", "x" * 300, "", "bell\a"])
def test_an_arm_that_cannot_be_shown_is_refused(tmp_path: Path, arm: str) -> None:
    path = tmp_path / "names.py"
    path.write_text(SWEEP % {"text": str(path), "names": [arm, "other"]})
    said = User(tmp_path / "home").lab("sweep", str(path), "--dry-run", code=1)
    assert "error:" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("blob", ["model.safetensors", "optimizer.safetensors", "progress.json"])
def test_a_pickle_in_a_run_folder_is_refused_not_loaded(user: User, tmp_path: Path, blob: str) -> None:
    run_id = user.json("status", "names")["runs"][0]["run_id"]
    folder = user.home / "runs" / run_id
    newest = max((folder / "checkpoints").iterdir())
    manifest, before = newest / "manifest.json", (newest / blob).read_bytes()
    whole = manifest.read_text()
    try:
        vouch_for_a_pickle(newest, blob, tmp_path / "executed")
        said = user.lab("generate", run_id, "--prompt", "1 times", code=None)
        for command in (("ingest",), ("report", "names"), ("show", run_id), ("gc", "--dry-run")):
            user.lab(*command, code=None)
    finally:
        (newest / blob).write_bytes(before)
        manifest.write_text(whole)
    assert not (tmp_path / "executed").exists()
    if blob == "model.safetensors":
        assert said.returncode == 1
        assert "error:" in said.stderr
        assert "Traceback" not in said.stderr


@pytest.mark.slow
def test_a_run_does_not_go_on_from_a_pickle(user: User, tmp_path: Path) -> None:
    """It fails by name, whichever file it is; without that checkpoint it goes on from the one before."""
    other = User(Path(shutil.copytree(user.home, tmp_path / "home")))
    before = other.weights()
    blobs = ["model.safetensors", "optimizer.safetensors", "progress.json"]
    run_ids = [run["run_id"] for run in other.json("status", "names")["runs"]][: len(blobs)]
    newest = [max((other.home / "runs" / run_id / "checkpoints").iterdir()) for run_id in run_ids]
    for folder, blob in zip(newest, blobs, strict=True):
        vouch_for_a_pickle(folder, blob, tmp_path / "executed")
        (folder.parents[1] / "DONE.json").unlink()
        (folder.parents[1] / "attempts/0001/exit.json").unlink()
    command = ["sweep", str(user.home.parent / "names.py"), "--yes", "-j", "1"]
    other.lab(*command, code=1)
    assert other.states("names") == ["FAILED"] * 3 + ["DONE"] * (len(NAMES) - 3)
    errors = {run["run_id"]: run["detail"] for run in other.json("status", "names")["runs"]}
    for run_id, folder in zip(run_ids, newest, strict=True):
        assert f"{folder}: " in errors[run_id] and "delete it to go on" in errors[run_id]
        shutil.rmtree(folder)
    other.lab(*command, "--retry-failed")
    assert other.weights() == before
    assert not (tmp_path / "executed").exists()


CRASH = """
import os
import sweeps.budget

def crash(*_):
    key = os.environ["MY_API_KEY"] + "-and-more"
    raise RuntimeError("a fault of ours")

sweeps.budget.show_plan = crash
"""
RAISES = """
import os

def sweep():
    key = os.environ["MY_API_KEY"] + "-and-more"
    raise RuntimeError("a fault of yours")
"""


@pytest.mark.parametrize("fault", ["a fault of ours", "a fault of yours"])
def test_a_crash_prints_no_variables_and_no_environment(tmp_path: Path, fault: str) -> None:
    path, text, secret = tmp_path / "crashing.py", tmp_path / "text.txt", "sk-0123456789-very-secret"
    text.write_text("a text to train on; " * 500)
    ours = SWEEP % {"text": str(text), "names": ["a", "b"]} + CRASH
    path.write_text(ours if fault == "a fault of ours" else RAISES)
    user = User(tmp_path / "home", {"MY_API_KEY": secret})
    said = user.lab("sweep", str(path), "--dry-run", code=1)
    assert fault in said.stderr
    assert secret not in said.stdout + said.stderr


def test_the_source_unpickles_nothing() -> None:
    root = Path(__file__).resolve().parents[1]
    rooms = [
        root / "cli.py",
        *(p for r in ("lmcore", "results", "sweeps", "analysis") for p in (root / r).rglob("*.py")),
    ]
    words = ("import pickle", "cloudpickle", " torch.load(", "joblib", "yaml.load", "marshal")
    assert [f"{path.name}: {word}" for path in rooms for word in words if word in path.read_text()] == []
