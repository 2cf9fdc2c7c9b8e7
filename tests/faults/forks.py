"""Runs many commands from one process that has imported everything: `python -m tests.faults.forks`, under disk.c.

A request is a JSON line on stdin: a command and the operation at which its disk fails. Each runs in a fork, where its
workers are forks, too; all share one count of operations.
"""

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import cli

shim = ctypes.CDLL(None)
shim.fault_what.restype = ctypes.c_char_p
ANSWERS = os.fdopen(os.dup(1), "w")


class Fork:
    """What `subprocess.Popen` is to `sweeps.launch_local`, for a worker whose modules are there already."""

    idle = False  # whether workers end before they do anything

    def __init__(self, command: Sequence[str], env: dict[str, str], stdout: Any, **_: Any) -> None:
        self.returncode: int | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # a real one would be heard after its start
        self.pid = os.fork()
        if not self.pid:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(env)
            sys.argv = ["worker", *command[command.index("sweeps.worker") + 1 :]]
            end(_quietly if self.idle else _work, stdout.fileno(), stdout.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def poll(self) -> int | None:
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _work() -> None:
    from sweeps import worker

    worker.main()


def _quietly() -> None:
    return


def end(action: Any, out: int, err: int) -> None:
    """Run `action` with these streams, as a whole process would, and end this one."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    code: Any = 0
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        action()
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork(request: dict[str, Any]) -> dict[str, Any]:
    """Run one command; its exit code, how many operations there were and which one failed."""
    Fork.idle = request["idle"]
    shim.fault_arm(request["prefix"].encode(), request["at"], request["code"], request["sticky"])
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["LAB_HOME"] = request["home"]
        sys.argv = ["lab", *request["arguments"]]
        streams = [os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")]
        end(cli.main, *streams)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"rc": code, "count": shim.fault_count(), "what": shim.fault_what().decode(errors="replace")}


def prepare() -> None:
    """Import what commands import late, start no thread, and let nobody sleep for long."""
    for name in ("analysis.report", "results.ingest", "sweeps.commands", "sweeps.worker"):
        importlib.import_module(name)
    from sweeps import launch_local, watch

    names = SimpleNamespace(Popen=Fork, DEVNULL=subprocess.DEVNULL)
    vars(launch_local)["subprocess"] = names  # its own alone: git is asked in the usual way
    watch.LOOK_EVERY_S = 0.05


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()
    print("ready", file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
