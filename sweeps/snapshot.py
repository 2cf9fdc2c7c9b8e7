"""A read-only copy of the source that runs execute, uncommitted and untracked files included.

Queued jobs run the copy, so editing the source while they wait changes nothing. Only the rooms that a run executes
are copied: a changed plot does not make two runs different code.
"""

import errno
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from results.files import naming_full_disk, now, write_bytes, write_json
from results.home import Home

ROOMS = ("lmcore", "results", "sweeps")
SUFFIXES = (".py", ".sql")
SOURCE = Path(__file__).parent.parent


def take(home: Home) -> str:
    """Copy the source to `snapshots/<code_hash>` unless it is there, and mend what is there; returns the hash."""
    sources = {str(path.relative_to(SOURCE)): path.read_bytes() for path in _files()}  # read once: hash and copy agree
    code_hash = _hash(sources)
    folder = home.snapshots / code_hash
    if folder.exists():
        _mend(sources, folder, code_hash)
    else:
        _copy(sources, folder, code_hash)
    return code_hash


def _files() -> list[Path]:
    found = (path for room in ROOMS for path in (SOURCE / room).rglob("*") if path.suffix in SUFFIXES)
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _hash(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sources.items():
        digest.update(f"{name}\0".encode() + hashlib.sha256(content).digest())
    return digest.hexdigest()[:12]


def _copy(sources: Mapping[str, bytes], folder: Path, code_hash: str) -> None:
    """Into a private folder, then one rename: nobody ever sees half a snapshot."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix=".taking-", dir=folder.parent))
    try:
        private.chmod(0o755)
        with naming_full_disk(folder, sum(map(len, sources.values()))):
            for name, content in sources.items():
                copy = private / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
                copy.chmod(0o444)
            _describe(private, code_hash)
            private.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody else took the same snapshot a moment ago
            raise
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _mend(sources: Mapping[str, bytes], folder: Path, code_hash: str) -> None:
    """Write again what was deleted or damaged since: a missing room would be taken from an installed package."""
    for name, content in sources.items():
        copy = folder / name
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(copy, content)
            copy.chmod(0o444)
    if not (folder / "SNAPSHOT.json").exists():
        _describe(folder, code_hash)


def _describe(folder: Path, code_hash: str) -> None:
    write_json(folder / "SNAPSHOT.json", {"code_hash": code_hash, "created_at": now()} | git_state())


def git_state() -> dict[str, Any]:
    """Commit and uncommitted diff of the rooms; nulls outside a git checkout."""
    ours = _git("ls-files", "--error-unmatch", "lmcore/config.py")  # not of a repository that we were installed into
    sha = _git("rev-parse", "HEAD") if ours else None
    if sha is None:
        return {"git_sha": None, "dirty": None, "git_diff": None}
    status = _git("status", "--porcelain", "--", *ROOMS) or ""
    return {"git_sha": sha.strip(), "dirty": bool(status.strip()), "git_diff": _git("diff", "HEAD", "--", *ROOMS)}


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(SOURCE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None  # no git, no checkout, or no commit yet: provenance is the snapshot itself
