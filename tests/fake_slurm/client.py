"""One of the commands, by the name it is called under: asks the controller, prints, ends. Standard library only."""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any


def srun(arguments: list[str]) -> None:
    """Run the step here: in its own process group, which is where the controller sends signals."""
    place, output = Path(os.environ["FAKE_SLURM_PLACE"]), ""
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option == "--output":
            output = arguments.pop(0)
    words = {"%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID", "%j": "SLURM_JOB_ID"}
    for word, variable in words.items():
        output = output.replace(word, os.environ.get(variable, ""))
    if output:
        file = os.open(output.replace("%t", "0"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
    os.setpgid(0, 0)
    (place / f"step.{os.getpid()}").write_text(str(os.getpid()))
    os.environ.update(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        print(f"slurmstepd: error: execve(): {arguments[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


def ask(folder: Path, name: str, arguments: list[str]) -> int:
    with (folder / "calls.jsonl").open("a") as log:
        log.write(json.dumps({"at": time.time(), "name": name, "args": arguments}) + "\n")
    script = ""
    if name == "sbatch" and arguments and not arguments[-1].startswith("-"):
        script = Path(arguments[-1]).read_text()
    request: dict[str, Any] = {"name": name, "args": arguments, "cwd": str(Path.cwd()), "script": script}
    request |= {"env": dict(os.environ) if name == "sbatch" else {}}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(folder / "socket"))
            with connection.makefile("rw") as stream:
                stream.write(json.dumps(request) + "\n")
                stream.flush()
                reply = json.loads(stream.readline())
    except (OSError, ValueError):
        print(f"{name}: error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    time.sleep(reply["wait"])
    sys.stdout.write(reply["out"])
    sys.stderr.write(reply["err"])
    return int(reply["rc"])


if __name__ == "__main__":
    called = Path(sys.argv[1]).name
    if called == "srun":
        srun(sys.argv[2:])
    sys.exit(ask(Path(sys.argv[1]).parents[1], called, sys.argv[2:]))
