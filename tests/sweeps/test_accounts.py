"""`lab flops` below the command: the account of a run, the device's peak, runs held against it."""

from pathlib import Path

import pytest
import torch

from lmcore import count
from lmcore.config import RunConfig, replace
from lmcore.peak import Peak, measure_peak
from lmcore.presets import PRESETS
from results.home import Home
from sweeps.accounts import account, accounts, runs_against
from sweeps.show_account import account_table, peak_lines


def test_the_parts_of_an_account_sum_to_its_totals() -> None:
    found = account(RunConfig(model=PRESETS["gemma-2-2b"]), 8192, 4)
    held = dict(found["memory_bytes"])
    assert held.pop("total") == sum(held.values())
    kept = found["activation_bytes_by_component"]
    assert sum(kept.values()) == held["activations"] + held["logits"]
    forward, backward = (sum(found[f"{way}_flops_per_token_by_component"].values()) for way in ("forward", "backward"))
    assert forward == found["forward_flops_per_token"]["causal"]
    assert forward + backward == found["train_flops_per_token"]
    assert found["kv_bytes"] == 654_311_424 < 8192 * found["kv_bytes_per_token"]
    assert (found["batch"], found["context"], found["precision"]) == (4, 8192, "float32")
    assert found["attention"] == "plain"  # a soft-cap cannot run fused


def test_training_settings_count() -> None:
    run = RunConfig(model=PRESETS["gpt2"])
    wide, half = account(run, batch=2), account(replace(run, {"train.precision": "bf16"}), batch=2)
    assert half["memory_bytes"]["activations"] < wide["memory_bytes"]["activations"]
    plain = account(replace(run, {"train.attention": "plain"}), batch=2)
    assert plain["memory_bytes"]["activations"] > 1.5 * wide["memory_bytes"]["activations"]
    assert account(run)["batch"] == run.train.batch


def test_an_experiments_arms_have_their_own_accounts(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.ensure()
    runs = accounts("kv_ablation", home, {}, "laptop")
    found = {arm: account(run) for arm, run in runs.items()}
    cache = {arm: a["kv_bytes"] / found["mha"]["kv_bytes"] for arm, a in found.items()}
    assert cache["gqa"] == cache["gqa + ffn"] == 0.5
    assert cache["mqa"] == cache["mqa + ffn"] == 0.25
    assert (cache["window"], cache["window 3:1"]) == (0.125, 0.34375)
    params = {arm: a["params"]["total"] / found["mha"]["params"]["total"] for arm, a in found.items()}
    assert params["mqa"] < params["gqa"] < 0.95
    assert [params[arm] for arm in ("gqa + ffn", "mqa + ffn", "window")] == pytest.approx([1, 1, 1], abs=0.005)
    assert len(account_table(found).columns) == 8


def test_the_peak_is_measured_in_a_second_and_leaves_threads_alone() -> None:
    before = torch.get_num_threads()
    peak = measure_peak("cpu")
    assert torch.get_num_threads() == before
    assert set(peak.flops_per_s) == {"float32", "bf16"}
    assert 1e8 < peak.flops_per_s["float32"] < 1e13
    assert 1e7 < peak.bytes_per_s < 1e13


def test_no_recorded_run_is_no_error(tmp_path: Path) -> None:
    peak = Peak("cpu", 1, {"float32": 2e9, "bf16": 1e9}, 1e9)
    assert runs_against(peak, Home(tmp_path)) == []
    answer = {"device": "cpu", "threads": 1, "flops_per_s": peak.flops_per_s, "bytes_per_s": 1e9, "runs": []}
    assert peak_lines(answer) == [
        "measured peak of cpu with 1 threads: 2GFLOP/s in float32, 1GFLOP/s in bf16; memory 1GB/s",
        "no finished run was trained on this device with that many threads",
    ]


def test_utilisation_is_told_per_arm() -> None:
    runs = [
        {"sweep": "s", "arm": "a", "precision": "float32", "mfu": count.mfu(1e6, speed, 1e10)} for speed in (1e3, 2e3)
    ]
    answer = {"device": "cpu", "threads": 2, "flops_per_s": {"float32": 1e10}, "bytes_per_s": 1e9, "runs": runs}
    assert peak_lines(answer)[1:] == ["MFU of s a in float32: 10.0% to 20.0% (2 runs)"]
