"""Contenders that take turns, each in a process of its own: nobody's caches, allocator or compiler serves another."""

import statistics
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

Step = Callable[[int], float]
Make = Callable[[], Step]  # picklable: called in the contender's process

SPAWN = get_context("spawn")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Absent(Exception):
    """A contender that is not installed; the message says how to get it."""


@dataclass(frozen=True)
class Timed:
    """Seconds of one contender's steps."""

    seconds: list[float]

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Contender:
    """A process that makes a step when it is its turn and sleeps otherwise. Raises Absent, or what making it raised."""

    def __init__(self, make: Make, threads: int, clock: str) -> None:
        self.pipe, other = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(other, make, threads, clock))
        self.process.start()
        other.close()
        self.answer()

    def turn(self, number: int) -> float:
        """Seconds of step `number`."""
        self.begin(number)
        return float(self.answer())

    def begin(self, number: int) -> None:
        """Have it make step `number`; `answer` waits for its seconds."""
        self.pipe.send(number)

    def answer(self) -> Any:
        found = self.pipe.recv()
        if isinstance(found, Exception):
            self.end()
            raise found
        return found

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


def _serve(pipe: Connection, make: Make, threads: int, clock: str) -> None:
    torch.set_num_threads(threads)
    try:
        step = make()
        pipe.send(None)
        while True:
            number = pipe.recv()
            began = CLOCKS[clock]()
            step(number)
            pipe.send(CLOCKS[clock]() - began)
    except EOFError:
        return
    except Absent as why:
        pipe.send(why)
    except Exception:
        pipe.send(RuntimeError(traceback.format_exc()))


def measure(makes: Mapping[str, Make], rounds: int, threads: int, clock: str) -> dict[str, Timed]:
    """Every contender once a round; the first two steps of each warm up and compile. Says who is left out, and why."""
    contenders: dict[str, Contender] = {}
    try:
        for name, make in makes.items():
            try:
                contenders[name] = Contender(make, threads, clock)
            except Absent as why:
                print(f"{name} is left out: {why}")
                continue
            began = time.perf_counter()
            contenders[name].turn(1)
            print(f"{name}: first step {time.perf_counter() - began:.1f} s", flush=True)
            contenders[name].turn(2)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds):
            for name, contender in contenders.items():
                seconds[name].append(contender.turn(number))
    finally:
        for contender in contenders.values():
            contender.end()
    return {name: Timed(taken) for name, taken in seconds.items()}
