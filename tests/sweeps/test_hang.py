"""What counts as a hang while a run is to stop: real processes that wait, compute, compile or are suspended."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sweeps import hang
from sweeps.signals import REASONS

HUNG_AFTER_S = 1.5


@contextmanager
def child(code: str) -> Iterator[int]:
    """A process below this one."""
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        time.sleep(0.5)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def left(asked: str | None, wait_s: float, signalled: signal.Signals | None = None) -> list[str]:
    """The reasons with which the watch has ended a run that does nothing for so long."""
    found = list[str]()
    gone = threading.Event()

    def leave(reason: str) -> None:
        found.append(reason)
        gone.set()

    with hang.watched(lambda: asked, leave):
        if signalled:
            os.kill(os.getpid(), signalled)
        gone.wait(wait_s)
    return found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A short patience, and signals that end nothing here."""
    monkeypatch.setattr(hang, "HUNG_AFTER_S", HUNG_AFTER_S)
    before = {number: signal.signal(number, lambda *_: None) for number in REASONS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nothing_is_ended_while_nobody_asks() -> None:
    assert left(None, 3 * HUNG_AFTER_S) == []


@pytest.mark.parametrize("word", ["cancelled", "time_limit"])
def test_a_run_that_waits_for_itself_ends_when_asked(word: str) -> None:
    with child("import signal; signal.pause()"):
        assert left(word, 30) == [word]


@pytest.mark.parametrize(("number", "word"), [*REASONS.items()])
def test_a_signal_is_seen_in_the_thread(number: signal.Signals, word: str) -> None:
    assert left(None, 30, number) == [word]


def test_a_suspended_process_is_a_hang() -> None:
    with child("while True: pass") as pid:
        os.kill(pid, signal.SIGSTOP)
        assert left("cancelled", 30) == ["cancelled"]


def test_whoever_computes_is_waited_for_even_below_a_child() -> None:
    with child("import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"):
        assert left("cancelled", 3 * HUNG_AFTER_S) == []


def test_a_request_that_is_withdrawn_ends_nothing() -> None:
    answers = iter(["cancelled", "cancelled"])
    found = list[str]()
    with hang.watched(lambda: next(answers, None), found.append):
        time.sleep(3 * HUNG_AFTER_S)
    assert found == []


def test_a_file_that_cannot_be_read_is_asked_again() -> None:
    refusals = iter([OSError("stale file handle")] * 2)

    def asked() -> str:
        if error := next(refusals, None):
            raise error
        return "cancelled"

    gone = threading.Event()
    with hang.watched(asked, lambda reason: gone.set()):
        assert gone.wait(30)


def test_a_gap_between_two_looks_is_no_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, still = hang.Idle(), hang.Usage(0.0, False)
    idle.looked -= 1000
    assert idle.look(still) == 2 * hang.LOOK_EVERY_S


def test_what_cannot_be_seen_is_no_hang() -> None:
    idle = hang.Idle()
    idle.looked -= 1000
    assert idle.look(None) == 0
