"""A run of several processes of which one hangs: the others wait for it in a collective, and in rank 0 no signal
handler runs meanwhile, for Python runs them in the main thread. A thread notices, so that a stop is heard all the same.

A slow step, evaluation or save is no hang. Only this is: nothing in the whole tree of processes computes, waits for a
core or for a disk. Where that cannot be seen (no /proc), and where the one that hangs is busy, the patience of the
collectives ends the run (`lmcore.parallel`).
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from sweeps.signals import REASONS

log = logging.getLogger("lab")

HUNG_AFTER_S = 8.0  # of idleness while a stop is asked for
LOOK_EVERY_S = 0.5
SLACK_S, SHARE = 0.05, 0.02  # CPU time, and its share of a core, that beats and waiting itself may take
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

StopAsked = Callable[[], str | None]
Leave = Callable[[str], None]


class Usage(NamedTuple):
    """Of a tree of processes: CPU seconds so far, and whether one of them is about to compute or waits for a disk."""

    cpu_s: float
    at_work: bool


@contextlib.contextmanager
def watched(stop_asked: StopAsked, leave: Leave) -> Iterator[None]:
    """Within this, `leave(reason)` is called, in a thread, when there is a reason to stop and the processes hang.

    `stop_asked` is the reason that files or the clock give, or None; signals are seen here as well.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(told, over, stop_asked, leave), daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(-1)
        over.set()
        watch.join()
        os.close(told)
        os.close(tell)


def _watch(told: int, over: threading.Event, stop_asked: StopAsked, leave: Leave) -> None:
    signalled: str | None = None
    idle = Idle()
    while not over.is_set():
        if select.select([told], [], [], LOOK_EVERY_S)[0]:
            came = os.read(told, 4096)  # a byte per signal
            signalled = signalled or next((why for number, why in REASONS.items() if number in came), None)
        asked: str | None = None
        with contextlib.suppress(OSError):  # a file that cannot be read now is read at the next look
            asked = signalled or stop_asked()
        if asked is None:
            idle = Idle()
        elif idle.look(usage(os.getpid())) >= HUNG_AFTER_S and not over.is_set():
            leave(asked)
            return


class Idle:
    """How long nothing has been done, by looks at the usage."""

    def __init__(self) -> None:
        self.seconds, self.looked, self.cpu_s = 0.0, time.monotonic(), 0.0

    def look(self, now: Usage | None) -> float:
        """Seconds without work up to now. Two looks far apart, as after a suspension, count as two that are not."""
        gap, self.looked = time.monotonic() - self.looked, time.monotonic()
        self.seconds += min(gap, 2 * LOOK_EVERY_S)
        if now is None or now.at_work or abs(now.cpu_s - self.cpu_s) > SLACK_S + SHARE * self.seconds:
            self.seconds, self.cpu_s = 0.0, now.cpu_s if now else 0.0
        return self.seconds


def usage(root: int) -> Usage | None:
    """Of `root` and all that descends from it, compilers for example; None where there is no /proc."""
    parents, ticks, states = dict[int, int](), dict[int, int](), dict[int, str]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text(errors="replace").rpartition(")")[2].split()  # from field 3, the state, on
            pid = int(path.parent.name)
            states[pid], parents[pid] = fields[0], int(fields[4 - 3])
            ticks[pid] = sum(map(int, fields[14 - 3 : 18 - 3]))  # its own and that of ended children, user and system
    if root not in parents:
        return None
    tree = [pid for pid in parents if _descends(pid, root, parents)]
    return Usage(sum(ticks[pid] for pid in tree) / TICKS_PER_S, any(states[pid] in "RD" for pid in tree))


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root and pid in parents:
        pid = parents[pid]
    return pid == root
