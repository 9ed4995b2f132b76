"""
Reaction: from the call that asks a Run to stop to the moment at which its process has the signal.

The process is a real one, in a group of its own, and says itself when the signal came; the clock is that of the
machine, the same for both. The worker is a supervisor as users start it, with all its duties. Between two requests lies
a random time, so that one who looks now and then is met at any moment of his pause.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.figures import Figure
from benchmarks.ledger_sides import ACTOR, open_ledger
from runfacts.domain.answers import Claimed, Recorded
from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT

CASE: Final = "request to TERM"
INTERVAL_MS: Final = 250
"""How often a supervisor looks that nobody wakes: the shortest there is."""
_PATIENCE_S: Final = 30
_TARGET: Final = """
import os, signal, time

def received(*_):
    os.write(1, b"%d\\n" % time.monotonic_ns())
    os._exit(0)

signal.signal(signal.SIGTERM, received)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def in_one_process(url: str, samples: int) -> Iterator[Figure]:
    """Measure with the supervisor in a thread of the process that asks."""
    begun = threading.Event()
    with open_ledger(url) as ledger, ledger.supervise(on_cycle=lambda _: begun.set()):
        if not begun.wait(_PATIENCE_S):
            raise TimeoutError("a supervisor of the bench did not begin")
        yield _figure(f"{ledger.database.dialect}, one process", _times(ledger, samples))


def in_two_processes(url: str, samples: int) -> Iterator[Figure]:
    """Measure with the supervisor in a process of its own: woken on PostgreSQL, looking by itself on SQLite."""
    with _supervisor(url), open_ledger(url) as ledger:
        where = "postgresql, two processes"
        if ledger.database.dialect == "sqlite":
            where = f"sqlite, two processes, a look each {INTERVAL_MS} ms"
        yield _figure(where, _times(ledger, samples))


def _figure(where: str, times: list[float]) -> Figure:
    return Figure.of(CASE, where, "ledger", "ms", times)


def _times(ledger: Ledger, samples: int) -> list[float]:
    found = []
    for _ in range(samples):
        # At the next moment of somebody's pause, and not in the middle of the last delivery.
        time.sleep(random.uniform(0, INTERVAL_MS / 1_000))  # noqa: S311 - no secret
        found.append(_one_time_ms(ledger))
    return found


def _one_time_ms(ledger: Ledger) -> float:
    machine = ledger.machine()
    run_id = ledger.create(actor=ACTOR, task="bench").run.run_id
    ledger.queue(run_id, actor=ACTOR)
    claimed = ledger.claim(run_id, actor=ACTOR, executor_type=EXECUTOR_TYPE, scope=machine.scope)
    if not isinstance(claimed, Claimed):
        raise TypeError(f"claimed is {claimed}")
    claim = claimed.claim
    ledger.start(claim, actor=ACTOR)
    target = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TARGET],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {COOKIE_ATTEMPT: claim.attempt_id},
    )
    with target:
        try:
            _line(target)
            handle = ProcessHandle.of(target.pid, machine).encode()
            running = ledger.running(claim, actor=ACTOR, handle=handle, pid=target.pid)
            if not isinstance(running, Recorded):
                raise TypeError(f"running is {running}")
            asked_ns = time.monotonic_ns()
            ledger.request_cancellation(run_id, actor=ACTOR)
            received_ns = int(_line(target))
        finally:
            target.kill()
    ledger.finish(claim, Outcome.succeeded(), actor=ACTOR)
    return (received_ns - asked_ns) / 1e6


def _line(target: subprocess.Popen[bytes]) -> bytes:
    if target.stdout is None:
        raise RuntimeError("a process of the bench has no pipe")
    line = target.stdout.readline()
    if not line:
        raise RuntimeError("a process of the bench ended without a word")
    return line


@contextmanager
def _supervisor(url: str) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_supervise, args=(url, theirs), daemon=True)
    worker.start()
    theirs.close()
    try:
        # It says that it has begun; where it failed, the pipe ends.
        ours.recv()
        yield
    finally:
        ours.close()
        worker.join(_PATIENCE_S)
        worker.kill()
        worker.join()


def _supervise(url: str, pipe: Any) -> None:  # noqa: ANN401 - a context's pipe
    begun = threading.Event()
    with open_ledger(url) as ledger:
        interval_ms = INTERVAL_MS if ledger.database.dialect == "sqlite" else None
        with ledger.supervise(interval_ms=interval_ms, on_cycle=lambda _: begun.set()):
            if begun.wait(_PATIENCE_S):
                pipe.send(None)
                # Until the other end is closed.
                pipe.poll(None)
