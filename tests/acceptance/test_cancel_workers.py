"""
R7, R8, R9: workers side by side, in one scope and in two, and processes whose number changes hands.

With real workers, real commands that note what they get, and on every database where that makes a difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from left_commands import ANA, LeavingHost
from namespaces import OWN_NAMESPACE
from process_watch import DEADLINE_S, Marked, wait_until
from real_time import RealTime
from runfacts import Actor, AlreadyRequested, Ledger
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.terms import DispatchNotClaimed
from runfacts.domain.payloads import RunCancelDispatched
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.supervision import Duty
from workers import ENVIRONMENT_PATH, PROGRAMS, Job, working

TOGETHER = 20
"""How many are stopped at the same time."""
TERM_ONLY = ["ready", "SIGTERM"]
MACHINE = "rack-7"
"""As it is configured where a machine's own id is not known in every namespace (R8.3)."""


def delivered_once(ledger: Ledger, run_id: str) -> None:
    """One delivery, by one claim, and nothing else happened to it."""
    told = [fact for fact in ledger.history(run_id) if fact.type.startswith("run.cancel_dispatch")]
    (delivered,) = [fact.payload for fact in told]
    assert isinstance(delivered, RunCancelDispatched), told
    assert (delivered.result, delivered.dispatch_count) == ("termination_requested", 1)


@pytest.mark.parametrize("rounds", [pytest.param(1), pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
def test_g1_of_two_workers_only_one_signals_each_process(
    databases: RealTime, tmp_path: Path, marked: Marked, rounds: int
) -> None:
    """G1."""
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url) as ledger, working(Job("one", url), Job("two", url)) as workers:
        host = LeavingHost(ledger, tmp_path)
        for worker in ("one", "two"):
            workers.owner(worker)
        for number in range(1, rounds + 1):
            commands = [host.leave() for _ in range(TOGETHER)]
            for command in commands:
                command.ask_to_stop(ledger)

            def ended(finished: int = TOGETHER * number) -> bool:
                delivered = workers.counted("one", "termination_requested")
                return delivered + workers.counted("two", "termination_requested") == finished

            wait_until(ended, "all of them are delivered")
            for command in commands:
                run_ends(ledger, command.run_id)
                assert [log.read_text().splitlines() for log in command.logs] == [TERM_ONLY]
                delivered_once(ledger, command.run_id)
        assert set(workers.end().values()) == {0}
        assert len(workers.sent("one") + workers.sent("two")) == TOGETHER * rounds
        assert ledger.verify().clean


def run_ends(ledger: Ledger, run_id: str, *, collecting: bool = True) -> None:
    """Wait until a Run is cancelled and its delivery settled; record receipts meanwhile, where nobody else does."""

    def ended() -> bool:
        if collecting:
            ledger.collect_receipts(actor=Actor.worker("collector"))
        run = ledger.run(run_id)
        assert run.cancellation is not None
        assert run.cancellation.dispatch is not None
        return (run.status, run.cancellation.dispatch.status) == ("cancelled", "dispatched")

    wait_until(ended, f"run {run_id} ends")


class Guest:
    """A worker of one scope, with commands of its own."""

    def __init__(self, url: str, root: Path, count: int, prefix: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, PROGRAMS / "scope_program.py", url, MACHINE, str(root), str(count)],
            env=os.environ | {"PYTHONPATH": ENVIRONMENT_PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: dict[str, Any] = {}

    @property
    def said(self) -> dict[str, Any]:
        """Wait until it has begun its commands, and give what it says of them."""
        assert self._process.stdout is not None
        if not self._said:
            self._said = json.loads(self._process.stdout.readline())
        return self._said

    def end(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("count", [pytest.param(10), pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "databases",
    ["sqlite", pytest.param("postgresql-16", marks=pytest.mark.long), "postgresql-18"],
    indirect=True,
)
@pytest.mark.timeout(600)
def test_workers_of_two_scopes_block_none_of_each_others_cancellations(
    databases: RealTime, tmp_path: Path, marked: Marked, count: int
) -> None:
    """C03."""
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url, machine_id=MACHINE) as ledger, ExitStack() as stack:
        guests = [Guest(url, tmp_path, count, prefix) for prefix in ((), OWN_NAMESPACE)]
        for guest in guests:
            stack.callback(guest.end)
        runs = [tuple(guest.said["runs"].items()) for guest in guests]
        assert guests[0].said["scope"] != guests[1].said["scope"]
        for pair in zip(*runs, strict=True):
            for run_id, _ in pair:
                ledger.request_cancellation(run_id, actor=ANA)
        for run_id, logs in (*runs[0], *runs[1]):
            run_ends(ledger, run_id, collecting=False)
            assert [Path(log).read_text().splitlines() for log in logs] == [TERM_ONLY]
            delivered_once(ledger, run_id)
        assert ledger.blocked().items == ()
        assert ledger.verify().clean


Forge = Callable[[ProcessHandle], tuple[str, int]]
"""Gives a handle and a process number as they are to be recorded, from the true handle."""


def altered(**changes: object) -> Forge:
    """Record a handle that differs from the truth."""
    return lambda true: (replace(true, **changes).encode(), true.pid)  # type: ignore[arg-type]  # by name


MISMATCHES: dict[str, tuple[str, Forge]] = {
    "another start": (
        "identity_mismatch",
        lambda true: (replace(true, start_ticks=true.start_ticks - 1).encode(), true.pid),
    ),
    "another process at the same tick": (
        "identity_mismatch",
        lambda true: (replace(true, pidfd_inode=(true.pidfd_inode or 0) + 1).encode(), true.pid),
    ),
    "another boot": ("identity_mismatch", altered(boot_id="00000000-0000-4000-8000-000000000000")),
    "another group": ("identity_mismatch", lambda true: (replace(true, group=true.group + 1).encode(), true.pid)),
    "another number": ("pid_mismatch", lambda true: (true.encode(), true.pid + 1)),
    "another machine": ("scope_mismatch", altered(machine_id="another")),
    "another PID namespace": ("scope_mismatch", altered(pid_namespace=4026532999)),
    "no handle that can be read": ("invalid", lambda true: ("{", true.pid)),
    "a handle of another release": ("unsupported", lambda true: (true.encode().replace('"v":1', '"v":2'), true.pid)),
}
FORGE = text("UPDATE executions SET handle = :handle, pid = :pid WHERE attempt_id = :attempt_id")


@pytest.mark.timeout(600)
def test_g8_on_no_mismatch_is_anything_sent(databases: RealTime, tmp_path: Path, marked: Marked) -> None:
    """G8."""
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url) as ledger:
        host = LeavingHost(ledger, tmp_path)
        commands = {what: host.leave("stays") for what in MISMATCHES}
        for what, command in commands.items():
            attempt_id = command.claim.attempt_id
            handle, pid = MISMATCHES[what][1](ProcessHandle.decode(ledger.execution(attempt_id).handle or ""))
            with ledger.database.engine.begin() as connection:
                connection.execute(FORGE, {"handle": handle, "pid": pid, "attempt_id": attempt_id})
            command.ask_to_stop(ledger)
        with working(Job("one", url)) as workers:
            expected = Counter(result for result, _ in MISMATCHES.values())

            def all_are_blocked() -> bool:
                return {result: workers.counted("one", result) for result in expected} == expected

            wait_until(all_are_blocked, "all of them are blocked")
            workers.next_cycle("one")
            assert workers.end() == {"one": 0}
            assert workers.all("sent") == []
            # Once blocked, nobody claims it any more (G6).
            assert sum(workers.counted("one", counter) for counter in ("seen", "claimed")) == 2 * len(MISMATCHES)
        for what, command in commands.items():
            assert command.signals() == [[], []], what
            (told,) = [fact for fact in ledger.history(command.run_id) if fact.type.startswith("run.cancel_dispatch")]
            assert told.payload.model_dump(exclude_none=True) == {
                "attempt_id": command.claim.attempt_id,
                "dispatch_count": 1,
                "result": MISMATCHES[what][0],
            }, what
            run = ledger.run(command.run_id)
            assert run.cancellation is not None
            assert run.cancellation.dispatch is not None
            assert (run.status, run.cancellation.dispatch.status) == ("running", "blocked"), what
        assert ledger.verify().clean


def with_its_number_reused(when: str, root: Path) -> dict[str, Any]:
    """Let a supervisor work while a number changes hands, and give what it says."""
    found = subprocess.run(
        [*OWN_NAMESPACE, sys.executable, PROGRAMS / "reuse_program.py", when, str(root)],
        env=os.environ | {"PYTHONPATH": ENVIRONMENT_PATH},
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    said: dict[str, Any] = json.loads(found.stdout)
    return said


def test_a_supervisor_never_signals_the_next_owner_of_a_number(tmp_path: Path) -> None:
    """C01."""
    assert with_its_number_reused("before", tmp_path) == {
        "same_number": True,
        "impostor": ["alive", "ready", "SIGUSR1"],
        "status": ["running", "blocked"],
        "delivered": [["run.cancel_dispatch_blocked", "identity_mismatch", 1]],
        "claims": [1, 0, 0],
        "clean": True,
    }


def test_a_supervisor_misses_a_number_that_changes_hands_between_proof_and_signal(tmp_path: Path) -> None:
    """C05."""
    assert with_its_number_reused("between", tmp_path) == {
        "same_number": True,
        "impostor": ["alive", "ready", "SIGUSR1"],
        "status": ["running", "dispatched"],
        "delivered": [["run.cancel_dispatched", "already_exited", 1]],
        "claims": [1, 0, 0],
        "clean": True,
    }


@pytest.mark.parametrize("databases", ["sqlite", "postgresql-18"], indirect=True)
def test_who_asks_again_while_a_worker_delivers_changes_nothing(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    """C25."""
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url) as ledger, working(Job("one", url, grace_ms=3_000)) as workers:
        command = LeavingHost(ledger, tmp_path).leave("stays")
        requested = command.ask_to_stop(ledger)
        wait_until(lambda: workers.sent("one") == ["SIGTERM"], "the first worker is waiting for the grace to end")
        claimed = ledger.run(command.run_id).cancellation
        with ThreadPoolExecutor(10) as pool:
            again = list(pool.map(lambda _: ledger.request_cancellation(command.run_id, actor=ANA), range(10)))
        assert [type(answer) for answer in again] == [AlreadyRequested] * 10
        refused = ledger.claim_dispatch(
            command.run_id,
            command.claim.attempt_id,
            requested.requested_at_ms,
            owner="two",
            served=frozenset({(EXECUTOR_TYPE, ledger.machine().scope)}),
            lease_ms=30_000,
        )
        assert refused == DispatchNotClaimed(command.run_id, ClaimAnswer.LEASED)
        assert ledger.supervise(duties=[Duty.CANCELLATION]).cycle()["cancellation"] == {"seen": 0, "claimed": 0}
        assert ledger.run(command.run_id).cancellation == claimed
        run_ends(ledger, command.run_id)
        assert set(workers.end().values()) == {0}
        assert workers.sent("one") == ["SIGTERM", "SIGKILL"]
        assert command.signals() == [["SIGTERM"], ["SIGTERM"]]
        requests = [fact for fact in ledger.history(command.run_id) if fact.type == "run.cancel_requested"]
        assert len(requests) == 1
        delivered_once(ledger, command.run_id)
        assert ledger.verify().clean
