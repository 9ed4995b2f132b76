"""
Cases from the field about cancellation, each with real workers and real commands.

R6.1 to R6.4, R7.4, R7.6, R8.5, R8.6, R9.1; C07, C09, C11, C15, C17, C21, C23 and C31. On every database. The others
of the same page are in ``test_cancel_workers.py``, ``test_cancel_crashes.py`` and ``test_cancel_clock_steps.py``.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from crash_scene import Scene
from deliveries import Asked, claim_answer, cloned, dispatch_of
from failing_database import failing
from left_commands import ANA, HOST, LeavingHost, LeftCommand
from process_watch import Marked, kill, state_of, wait_until
from real_time import RealTime
from runfacts import AlreadyTerminal, Claimed, Ledger
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import CancelRequested, DispatchClaimed
from runfacts.domain.payloads import Escalation, RunCancelDispatchBlocked, RunCancelDispatched
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT
from runfacts.testing.ledgers import contents_of
from stages import one_writer, types
from told import apart
from workers import Job, Workers, working

LEASE_MS = 4_000
"""Of a worker whose lease is to end within the test."""
LONG_GRACE_MS = 60_000
LONG_MS = 290_000
"""No lease is given for longer than 300 s: what says so is no lease."""


@pytest.fixture
def url(databases: RealTime) -> str:
    """A fresh database of each kind whose time passes by itself."""
    return databases.create()


def leader_of(ledger: Ledger, command: LeftCommand) -> int:
    """Give the number of a command's leader."""
    return ProcessHandle.decode(ledger.execution(command.claim.attempt_id).handle or "").pid


def keeper_of(leader: int) -> int:
    """Give the number of a leader's keeper, which is its parent."""
    return int(Path(f"/proc/{leader}/stat").read_bytes().rpartition(b")")[2].split()[1])


def told_of(ledger: Ledger, run_id: str) -> list[Any]:
    """Give what the facts about a Run's delivery say, in order."""
    return [fact.payload for fact in ledger.history(run_id) if fact.type.startswith("run.cancel_dispatch")]


def rows_of(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Give every row of what a settle writes: Runs, their Attempts, dispatches and facts."""
    contents = contents_of(ledger)
    return {name: contents[name] for name in ("runs", "attempts", "cancellation_dispatches", "facts")}


def test_a_zombie_whose_parent_never_waits_has_ended(url: str, tmp_path: Path, marked: Marked) -> None:
    """C07."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave()
        leader = leader_of(ledger, command)
        keeper = keeper_of(leader)
        kill(keeper, signal.SIGSTOP)
        wait_until(lambda: state_of(keeper) == "T", "the keeper does not wait")
        kill(leader)
        wait_until(lambda: state_of(leader) == "Z", "the leader is a zombie")
        command.ask_to_stop(ledger)
        # A grace as long as this test's patience: whoever waits for it fails.
        with working(Job("one", url, lease_ms=2 * LONG_GRACE_MS, grace_ms=LONG_GRACE_MS)) as workers:
            wait_until(lambda: workers.counted("one", "already_exited") == 1, "it is found dead")
            assert workers.end() == {"one": 0}
            assert workers.all("sent") == []
        assert told_of(ledger, command.run_id) == [
            RunCancelDispatched(
                attempt_id=command.claim.attempt_id,
                dispatch_count=1,
                result="already_exited",
                escalation=Escalation.NONE,
            )
        ]
        assert command.signals() == [[]]
        kill(keeper)
        assert ledger.verify().clean


def test_a_member_that_nobody_can_prove_blocks_the_delivery(url: str, tmp_path: Path, marked: Marked) -> None:
    """C09: the leader is gone and reaped, the child in its group does not have the attempt's cookie."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave("hides")
        leader = leader_of(ledger, command)
        (child,) = [pid for pid in group_of(leader) if pid != leader]
        assert COOKIE_ATTEMPT.encode() not in Path(f"/proc/{child}/environ").read_bytes()
        kill(leader)
        wait_until(lambda: state_of(leader) is None, "the leader is reaped")
        command.ask_to_stop(ledger)
        with working(Job("one", url)) as workers:
            wait_until(lambda: workers.counted("one", "group_survivors") == 1, "it is blocked")
            workers.next_cycle("one")
            assert workers.end() == {"one": 0}
            assert workers.all("sent") == []
        assert told_of(ledger, command.run_id) == [
            RunCancelDispatchBlocked(attempt_id=command.claim.attempt_id, dispatch_count=1, result="group_survivors")
        ]
        assert command.signals() == [[], []]
        assert state_of(child) == "S"
        assert ledger.run(command.run_id).status == "running"
        assert ledger.verify().clean


def group_of(leader: int) -> set[int]:
    """Give the numbers of a group's members."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                group = int((path / "stat").read_bytes().rpartition(b")")[2].split()[2])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if group == leader:
                found.add(int(path.name))
    return found


def test_a_stopped_command_is_not_continued_and_ends_by_kill(url: str, tmp_path: Path, marked: Marked) -> None:
    """C11."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave("ends")
        leader = leader_of(ledger, command)
        kill(leader, signal.SIGSTOP)
        wait_until(lambda: state_of(leader) == "T", "the command stands still")
        command.ask_to_stop(ledger)
        with working(Job("one", url, grace_ms=1_000)) as workers:
            wait_until(lambda: workers.sent("one") == ["SIGTERM"], "TERM is accepted")
            assert ledger.run(command.run_id).status == "running"
            wait_until(lambda: workers.counted("one", "termination_requested") == 1, "it is delivered")
            assert workers.end() == {"one": 0}
            assert workers.sent("one") == ["SIGTERM", "SIGKILL"]
        # Whoever had continued it would have let it take TERM.
        assert command.signals() == [[]]
        assert told_of(ledger, command.run_id) == [
            RunCancelDispatched(
                attempt_id=command.claim.attempt_id,
                dispatch_count=1,
                result="termination_requested",
                escalation=Escalation.KILL,
            )
        ]
        assert ledger.verify().clean


def test_a_result_that_cannot_be_written_leaves_nothing_behind_and_is_settled_by_a_later_term(
    url: str, tmp_path: Path, marked: Marked
) -> None:
    """C15."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave()
        command.ask_to_stop(ledger)
        run_id = command.run_id
        with working(Job("one", url, lease_ms=LEASE_MS, fault="freeze", step="stop:after:proof")) as workers:
            workers.first("reached", "one")
            before = rows_of(ledger)
            with failing(ledger, "facts", "INSERT", "run.cancel_dispatched"):
                workers.thaw("one")
                wait_until(lambda: workers.all("failed", "one"), "the error surfaces")
                row = dispatch_of(ledger, run_id)
                assert row is not None
                assert (row["status"], row["version"], row["dispatch_count"]) == ("leased", 1, 1)
                assert rows_of(ledger) == before
                assert command.signals() == [["SIGTERM"]]
            wait_until(lambda: workers.counted("one", "already_exited") == 1, "a later term settles it")
            assert workers.end() == {"one": 0}
            assert workers.counted("one", "error") == 1
            assert workers.sent("one") == ["SIGTERM"]
        assert types(ledger, run_id)[-2:] == ["run.cancel_dispatch_taken_over", "run.cancel_dispatched"]
        assert types(ledger, run_id).count("run.cancel_dispatched") == 1
        assert ledger.verify().clean


def test_a_late_result_changes_nothing_of_what_its_successor_holds(url: str, tmp_path: Path, marked: Marked) -> None:
    """C17."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave("stays")
        command.ask_to_stop(ledger)
        first_job = Job("first", url, lease_ms=LEASE_MS, fault="freeze", step="stop:after:kill")
        second_job = Job("second", url, lease_ms=300_000, fault="freeze", phase="claim", step="sql:after:commit")
        with working(first_job) as first:
            first.first("reached", "first")
            with working(second_job) as second:
                # It stands still with a valid lease in its hands.
                second.first("reached", "second")
                before = rows_of(ledger)
                row = dispatch_of(ledger, command.run_id)
                assert row is not None
                assert (row["status"], row["version"], row["lease_owner"]) == ("leased", 2, second.owner("second"))
                first.thaw("first")
                wait_until(lambda: first.counted("first", "fenced") == 1, "the late result is refused")
                assert rows_of(ledger) == before
                assert refused(first) == {"fenced": 1}
                second.thaw("second")
                wait_until(lambda: second.counted("second", "already_exited") == 1, "the successor's is accepted")
                assert second.end() == {"second": 0}
                assert second.all("sent") == []
            assert first.end() == {"first": 0}
            assert first.sent("first") == ["SIGTERM", "SIGKILL"]
        assert [payload.dispatch_count for payload in told_of(ledger, command.run_id)] == [2, 2]
        assert types(ledger, command.run_id)[-2:] == ["run.cancel_dispatch_taken_over", "run.cancel_dispatched"]
        assert ledger.verify().clean


def refused(workers: Workers) -> dict[str, int]:
    """Give how the first worker's settles ended, those that did."""
    names = ("fenced", "termination_requested", "already_exited", "error")
    return {name: count for name in names if (count := workers.counted("first", name))}


def test_a_run_that_is_cancelled_before_a_worker_comes_never_begins(url: str, tmp_path: Path, marked: Marked) -> None:
    """C21: the intent comes before the claim."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        run_id = apart("submit", "--json", "--", "touch", str(tmp_path / "ran"), url=url).json["run_id"]
        said = [apart("cancel", run_id, "--json", url=url).json["outcome"] for _ in range(2)]
        assert said == ["accepted", "already_terminal"]
        assert apart("work", "--once", url=url).code == 0
        assert types(ledger, run_id) == ["run.created", "run.queued", "run.cancel_requested", "run.cancelled"]
        assert ledger.run(run_id).attempts == ()
        assert dispatch_of(ledger, run_id) is None
        assert not (tmp_path / "ran").exists()
        assert ledger.verify().clean


def test_a_run_that_is_cancelled_between_claim_and_start_is_refused_at_the_barrier(
    url: str, tmp_path: Path, marked: Marked
) -> None:
    """C21: the intent comes between the claim and the start."""
    scene = Scene(tmp_path / "scene", url, marked)
    # A keeper would stop at its first step and leave a mark there.
    host = scene.begin(pause_at=["launch:before:start", 1], keeper_stops_at=["keeper:before:lock"])
    try:
        wait_until((scene.root / "host-step").exists, "the Attempt is claimed")
        with Ledger.open(url) as ledger:
            assert isinstance(ledger.request_cancellation(scene.run_id, actor=ANA), CancelRequested)
            wait_until(lambda: state_of(host.pid) == "T", "the host stands still")
            kill(host.pid, signal.SIGCONT)
            assert scene.said()["type"] == "NotStarted"
            assert types(ledger, scene.run_id)[2:] == [
                "run.dispatching",
                "attempt.claimed",
                "run.cancel_requested",
                "attempt.cancelled",
                "run.cancelled",
            ]
            assert ledger.supervise().cycle()["cancellation"] == {"seen": 0, "claimed": 0}
            assert told_of(ledger, scene.run_id) == []
        assert list((scene.root / "steps").iterdir()) == []
        assert scene.runs() == []
        scene.settle()
    finally:
        scene.end()


def test_a_run_that_has_succeeded_stays_as_it_is_whoever_cancels_it(url: str, tmp_path: Path, marked: Marked) -> None:
    """C23."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        done = apart("exec", "--", "touch", str(tmp_path / "ran"), url=url)
        assert (done.code, (tmp_path / "ran").exists()) == (0, True)
        before = rows_of(ledger)
        with working(Job("one", url)) as workers:
            for _ in range(2):
                said = apart("cancel", done.run_id, "--json", url=url)
                assert (said.code, said.json) == (
                    0,
                    {"run_id": done.run_id, "outcome": "already_terminal", "status": "succeeded"},
                )
            answer = ledger.request_cancellation(done.run_id, actor=ANA)
            assert answer == AlreadyTerminal(done.run_id, ledger.run(done.run_id).status)
            workers.next_cycle("one")
            assert workers.end() == {"one": 0}
            assert workers.all("sent") == []
            assert workers.counted("one", "seen") == 0
        assert rows_of(ledger) == before
        assert before["cancellation_dispatches"] == []


@pytest.mark.timeout(300)
def test_thousands_of_dispatches_that_nobody_can_claim_do_not_delay_one_that_can(
    url: str, tmp_path: Path, marked: Marked
) -> None:
    """C31."""
    assert not marked.living()
    with Ledger.open(url) as ledger:
        crowded(ledger)
        command = LeavingHost(ledger, tmp_path).leave()
        command.ask_to_stop(ledger)
        with working(Job("one", url)) as workers:
            first = workers.first("cycle", "one")["counters"]
            assert first == {"seen": 1, "claimed": 1, "termination_requested": 1}
            workers.next_cycle("one")
            assert workers.end() == {"one": 0}
            # What is passed over costs no cycle anything.
            assert workers.counted("one", "seen") == 1
            assert workers.all("failed") == []
        assert command.signals() == [["SIGTERM"]]
        left = [row["status"] for row in dispatches_of(ledger)]
        assert {status: left.count(status) for status in set(left)} == CROWDED | {"dispatched": 2}
        assert ledger.blocked(limit=1).items != ()


def dispatches_of(ledger: Ledger) -> list[dict[str, Any]]:
    """Give all dispatches, by column."""
    names = cancellation_dispatches.columns.keys()
    return [dict(zip(names, row, strict=True)) for row in contents_of(ledger)[cancellation_dispatches.name]]


CROWDED = {"retry_wait": 1_700, "leased": 1_600, "blocked": 699, "pending": 1_000}
"""Dispatches by status: those that wait, are held by others, are an operator's, and are of another scope."""


def crowded(ledger: Ledger) -> None:
    """Make as many dispatches that a worker of this scope cannot claim, all older than what comes next."""
    run_id = ledger.create(actor=ANA, task="template").run.run_id
    ledger.queue(run_id, actor=ANA)
    scope = ledger.machine().scope
    claimed = ledger.claim(run_id, actor=HOST, executor_type=EXECUTOR_TYPE, scope=scope)
    assert isinstance(claimed, Claimed)
    requested = ledger.request_cancellation(run_id, actor=ANA)
    assert isinstance(requested, CancelRequested)
    template = Asked(claimed.claim, requested.requested_at_ms)
    with ledger.database.reading() as reading:
        now_ms, clock = reading.now_ms(), reading.clock
    held_ms = now_ms + LONG_MS
    tried: dict[str, Any] = {"version": 2, "dispatch_count": 1, "tries_since_rearm": 1}
    waiting = {"next_attempt_at_ms": held_ms, "due_at_ms": held_ms, "last_result": "dispatch_error"}
    held = {"lease_owner": "another", "lease_token_digest": "d" * 64, "lease_expires_at_ms": held_ms}
    if one_writer(ledger):
        held |= {"lease_boot_id": clock.boot_id(), "lease_expires_boot_ms": clock.boot_ms() + LONG_MS}
    blocked = {"due_at_ms": None, "last_result": "identity_mismatch"}
    cloned(ledger, template, CROWDED["retry_wait"], status="retry_wait", **tried, **waiting)
    cloned(ledger, template, CROWDED["leased"], status="leased", due_at_ms=held_ms, **tried, **held)
    cloned(ledger, template, CROWDED["blocked"], status="blocked", **tried, **blocked)
    cloned(ledger, template, CROWDED["pending"], scope="another")
    mine = claim_answer(ledger, template, served=frozenset({(EXECUTOR_TYPE, scope)}))
    assert isinstance(mine, DispatchClaimed)
    ledger.settle_dispatch(mine, DispatchResult.ALREADY_EXITED)
