"""One holder at a time, without flock: numbered folders, where the highest number holds the lock."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from results.files import BadFile, claim_folder, now, numbered, read_json
from results.process import claim_identity, process_alive

_RELEASED, _OWNER = "released", "owner.json"
_POLL_S = 0.05
_ASK_EVERY_S = 5.0
_let_go: set[str] = set()  # claims of this process, which may not have been able to release them on the disk


class Busy(RuntimeError):
    """Somebody else holds the lock and is not provably dead."""


@contextlib.contextmanager
def exclusive(
    folder: Path,
    wait_s: float,
    what: str,
    about: Mapping[str, Any] | None = None,
    gone: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Iterator[Path]:
    """Hold the lock on `what` (for messages) and yield a private work folder, which the next holder deletes.

    A holder that is provably dead is succeeded at once. Of one on another host `gone` may know, from what the holder
    said `about` itself; it is asked rarely. Numbers only grow, so whoever decided to succeed number N can
    take N + 1 or nothing, never a lock that changed hands meanwhile. Raises Busy after `wait_s` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    asked = time.monotonic() - _ASK_EVERY_S
    while (held := _try_to_hold(folder, about or {})) is None:
        if gone and time.monotonic() - asked > _ASK_EVERY_S:
            asked = time.monotonic()
            _release_if(folder, gone)
        if time.monotonic() > deadline:
            raise Busy(_explain(folder, wait_s, what))
        time.sleep(_POLL_S)
    try:
        yield held
    finally:
        _release(held)


def _release(held: Path) -> None:
    _let_go.add(_owner(held).get("owner", ""))
    try:
        (held / _RELEASED).touch()
    except OSError:  # a full disk: a rename needs no space. If it fails, too, our death will tell the others.
        with contextlib.suppress(OSError):
            (held / _OWNER).rename(held / _RELEASED)


def _release_if(folder: Path, gone: Callable[[Mapping[str, Any]], bool]) -> None:
    """Release on behalf of a holder that is gone. The number is its own, so that nobody else's lock is opened."""
    holder = _path(folder, max(numbered(folder), default=0))
    if (owner := _owner(holder)) and gone(owner):
        with contextlib.suppress(FileNotFoundError):  # it has been succeeded meanwhile
            (holder / _RELEASED).touch()


def _try_to_hold(folder: Path, about: Mapping[str, Any]) -> Path | None:
    last = max(numbered(folder), default=0)
    if last and not _is_free(_path(folder, last)):
        return None
    mine = _path(folder, last + 1)
    if not claim_folder(mine, _OWNER, {**claim_identity(), **about, "since": now()}):
        return None
    # A listing taken while folders come and go may have missed a higher number.
    others = [number for number in numbered(folder) if number != last + 1]
    if max(others, default=0) > last + 1:
        shutil.rmtree(mine, ignore_errors=True)
        return None
    for number in others:
        shutil.rmtree(_path(folder, number), ignore_errors=True)
    return mine


def _is_free(holder: Path) -> bool:
    if (holder / _RELEASED).exists():
        return True
    owner = _owner(holder)
    return owner.get("owner") in _let_go or process_alive(owner) is False


def _owner(holder: Path) -> dict[str, Any]:
    try:
        return read_json(holder / _OWNER) or {}
    except BadFile:
        return {}


def _explain(folder: Path, wait_s: float, what: str) -> str:
    holder = _path(folder, max(numbered(folder), default=0))
    owner = _owner(holder)
    return (
        f"another {what} is running: pid {owner.get('pid')} on {owner.get('host')} since {owner.get('since')} "
        f"(waited {wait_s:g} s). If you know that it is gone, delete {holder}"
    )


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}"
