"""Signals only set a flag; whoever trains looks at it between two steps."""

import ctypes
import os
import signal
import sys
from types import FrameType

REASONS = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "preempted",
    signal.SIGUSR2: "time_limit",  # SLURM's warning before the end of the job
}


class StopFlag:
    """The first stop signal; None until one comes."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def reason(self) -> str | None:
        """What the signal means for a run, in the words of exit.json."""
        return None if self.signal is None else REASONS[self.signal]

    def listen(self) -> "StopFlag":
        """Install the handlers in this process (and, by fork, in its children)."""
        for number in REASONS:
            signal.signal(number, self._set)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # closing the terminal ends nothing
        return self

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)


def die_with_parent(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Ask Linux to send this signal when process `parent` dies, so that no orphan trains on unseen."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, by)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), by)
