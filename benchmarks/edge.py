"""
A small machine: one slow core and 128 MiB.

Where this process may make a control group with limits of its own for processor and memory (cgroup v2), the ledger
runs in one: half a core, 128 MiB, no swap. Elsewhere it runs as near to that as a process can be brought by itself:
pinned to one processor that a second process keeps busy, so that half of it is left, and with no more than 128 MiB of
data. The report says which of the two it was.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import ledger_sides
from benchmarks.figures import Figure
from benchmarks.turns import Side, one_turn

_MEMORY: Final = 128 << 20
_GROUPS: Final = Path("/sys/fs/cgroup")
_SIDES: Final = (("one-fact command", "commits/s", ledger_sides.one_fact), ("whole life", "runs/s", ledger_sides.lives))
_GROUP: Final = "edge: a control group (v2) with half a core and 128 MiB"
_NEAREST: Final = (
    "edge: no control group (v2) could be made here; one processor shared with a process that keeps it busy,"
    " and at most 128 MiB of data"
)
_WARM_STEPS: Final = 40
_STEPS_PER_SECOND: Final = 20_000


def measure(url: str, rounds: int, seconds: float) -> tuple[Sequence[Figure], Sequence[str]]:
    """Run the ledger on a small machine; its figures, and how small the machine was."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with _group() as group:
        worker = context.Process(target=_work, args=(url, rounds, seconds, group, sender), daemon=True)
        worker.start()
        sender.close()
        burner = None if group is not None else context.Process(target=_burn, daemon=True)
        try:
            if burner is not None:
                burner.start()
            rates, peak_kib = receiver.recv()
            worker.join()
        finally:
            for process in (worker, burner):
                if process is not None:
                    process.kill()
                    process.join()
    figures = [
        Figure.of(case, "sqlite, disk, edge", "ledger", unit, values)
        for (case, unit, _), values in zip(_SIDES, rates, strict=True)
    ]
    figures.append(Figure.of("peak memory", "sqlite, disk, edge", "ledger", "MiB", [peak_kib / 1_024]))
    return figures, [_NEAREST if group is None else _GROUP]


@contextmanager
def _group() -> Iterator[Path | None]:
    """Give a control group with the limits, or None where none can be made."""
    path = _GROUPS / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
    try:
        controllers = (path / "cgroup.subtree_control").read_text().split()
    except OSError:
        controllers = []
    if not {"cpu", "memory"} <= set(controllers) or not os.access(path, os.W_OK):
        yield None
        return
    group = path / f"runfacts-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.max").write_text("50000 100000")
        (group / "memory.max").write_text(str(_MEMORY))
        (group / "memory.swap.max").write_text("0")
        yield group
    finally:
        group.rmdir()


def _work(url: str, rounds: int, seconds: float, group: Path | None, sender: Any) -> None:  # noqa: ANN401 - a pipe
    if group is not None:
        (group / "cgroup.procs").write_text(str(os.getpid()))
    else:
        _pin()
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    rates = [_rates(opener(url), rounds, seconds) for _, _, opener in _SIDES]
    status = Path("/proc/self/status").read_text().splitlines()
    sender.send((rates, next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))))


def _rates(side: Side, rounds: int, seconds: float) -> list[float]:
    for _ in side.prepare(_WARM_STEPS):
        pass
    found = [one_turn(side.prepare(int(seconds * _STEPS_PER_SECOND)), seconds)[0] for _ in range(rounds)]
    side.close()
    return found


def _pin() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _burn() -> None:
    _pin()
    parent = os.getppid()
    while os.getppid() == parent:
        pass
