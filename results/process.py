"""Who claims, and whether the claimant still lives."""

import getpass
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.shapes import count

LARGEST_PID = 2**31 - 1  # of any system


def claim_identity(pid: int | None = None) -> dict[str, Any]:
    """host, pid, pid_start (clock ticks since boot, None off Linux) and user: of this process, or of another here."""
    pid = pid or os.getpid()
    status = _process_status(pid)
    return {"host": socket.gethostname(), "pid": pid, "pid_start": status[1] if status else None, "user": user()}


def process_alive(claim: Mapping[str, Any]) -> bool | None:
    """Whether the claiming process runs on this host; None if that cannot be known from here.

    A pid that now belongs to another process (other start time) and a zombie both count as gone.
    """
    pid = count(claim.get("pid"))
    if claim.get("host") != socket.gethostname() or not pid or pid > LARGEST_PID:
        return None
    if claim.get("pid_start") is None:
        return _answers(pid)
    status = _process_status(pid)
    return status is not None and status[0] not in "ZX" and status[1] == claim["pid_start"]


def _process_status(pid: int) -> tuple[str, int] | None:
    """(state letter, start time) of a process, from /proc; None if it is gone or there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and brackets, so count fields from its last bracket: state is field 3.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[22 - 3])


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def user() -> str:
    """Who runs this process; the number where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run a uid that has no name
        return str(os.getuid())
