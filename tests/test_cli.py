"""The commands as a person meets them: the whole path, and one clear line for whatever is wrong."""

import json
import os
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from results.home import Home
from tests.user import User


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "home")


def test_from_a_question_to_a_report(user: User, sweep_file: Path) -> None:
    """A sweep file outside the project: plan, runs, table, report; the second call starts nothing."""
    first = user.lab("sweep", str(sweep_file), "--yes", "-j", "2")
    assert "Is a wider model better?" in first.stdout
    assert "validation loss" in first.stdout
    assert "verdict: " in first.stdout
    page = user.home / "reports" / "width" / "short" / "index.html"
    assert "Is a wider model better?" in page.read_text()
    assert (page.parent / "figures" / "final.png").read_bytes().startswith(b"\x89PNG")
    assert user.states("width") == ["DONE"] * 4
    assert set(user.attempts().values()) == {1}

    stamps = {path: path.stat().st_mtime_ns for path in (user.home / "runs").rglob("*")}
    again = user.lab("sweep", str(sweep_file), "--yes")
    assert "nothing to start" in again.stderr
    assert stamps == {path: path.stat().st_mtime_ns for path in (user.home / "runs").rglob("*")}

    _look_at_everything(user)


def _look_beyond_the_training_length(user: User) -> None:
    rows = user.json("lengths", "width", "--context", "48", "--scaling", "yarn", "--scaling", "none")
    assert [(row["arm"], row["scaling"], row["runs"]) for row in rows] == [
        (arm, scaling, 2) for arm in ("relu", "swiglu") for scaling in ("none", "yarn")
    ]
    stored = user.json(
        "sql",
        "SELECT arm, scaling, sum(l.loss * (stop - start)) FILTER (start >= 16) / 32 / 2 AS beyond "
        "FROM lengths l JOIN plan_runs USING (run_id) GROUP BY ALL ORDER BY ALL",
    )
    assert [row["beyond"] for row in stored] == pytest.approx([row["beyond"] for row in rows])
    assert any("lengths" in path for path in user.json("report", "width")["images"])
    assert "16 tokens are not more than the 16" in user.lab("lengths", "width", "--context", "16", code=1).stderr
    assert "too few for one sequence of 99999" in user.lab("lengths", "width", "--context", "99999", code=1).stderr
    assert "not one of none, linear" in user.lab("lengths", "width", "--context", "48", "--scaling", "x", code=2).stderr


def _look_at_everything(user: User) -> None:
    """Every command that reads, on a finished sweep."""
    status = user.json("status", "width")
    assert status["counts"] == {"DONE": 4}
    assert {"run_id", "arm", "seed", "state", "step", "steps"} <= set(status["runs"][0])
    assert "relu" in user.lab("status", "width@short").stdout
    run = status["runs"][0]["run_id"]
    shown = user.json("show", run[:6])
    assert shown["done"]["step"] == 30
    assert shown["attempts"][0]["exit"]["reason"] == "done"
    assert shown["attempts"][0]["start"]["env"]["threads"] == 1
    seen = user.lab("show", run).stdout
    assert f"run {run}: relu seed 0 of width@short\n" in seen and "DONE at step 30\n" in seen
    assert f"validation loss {shown['done']['val_loss']:.4f}, perplexity" in seen
    assert "model, where not default: d_model 16, n_layer 1, n_head 2, context 16, " in seen
    assert re.search(r"│ +1 │ .* │ +0 │ .* │ done +│", seen), "its attempt"
    assert "done at step 30" in user.lab("logs", run).stdout
    assert len(user.json("runs")) == 4
    again = [user.json("generate", run, "--prompt", "7 times", "--prompt", "8", "--tokens", "12") for _ in range(2)]
    assert again[0] == again[1]
    assert [row["prompt"] for row in again[0]] == ["7 times", "8"]
    assert "cannot continue" in user.lab("generate", run, "--prompt", "", code=1).stderr
    assert "top_k" in user.lab("generate", run, "--prompt", "7", "--top-k", "0", code=1).stderr
    costs = user.json("decode", "width", "--batch", "2", "--prompt", "4", "--tokens", "4")
    assert [row["arm"] for row in costs] == ["relu", "swiglu"]
    stored = user.json("sql", "SELECT run_id, cache_bytes, cache_bytes_counted FROM decode ORDER BY run_id")
    assert [row["run_id"] for row in stored] == sorted(row["run_id"] for row in costs)
    assert all(row["cache_bytes"] == row["cache_bytes_counted"] for row in stored)
    assert any("decode" in path for path in user.json("report", "width")["images"])
    _look_beyond_the_training_length(user)
    per_run = user.json("sql", "SELECT run_id, count(*) AS n, count(DISTINCT step) AS steps FROM train GROUP BY 1")
    assert [(row["n"], row["steps"]) for row in per_run] == [(30, 30)] * 4
    planned_is_logged = user.json(
        "sql",
        "SELECT r.train_flops AS planned, max(t.flops) AS logged FROM runs r JOIN train t USING (run_id) GROUP BY ALL",
    )
    assert all(row["planned"] == row["logged"] for row in planned_is_logged)
    reached = user.json("flops", "--peak")["peak"]
    assert {"device", "threads", "flops_per_s", "bytes_per_s", "runs"} == set(reached)
    assert {run["run_id"] for run in reached["runs"]} == {run["run_id"] for run in status["runs"]}
    assert all(0 < run["mfu"] < 2 for run in reached["runs"])  # 2: a busy machine may be slower while it is measured
    _ask_for_verdicts(user)
    assert user.json("ingest")["rows_new"] == 0
    assert user.json("ingest", "--rebuild")["rows_new"] > 0
    out = user.home / "elsewhere"
    assert json.loads(user.lab("report", "width", "--out", str(out), "--json").stdout)["html"] == str(
        out / "index.html"
    )


def _ask_for_verdicts(user: User) -> None:
    """Of the sweep, of the sweep against itself, of a table of its losses."""
    verdict = user.json("verdict", "width")
    assert verdict["baseline"] == "relu"
    keys = {"arm", "verdict", "reason", "effect", "ci_low", "ci_high", "p_holm", "n", "diverged"}
    assert [arm["arm"] for arm in verdict["arms"]] == ["swiglu"] and keys <= set(verdict["arms"][0])
    assert verdict["arms"][0]["verdict"] in user.lab("verdict", "width").stdout
    assert {"code", "level", "reason", "remedy"} == set(user.json("lint", "width")["warnings"][0])
    assert "few_seeds" in user.lab("lint", "width").stdout
    compared = user.json("compare", "width", "width")
    assert compared["baseline"] == "A:relu" and len(compared["arms"]) == 1
    assert "B:relu is the same runs as A:relu" in user.lab("compare", "width", "width").stdout
    rows = user.json("sql", "SELECT arm, p.seed, val_loss FROM plan_runs p JOIN runs USING (run_id)")
    table = user.home / "losses.csv"
    table.write_text("arm,seed,loss\n" + "".join(f"{r['arm']},{r['seed']},{r['val_loss']}\n" for r in rows))
    options = ("--arm", "arm", "--value", "loss", "--baseline", "relu", "--seed", "seed")
    told = user.json("verdict", str(table), *options)["arms"][0]
    assert told["effect"] == pytest.approx(verdict["arms"][0]["effect"])
    assert told["ci_low"] == pytest.approx(verdict["arms"][0]["ci_low"])
    assert "swiglu" in user.lab("verdict", str(table), *options, "--sd", "0.01", "--sd-df", "inf").stdout
    for kind, name in (("md", "appendix.md"), ("latex", "appendix.tex")):
        assert user.json("report", "width", "--format", kind)[kind].endswith(name)


def test_an_exported_run_has_the_same_loss_in_transformers(user: User, sweep_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    user.lab("sweep", str(sweep_file), "--yes", "--seeds", "1", "--set", "train.steps=5")
    rows = user.json("sql", "SELECT run_id, val_loss FROM runs JOIN plan_runs USING (run_id) WHERE arm = 'swiglu'")
    done = user.json("export", rows[0]["run_id"], "--hf", str(tmp_path / "exported"))
    assert done["family"] == "llama"
    assert done["val_loss"] == pytest.approx(rows[0]["val_loss"], abs=1e-5)
    assert done["val_loss_there"] == pytest.approx(done["val_loss"], abs=1e-5)
    assert (tmp_path / "exported" / "model.safetensors").exists()
    assert not list((tmp_path / "exported").glob("*.bin"))


def test_dry_run_shows_the_whole_plan_and_starts_nothing(user: User, sweep_file: Path) -> None:
    plan = user.json("sweep", str(sweep_file), "--dry-run")
    assert len(plan["runs"]) == 4
    assert set(plan["runs"][0]) >= {
        "run_id",
        "group_id",
        "arm",
        "seed",
        "params",
        "params_non_embedding",
        "match_residual",
        "flops_per_token",
        "train_flops",
        "tokens",
    }
    assert set(plan["totals"]) >= {"runs", "tokens", "train_flops", "disk_bytes", "estimated_s"}
    assert not list((user.home / "runs").iterdir())
    assert not list((user.home / "sweeps").iterdir())
    text = user.lab("sweep", str(sweep_file), "--dry-run").stdout
    for word in ("arm", "match", "FLOPs", "tokens", "of disk", "swiglu"):
        assert word in text


def test_seeds_sets_and_scales_reach_the_plan(user: User, sweep_file: Path) -> None:
    plan = user.json(
        "sweep", str(sweep_file), "--dry-run", "--seeds", "3", "--set", "train.lr=3e-3", "--scale", "medium"
    )
    assert len(plan["runs"]) == 6
    assert plan["overrides"] == {"train.lr": 0.003}
    assert plan["runs"][0]["steps"] == 600
    same = user.json(
        "sweep", str(sweep_file), "--dry-run", "--seeds", "3", "--set", "train.lr=0.003", "--scale", "medium"
    )
    assert same["plan_id"] == plan["plan_id"]


def test_json_of_a_sweep_that_runs_is_one_object(user: User, sweep_file: Path) -> None:
    answer = user.json("sweep", str(sweep_file), "--yes", "--seeds", "1", "--set", "train.steps=5")
    assert answer["counts"] == {"DONE": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "ffn_ablatoin"], "did you mean 'ffn_ablation'"),
        (["sweep", "ffn_ablation", "--scale", "huge"], "laptop"),
        (["sweep", "ffn_ablation", "--set", "train.lrr=1"], "did you mean 'train.lr'"),
        (["sweep", "ffn_ablation", "--set", "train.lr=fast"], "valid number"),
        (["sweep", "ffn_ablation", "--set", "train.lr=1", "--set", "train.lr=2"], "given twice"),
        (["sweep", "ffn_ablation", "--scale", "smoke", "--set", "model.n_head=5"], "not divisible"),
        (["sweep", "ffn_ablation", "--set", "data.path=/no/such/file"], "cannot read /no/such/file"),
        (["sweep", "ffn_ablation", "--set", "model.ffn=relu"], "what the arms vary"),
        (["sweep", "ffn_ablation", "--cluster", "moon"], "local, slurm"),
        (["sweep", "ffn_ablation", "--scale", "smoke", "--slurm", "partition"], "key=value"),
        (["sweep", "nowhere/sweep.py"], "no sweep file"),
        (["sweep", "ffn_ablation", "--set", "data.max_chars=3"], "too little text"),
        (["sweep", "ffn_ablation", "--set", "data.max_chars=1000"], "too few for one sequence"),
        (["sweep", "ffn_ablation", "--slurm", "time=3"], "goes with --cluster slurm"),
        (["sweep", "ffn_ablation", "--set", "seed=99999999999999999999"], "less than"),
        (["sweep", "ffn_ablation", "--set", "data.fingerprint=abc"], "cannot be set"),
        (["sweep", ""], "name a sweep"),
        (["sql", ""], "no query"),
        (["flops", "gpt2", "--scale", "smoke"], "goes with an experiment"),
        (["sql", "SELECT 1 AS a, 2 AS a"], "share a name"),
        (["status", "ffn_ablation"], "nothing was swept yet"),
        (["report", "ffn_ablation"], "no sweep 'ffn_ablation'"),
        (["verdict", "ffn_ablation"], "no sweep 'ffn_ablation'"),
        (["verdict", "ffn_ablation", "--sd", "1"], "go together"),
        (["verdict", "t.csv"], "needs --arm COLUMN"),
        (["verdict", "t.csv", "--arm", "a", "--value", "v", "--baseline", "b"], "t.csv"),
        (["lint", "ffn_ablation"], "no sweep 'ffn_ablation'"),
        (["compare", "ffn_ablation", "kv_ablation"], "no sweep 'ffn_ablation'"),
        (["show", "abcdef"], "no such run"),
        (["logs", "abcdef"], "no such run"),
        (["cancel", "ffn_ablation"], "nothing was swept yet"),
        (["sql", "SELECT * FROM nothing"], "nothing"),
        (["sql", "DROP TABLE runs"], "read-only"),
        (["flops", "gpt5"], "did you mean 'gpt2'"),
        (["flops", "--set", "model.d_model=30"], "not divisible by n_head"),
    ],
)
def test_whatever_is_wrong_is_said_in_one_clear_line(arguments: list[str], words: str, user: User) -> None:
    Home(user.home).ensure()
    done = user.lab(*arguments, code=1)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ") or "\nerror: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8"),
        (b"a\0b" * 9, "NUL"),
        (b"too short", "too little text"),
    ],
)
def test_bad_text_files(content: bytes, words: str, user: User, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    done = user.lab("sweep", "ffn_ablation", "--scale", "smoke", "--yes", "--set", f"data.path={path}", code=1)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pipe_is_no_text(user: User, tmp_path: Path) -> None:
    """Nobody may wait for its writer."""
    os.mkfifo(tmp_path / "pipe")
    change = f"data.path={tmp_path / 'pipe'}"
    done = user.lab("sweep", "ffn_ablation", "--scale", "smoke", "--yes", "--set", change, code=1, timeout=60)
    assert "not a regular file" in done.stderr


def test_a_folder_in_the_place_of_the_database_is_named(user: User, sweep_file: Path) -> None:
    user.lab("sweep", str(sweep_file), "--yes", "--no-report", "--seeds", "1", "--set", "train.steps=3")
    (user.home / "lab.duckdb").mkdir()
    done = user.lab("ingest", code=1)
    assert str(user.home / "lab.duckdb") in done.stderr
    assert "move it away" in done.stderr


def test_a_sweep_file_with_a_bad_name(user: User, tmp_path: Path, sweep_file: Path) -> None:
    odd = tmp_path / "my sweep; rm.py"
    odd.write_text(sweep_file.read_text())
    done = user.lab("sweep", str(odd), "--yes", code=1)
    assert "bad name" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_cannot_be_written(tmp_path: Path, sweep_file: Path) -> None:
    (tmp_path / "file").write_text("")
    done = User(tmp_path / "file").lab("sweep", str(sweep_file), "--yes", code=1)
    assert str(tmp_path / "file") in done.stderr
    assert "LAB_HOME" in done.stderr
    assert "Traceback" not in done.stderr


def test_slurm_without_sbatch_is_one_clear_line(tmp_path: Path, sweep_file: Path) -> None:
    user = User(tmp_path / "home", {"PATH": "/nonexistent"})
    done = user.lab("sweep", str(sweep_file), "--cluster", "slurm", "--yes", code=1)
    assert "needs `sbatch` on the PATH" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_under_json_is_one_json_object(user: User) -> None:
    done = user.lab("status", "nothing", "--json", code=1)
    assert "nothing was swept yet" in json.loads(done.stdout)["error"]


def test_an_intent_without_a_job_does_not_block_local_runs(tmp_path: Path, sweep_file: Path) -> None:
    empty = tmp_path / "slurm.conf"
    empty.touch()  # for a file that is not there SLURM's commands look a whole minute
    user = User(tmp_path / "home", {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(empty)})
    user.lab("sweep", str(sweep_file), "--yes", "--seeds", "1", "--set", "train.steps=3")
    plan = next((user.home / "sweeps" / "width").iterdir())
    (plan / "submissions").mkdir()
    (plan / "submissions" / "lab-1.json").write_text('{"uuid": "lab-1", "tasks": "2"}')
    for done in user.home.glob("runs/*/DONE.json"):
        done.unlink()
        (done.parent / "attempts" / "0001" / "exit.json").unlink()
    user.lab("sweep", str(sweep_file), "--yes", "--seeds", "1", "--set", "train.steps=3")
    assert user.states("width") == ["DONE"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_home_that_may_only_be_read_can_be_read(user: User, sweep_file: Path, tmp_path: Path) -> None:
    user.lab("sweep", str(sweep_file), "--yes", "--seeds", "1", "--set", "train.steps=3")
    place = tmp_path / "mounted"
    place.mkdir()
    subprocess.run(["mount", "--bind", str(user.home), str(place)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        guest = User(place)
        assert guest.states("width") == ["DONE"] * 2
        assert len(guest.json("runs")) == 2
        assert guest.json("sql", "SELECT count(*) AS n FROM train") == [{"n": 6}]
        assert "not writable" in guest.lab("sweep", str(sweep_file), "--yes", code=1).stderr
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_wrong_usage_is_exit_code_2(user: User) -> None:
    assert "Missing argument" in user.lab("sweep", code=2).stderr
    assert "nonsense" in user.lab("nonsense", code=2).stderr
    assert "--nonsense" in user.lab("sweep", "ffn_ablation", "--nonsense", code=2).stderr


def test_flops_of_a_known_model_of_an_experiment_and_of_ones_own(user: User) -> None:
    gpt2 = user.json("flops", "gpt2", "--context", "1024")
    assert gpt2["params"]["total"] == 124439808
    assert gpt2["params"]["total"] == sum(gpt2["params"]["by_group"].values())
    assert gpt2["forward_flops_per_token"]["causal"] == 265956864
    assert gpt2["kv_bytes_per_token"] == 36864
    arms = user.json("flops", "ffn_ablation", "--scale", "smoke")["models"]
    assert set(arms) == {"relu", "gelu", "silu", "swiglu", "geglu"}
    own = user.json("flops", "--set", "model.d_model=64", "--set", "model.vocab=100")
    assert own["params"]["by_group"]["embedding"] == 6400
    assert own["kv_bytes"] == own["context"] * own["kv_bytes_per_token"]
    pictures = ("--plots", str(user.home / "pictures"), "--peak-flops", "1e12", "--bandwidth", "1e11", "--batch", "2")
    drawn = user.json("flops", "gpt2", *pictures)
    assert [Path(path).name for path in drawn["images"]] == [
        *("shares_gpt2.png", "shares_gpt2.svg", "roofline.png", "roofline.svg")
    ]
    assert all(Path(path).stat().st_size > 1000 for path in drawn["images"])
    assert drawn["memory_bytes"]["logits"] == 2 * 1024 * 50257 * 4
    assert re.search(r"parameters: total\s*│\s*124,439,808", user.lab("flops", "gpt2").stdout)


def test_help_is_quick_and_light(user: User) -> None:
    """0.4 s on a quiet machine; measured in CPU time here, because tests share the machine."""
    before = os.times()
    text = user.lab("--help").stdout
    after = os.times()
    assert "sweep" in text
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    assert spent < 0.4


def test_it_tells_its_version(user: User) -> None:
    assert user.lab("--version").stdout == f"lab {version('lab')}\n"


def test_every_command_has_help(user: User) -> None:
    listed = re.findall(r"^  (\w+) ", user.lab("--help").stdout.partition("Commands:")[2], re.MULTILINE)
    assert {"sweep", "status", "runs", "show", "logs", "cancel", "ingest", "sql", "report", "flops"} <= set(listed)
    for command in listed:
        assert "Usage:" in user.lab(command, "--help").stdout
