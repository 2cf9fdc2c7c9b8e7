"""The controller process: answers the commands over a socket in its folder and lets time pass. Standard library only.

`python -IS controller.py FOLDER`. It says "up" on stdout when it answers.
"""

import contextlib
import json
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fake_slurm.commands import COMMANDS, Refused
from tests.fake_slurm.simulator import SETTINGS, Simulator

TICK_S = 0.05
CONTROLS = ("preempt", "fail_node", "hold", "hold_job", "kill")


def answer(simulator: Simulator, request: dict[str, Any]) -> dict[str, Any]:
    """What a command gets back: exit code, stdout, stderr, and seconds to wait before saying so."""
    name = request["name"]
    if name == "control":
        return {"rc": 0, "out": json.dumps(control(simulator, request["args"])), "err": "", "wait": 0}
    lie = simulator.settings["lies"].get(name, {})
    mode = lie.get("mode")
    if mode in ("empty", "garbage", "fail"):
        out = {"empty": "", "garbage": "slurm_load: \x00?? 7\n", "fail": ""}[mode]
        return {"rc": int(mode == "fail"), "out": out, "err": lie.get("say", "") if mode == "fail" else "", "wait": 0}
    try:
        out, err, rc = COMMANDS[name](simulator, request), "", 0
    except Refused as refusal:
        out, err, rc = "", f"{refusal}\n", 1
    return {"rc": rc, "out": out, "err": err, "wait": lie.get("seconds", 0) if mode == "slow" else 0}


def control(simulator: Simulator, order: dict[str, Any]) -> Any:
    """Orders of a test: settings, and what happens to jobs."""
    unknown = set(order.get("set", {})) - set(SETTINGS)
    assert not unknown, unknown
    simulator.settings |= order.get("set", {})
    for task_id in order.get("preempt", []):
        for task in simulator.find(task_id):
            simulator.preempt(task, order.get("grace", 30.0), order.get("warn", False))
    for task_id in order.get("hold", []):
        for task in simulator.find(task_id):
            simulator.hold(task, order["reason"])
    if order.get("fail_node"):
        simulator.fail_node(order["fail_node"])
    simulator.changed = True
    waiting = sum(len(job.waiting) for job in simulator.jobs.values())
    tasks = [{"id": t.id, "state": t.state, "node": t.node, "reason": t.reason, "restarts": t.restarts,
              "running": bool(t.pid)} for t in simulator.tasks()]  # fmt: skip
    return {"tasks": tasks, "waiting": waiting, "most_running": simulator.most_running}


def hear(simulator: Simulator, stream: TextIO) -> None:
    """One request. Of a command that was killed before it had said anything, nothing comes."""
    if not (line := stream.readline()):
        return
    reply = answer(simulator, json.loads(line))
    if simulator.changed:
        simulator.save()  # what was promised survives a kill
    stream.write(json.dumps(reply) + "\n")
    stream.flush()


def serve(folder: Path) -> None:
    simulator = Simulator(folder)
    path = folder / "socket"
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    print("up", flush=True)
    ticked = 0.0
    while True:
        if selector.select(TICK_S):
            connection, _ = server.accept()
            with contextlib.suppress(ConnectionError), connection, connection.makefile("rw") as stream:
                hear(simulator, stream)
        if time.monotonic() - ticked >= TICK_S:
            simulator.tick()
            ticked = time.monotonic()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
