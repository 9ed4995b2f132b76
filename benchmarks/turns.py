"""
Turns: sides that are compared run in the same worker processes, one after the other, a short while each.

All workers wait at a barrier before and after every turn, so that no side runs beside another one, and none while
somebody prepares. Before the first turn each side had a turn that does not count: connections are open then, and
statements prepared. The order of the sides changes from round to round.
"""

from __future__ import annotations

import multiprocessing
import queue
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any, Final, Protocol

_BARRIER_TIMEOUT_S: Final = 300
_POLL_S: Final = 1.0
_MARGIN: Final = 1.5
_WARM_STEPS: Final = 40


class Side(Protocol):
    """One who takes turns, in one worker process."""

    def prepare(self, steps: int) -> Iterator[int]:
        """Make ready at least so many steps. Each ``next`` takes one and says for how many units it counts."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Opener(Protocol):
    """Opens a side in a worker process; must be importable there."""

    def __call__(self, url: str) -> Side:
        """Open the side on its database."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A side before it is opened."""

    name: str
    opener: Opener
    url: str


@dataclass(frozen=True, slots=True)
class Turns:
    """How many rounds, how long a turn takes, and how many processes take each turn at the same time."""

    rounds: int
    seconds: float
    writers: int


def take_turns(entries: Sequence[Entry], turns: Turns) -> Mapping[str, Sequence[float]]:
    """Give for each side its units per second, all workers together, round by round."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.cases"])
    barrier = context.Barrier(turns.writers)
    results: Any = context.Queue()
    workers = [
        context.Process(target=_work, args=(tuple(entries), turns, barrier, results), daemon=True)
        for _ in range(turns.writers)
    ]
    for worker in workers:
        worker.start()
    rates = {entry.name: [0.0] * turns.rounds for entry in entries}
    try:
        for _ in range(turns.writers * turns.rounds * len(entries)):
            name, round_, rate = _next_result(results, workers)
            rates[name][round_] += rate
    finally:
        barrier.abort()
        for worker in workers:
            worker.join()
    return rates


def _next_result(results: Any, workers: Sequence[Any]) -> tuple[str, int, float]:  # noqa: ANN401 - a context's queue
    while True:
        try:
            result: tuple[str, int, float] = results.get(timeout=_POLL_S)
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                raise RuntimeError("a worker of the bench failed; its error is above") from None
        else:
            return result


def _work(entries: Sequence[Entry], turns: Turns, barrier: Barrier, results: Any) -> None:  # noqa: ANN401 - the same
    try:
        sides = {entry.name: entry.opener(entry.url) for entry in entries}
        speed = dict.fromkeys(sides, 0.0)
        for round_ in range(-1, turns.rounds):
            for number in range(len(entries)):
                name = entries[(round_ + number) % len(entries)].name
                steps = sides[name].prepare(_WARM_STEPS + int(speed[name] * turns.seconds * _MARGIN))
                barrier.wait(_BARRIER_TIMEOUT_S)
                rate, speed[name] = one_turn(steps, turns.seconds)
                barrier.wait(_BARRIER_TIMEOUT_S)
                if round_ >= 0:
                    results.put((name, round_, rate))
        for side in sides.values():
            side.close()
        results.close()
        results.join_thread()
    except BaseException:
        if barrier.broken:
            # Another worker failed and has said why.
            sys.exit(1)
        barrier.abort()
        raise


def one_turn(steps: Iterator[int], seconds: float) -> tuple[float, float]:
    """Take steps until the time is over, or all are taken; units and steps per second."""
    units = taken = 0
    started = now = time.perf_counter()
    for counted in steps:
        units += counted
        taken += 1
        now = time.perf_counter()
        if now - started >= seconds:
            break
    return units / (now - started), taken / (now - started)
