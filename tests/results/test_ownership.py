"""Which attempt's row counts, against a model that simply forgets what lies after the point of resume."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from results import query
from results.home import Home
from results.ingest import content_hash, ingest
from tests.results.helpers import eval_row, must_claim, new_run, run_id, telemetry_rows, train_row, without_fsync

Timeline = dict[int, float]


@dataclass(frozen=True)
class Life:
    """One attempt: how far back it resumes, how many steps it then makes, whether it gets to start at all."""

    rewind: int
    steps: int
    starts: bool


lives = st.builds(Life, st.integers(0, 12), st.integers(0, 9), st.integers(0, 9).map(bool))
histories = st.lists(st.lists(lives, max_size=6), min_size=1, max_size=6)


def live(home: Home, number: int, history: list[Life], every: int) -> tuple[Timeline, Timeline, Timeline]:
    """Write the files of one run, and tell what its rows must be: train, evaluation, telemetry of each layer."""
    run = new_run(home, number)
    train: Timeline = {}
    evals: Timeline = {}
    seen: Timeline = {}
    reached = 0
    for index, life in enumerate(history):
        attempt = must_claim(run)
        if not life.starts:
            continue
        resume = max(0, reached - life.rewind)
        attempt.start(resume, {})
        train = {step: loss for step, loss in train.items() if step <= resume}
        evals = {step: loss for step, loss in evals.items() if step <= resume and (step or resume)}
        seen = {step: value for step, value in seen.items() if step <= resume}
        if resume == 0:
            attempt.eval_row(eval_row(0, loss=float(index)))
            evals[0] = float(index)
        for step in range(resume + 1, resume + life.steps + 1):
            attempt.train_row(train_row(step, loss=index + step / 1000))
            train[step] = index + step / 1000
            if step % every == 0:
                attempt.eval_row(eval_row(step, loss=float(index)))
                evals[step] = float(index)
                attempt.telemetry_rows(telemetry_rows(step, value=float(index)))
                seen[step] = float(index)
        reached = resume + life.steps
        attempt.close()
    return train, evals, seen


@settings(max_examples=15, deadline=None)
@given(histories=histories, every=st.integers(1, 4), ingest_between=st.booleans())
def test_every_step_exactly_once_over_any_history(
    histories: list[list[Life]], every: int, ingest_between: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder, without_fsync():
        home = Home(folder)
        expected = {}
        for number, history in enumerate(histories):
            expected[run_id(number)] = live(home, number, history, every)
            if ingest_between and number == 0:
                ingest(home)
        ingest(home)
        for index, view in enumerate(("train", "evals")):
            found = query.rows(home, f"SELECT run_id, step, loss FROM {view} ORDER BY ALL")
            wanted = [
                {"run_id": name, "step": step, "loss": loss}
                for name, timelines in expected.items()
                for step, loss in sorted(timelines[index].items())
            ]
            assert found == wanted
        found = query.rows(home, "SELECT run_id, step, layer, value FROM telemetry ORDER BY ALL")
        assert found == [
            {"run_id": name, "step": step, "layer": layer, "value": value}
            for name, timelines in expected.items()
            for step, value in sorted(timelines[2].items())
            for layer in (0, 1)
        ]
        incremental = content_hash(home)
        ingest(home, rebuild=True)
        assert content_hash(home) == incremental


def test_rows_of_a_zombie_beyond_its_share_do_not_count(tmp_path: Path) -> None:
    home = Home(tmp_path)
    run = new_run(home)
    zombie, alive = must_claim(run), must_claim(run)
    zombie.start(0, {})
    alive.start(2, {})
    for step in range(1, 6):
        zombie.train_row(train_row(step, loss=1.0))
        if step > 2:
            alive.train_row(train_row(step, loss=2.0))
    ingest(home)
    zombie.train_row(train_row(6, loss=1.0))
    ingest(home)
    found = query.rows(home, "SELECT step, loss FROM train ORDER BY step")
    assert [(row["step"], row["loss"]) for row in found] == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    zombie.close()
    alive.close()
