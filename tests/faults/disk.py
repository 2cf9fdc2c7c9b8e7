"""A disk that fails at the n-th operation, and commands that meet it: see `disk.c` and `forks.py`."""

import json
import os
import shutil
import subprocess
import sys
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def shim(folder: Path) -> Path:
    """Compile disk.c into `folder`; skips the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        raise unittest.SkipTest("needs Linux and a C compiler")
    library = folder / "disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "disk.c", "-ldl"], check=True)
    return library


def slow(library: Path, folder: Path, ms: int) -> dict[str, str]:
    """The environment of a process to which every operation below `folder` takes so long."""
    return {"LD_PRELOAD": str(library), "FAULT_PREFIX": str(folder), "FAULT_DELAY_US": str(1000 * ms)}


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, what it said, operations on the disk, and the one that failed ("" if none)."""

    rc: int
    out: str
    err: str
    count: int
    what: str


class Disk:
    """Commands below one folder, whose operations are counted and may fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {"LD_PRELOAD": str(shim(folder)), "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forks"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE.parents[1],
        )
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def lab(
        self,
        home: Path,
        *arguments: str,
        at: int = 0,
        code: int = 0,
        sticky: bool = False,
        idle: bool = False,
    ) -> Ended:
        """Run a command. From operation `at` below `home` on, or with it alone, the disk says `code`.

        `idle`: workers end before they do anything.
        """
        streams = {name: str(self.folder / name) for name in ("out", "err")}
        request: dict[str, Any] = {"arguments": arguments, "home": str(home), "prefix": str(home), "idle": idle}
        request |= {"at": at, "code": code, "sticky": int(sticky)} | streams
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self._line())
        return Ended(out=Path(streams["out"]).read_text(), err=Path(streams["err"]).read_text(), **answer)

    def close(self) -> None:
        self.process.communicate()
