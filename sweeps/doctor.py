"""Whether this machine can do its work: one line per thing that has gone wrong for somebody, and what to do."""

import contextlib
import errno
import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from results.home import Home
from sweeps import slurm

Level = Literal["ok", "warn", "fail"]
LEAST_FREE_BYTES = 1 << 30
MOST_SKEW_S = 5.0


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, how it is, what was seen, and what to do unless it is ok."""

    check: str
    level: Level
    seen: str
    remedy: str = ""


def examine(home: Home) -> list[Finding]:
    """Every check, in order; a check that breaks is a finding, too."""
    found: list[Finding] = []
    for check in (_python, _torch, _devices, _slurm, _file_system, _write, _space, _clock):
        try:
            found += check(home)
        except Exception as error:
            name = check.__name__.lstrip("_")
            found.append(Finding(name, "fail", f"{type(error).__name__}: {error}", "this check itself failed"))
    return found


def _python(home: Home) -> Iterator[Finding]:
    version = platform.python_version()
    fine = sys.version_info >= (3, 11)
    yield Finding(
        "python", "ok" if fine else "fail", f"{version} at {sys.executable}", "" if fine else "use 3.11 or newer"
    )


def _torch(home: Home) -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        yield Finding("torch", "fail", f"{type(error).__name__}: {error}", "install the project again (`make env`)")
        return
    yield Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")


def _devices(home: Home) -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        torch.zeros(8, device="cuda").sum().item()
        yield Finding("devices", "ok", ", ".join(names))
    elif shutil.which("nvidia-smi"):
        yield Finding("devices", "warn", "an NVIDIA driver, but torch sees no GPU", "install a torch built for CUDA")
    else:
        yield Finding("devices", "ok", f"no GPU, {os.cpu_count()} CPUs")


def _slurm(home: Home) -> Iterator[Finding]:
    if not slurm.available():
        yield Finding("slurm", "ok", "no sbatch here: --cluster slurm is not possible from this machine")
        return
    # The commands alone may come with a package; a cluster is meant to be here only where it is configured.
    silent: Level = "fail" if any(map(Path.exists, _configurations())) else "warn"
    for name, arguments in (("squeue", ["--noheader", "--me"]), ("scontrol", ["show", "config"])):
        if slurm.ask(name, *arguments, quiet=True) is None:
            needed = f"--cluster slurm needs `{name} {' '.join(arguments)}` to work here"
            yield Finding(name, silent, "does not answer", needed)
        else:
            yield Finding(name, "ok", "answers")
    accounting = slurm.ask("sacct", "-X", "--noheader", quiet=True) is not None
    remedy = "" if accounting else "without it jobs that ended are known only as long as the controller remembers them"
    yield Finding("sacct", "ok" if accounting else "warn", "answers" if accounting else "does not answer", remedy)


def _configurations() -> list[Path]:
    told = [os.environ["SLURM_CONF"]] if os.environ.get("SLURM_CONF") else []
    return [Path(path) for path in (*told, "/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")]


def _file_system(home: Home) -> Iterator[Finding]:
    kind, mount = _mounted(home.path)
    remedy = "jobs on other nodes cannot see it" if slurm.available() and kind in ("tmpfs", "overlay") else ""
    yield Finding(
        "home", "warn" if remedy else "ok", f"{home.path} on {kind or 'an unknown file system'} ({mount})", remedy
    )


def _mounted(path: Path) -> tuple[str, str]:
    """(kind, mount point) of the file system that holds `path`, from /proc/mounts."""
    best = ("", "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, *_ = line.split()
            mount = mount.encode().decode("unicode_escape")
            inside = path == Path(mount) or Path(mount) in path.parents
            if inside and len(mount) >= len(best[1]):
                best = (kind, mount)
    return best


def _write(home: Home) -> Iterator[Finding]:
    """What the record relies on, tried in a folder of its own that is removed again."""
    try:
        home.ensure()
        place = home.path / f".doctor-{uuid.uuid4().hex[:8]}"
        place.mkdir()
    except OSError as error:
        yield Finding("write", "fail", str(error), "set LAB_HOME to a folder that you may write to")
        return
    try:
        for name, action in ACTIONS.items():
            yield _tried(name, action, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _tried(name: str, action: Callable[[Path], None], place: Path) -> Finding:
    try:
        action(place)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return Finding(name, "fail", str(error), "make room" if full else "put LAB_HOME on another file system")
    except AssertionError as error:
        return Finding(name, "fail", str(error), "put LAB_HOME on another file system")
    return Finding(name, "ok", "works")


def _rename_replaces(place: Path) -> None:
    (place / "old").write_text("old")
    (place / "new").write_text("new")
    (place / "new").replace(place / "old")
    assert (place / "old").read_text() == "new", "a rename does not replace"


def _rename_is_exclusive(place: Path) -> None:
    for name in ("a", "b"):
        (place / name).mkdir()
        (place / name / "owner").write_text(name)
    try:
        (place / "a").rename(place / "b")
    except OSError as error:
        assert error.errno in (errno.ENOTEMPTY, errno.EEXIST), str(error)
        return
    raise AssertionError("a folder can be renamed onto another that is not empty: claims are not safe")


def _sync(place: Path) -> None:
    with (place / "synced").open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


ACTIONS: dict[str, Callable[[Path], None]] = {
    "rename": _rename_replaces,
    "claim": _rename_is_exclusive,
    "fsync": _sync,
}


def _space(home: Home) -> Iterator[Finding]:
    if not home.path.is_dir():
        return  # said already
    free = shutil.disk_usage(home.path).free
    files = os.statvfs(home.path)
    enough = free >= LEAST_FREE_BYTES
    yield Finding("space", "ok" if enough else "warn", f"{free:,} bytes free", "" if enough else "make room")
    if files.f_files and files.f_favail < 10_000:
        yield Finding("inodes", "warn", f"{files.f_favail:,} files can still be made", "remove old runs")


def _clock(home: Home) -> Iterator[Finding]:
    """The file system's clock against this machine's: a shared one has a clock of its own."""
    if not home.path.is_dir():
        return  # said already
    probe = home.path / f".clock-{uuid.uuid4().hex[:8]}"
    try:
        before = time.time()
        probe.write_text("")
        skew = probe.stat().st_mtime - (before + time.time()) / 2
    except OSError as error:
        yield Finding("clock", "warn", str(error), "could not be compared")
        return
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    fine = abs(skew) <= MOST_SKEW_S
    remedy = "" if fine else "set the clocks (NTP): times in the record would be off; no state depends on them"
    yield Finding("clock", "ok" if fine else "warn", f"{skew:+.1f} s against the file system", remedy)
