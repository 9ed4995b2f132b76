"""
What is committed once is recorded once, and the caller hears the truth, also when the connection breaks (R4.6).

PostgreSQL commits and then cannot say so while it waits for a standby that does not exist: its connection is ended
just then, which is the real thing. That needs a server of the test's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any

import psycopg
import pytest
from sqlalchemy import event

from deliveries import asked_to_stop, held_by, settled_with
from every_command import COMMANDS, Act
from runfacts import (
    Claimed,
    Contended,
    DatabaseBusy,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnreachable,
    Ledger,
    OutcomeUnknown,
    Recorded,
    Renewed,
    Repeated,
    Started,
)
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import DispatchSettled
from runfacts.infrastructure.database.errors import LostRace
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from runfacts.testing.plugin import make_template
from runfacts.testing.postgres import PostgresServer, PostgresVersion
from runfacts.testing.steps import AllSteps, CallAt, FailAt, listening
from stages import ANA, WORKER, claimed, created, one_writer, queued, types, unchanged
from waiting import until

every_command = pytest.mark.parametrize("prepare", COMMANDS, ids=lambda prepare: prepare.__name__)
SESSIONS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name = 'runfacts' AND pid <> pg_backend_pid()"
)


def end_sessions(url: str) -> None:
    """End every session of a ledger, as an administrator or a broken network does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid, 30000) FROM ({SESSIONS}) AS found")


@every_command
def test_a_connection_that_breaks_before_the_commit_costs_nothing(
    ledger_factory: ThrowAwayLedgers, prepare: Callable[[Ledger], Act]
) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    act = prepare(other)
    expected = type(act(ledger, None))
    again = prepare(other)
    if one_writer(ledger):
        # There is no connection that could break; what fails before the commit is not committed.
        before = contents_of(ledger)
        with listening(ledger, FailAt("sql:before:commit", ZeroDivisionError)), pytest.raises(ZeroDivisionError):
            again(ledger, None)
        assert contents_of(ledger) == before
        answer = again(ledger, None)
    else:
        breaking = CallAt("sql:before:commit", lambda: end_sessions(ledger_factory.url))
        with listening(ledger, breaking):
            answer = again(ledger, None)
        assert breaking.count == 2
    assert type(answer) is expected
    assert ledger.verify().clean


@every_command
def test_a_connection_that_breaks_after_the_commit_changes_no_answer(
    ledger_factory: ThrowAwayLedgers, prepare: Callable[[Ledger], Act]
) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    act = prepare(other)
    expected = type(act(ledger, None))
    again = prepare(other)
    count = len(contents_of(other)["facts"])
    if one_writer(ledger):
        with listening(ledger, FailAt("sql:after:commit", ZeroDivisionError)), pytest.raises(ZeroDivisionError):
            again(ledger, None)
    else:
        breaking = CallAt("sql:after:commit", lambda: end_sessions(ledger_factory.url))
        with listening(ledger, breaking):
            assert type(again(ledger, None)) is expected
        assert breaking.count == 1
    assert 1 <= len(contents_of(other)["facts"]) - count <= 3
    assert ledger.verify().clean


def test_a_command_that_failed_after_its_commit_is_a_repetition_by_its_key(ledger: Ledger) -> None:
    run_id = created(ledger)
    with listening(ledger, FailAt("sql:after:commit", ZeroDivisionError)), pytest.raises(ZeroDivisionError):
        ledger.queue(run_id, actor=ANA, dedupe_key="q")
    assert isinstance(ledger.queue(run_id, actor=ANA, dedupe_key="q"), Repeated)
    assert types(ledger, run_id) == ["run.created", "run.queued"]


@pytest.mark.parametrize("tried", [False, True], ids=["its first term", "a later term"])
def test_a_delivery_whose_claim_is_committed_without_an_answer_is_held(
    ledger: Ledger, manual_clock: ManualClock, *, tried: bool
) -> None:
    """Its token is in the memory of whoever claimed: nobody else could settle it, and it would wait for its lease."""
    asked = asked_to_stop(ledger)
    if tried:
        settled_with(ledger, asked, DispatchResult.DISPATCH_ERROR)
        manual_clock.advance(ledger.settings.backoff_base_ms)
    facts = types(ledger, asked.run_id)
    with listening(ledger, FailAt("sql:after:commit", OutcomeUnknown("the connection broke"))):
        claim = held_by(ledger, asked)
    assert (claim.dispatch_count, claim.taken_over) == (2 if tried else 1, False)
    assert types(ledger, asked.run_id) == facts
    assert isinstance(ledger.settle_dispatch(claim, DispatchResult.TERMINATION_REQUESTED), DispatchSettled)


def test_a_renewal_whose_connection_breaks_is_made_again(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    claim = claimed(ledger)
    facts = ledger.history(claim.run_id)
    broken = FailAt("sql:before:commit", LostRace("deadlock")) if one_writer(ledger) else None
    breaking = broken or CallAt("sql:before:commit", lambda: end_sessions(ledger_factory.url))
    with listening(ledger, breaking):
        assert isinstance(ledger.renew(claim), Renewed)
    assert breaking.count == 2
    assert ledger.history(claim.run_id) == facts


def test_a_renewal_that_loses_every_race_is_contended(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(decide_retries=2)
    claim = claimed(ledger)
    losing = FailAt("sql:before:commit", LostRace("deadlock"), nth=0)
    with unchanged(ledger), listening(ledger, losing), pytest.raises(Contended) as caught:
        ledger.renew(claim)
    assert caught.value.tries == 3


@pytest.mark.parametrize("kind", [DatabaseBusy, DatabaseFull, DatabaseReadOnly, DatabaseUnreachable])
def test_an_error_of_the_next_try_does_not_hide_that_the_outcome_is_unknown(
    ledger: Ledger, kind: type[DatabaseBusy]
) -> None:
    run_id = queued(ledger)
    unknown = FailAt("sql:before:commit", OutcomeUnknown("the connection broke"))
    failing = FailAt("sql:before:commit", kind("not now"), nth=2)
    with unchanged(ledger), listening(ledger, AllSteps(failing, unknown)), pytest.raises(OutcomeUnknown) as caught:
        ledger.claim(run_id, actor=WORKER, executor_type="batch")
    assert isinstance(caught.value.__cause__, kind)


@pytest.fixture(params=[16, 18], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of this module's own, of each version."""
    version: PostgresVersion = request.param
    with PostgresServer.start(version) as server:
        yield server


@pytest.fixture
def ledgers(server: PostgresServer) -> Iterator[ThrowAwayLedgers]:
    """Ledgers on a fresh database of that server."""
    url = server.create_database(make_template(server))
    try:
        with ThrowAwayLedgers(url) as ledgers:
            yield ledgers
    finally:
        # A test that failed may have left the server asking, and then nothing that commits comes back.
        ask_nobody(url)
        server.drop_database(url)


class Standby:
    """A standby that does not exist, and for which every commit waits as long as it is asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._admin = psycopg.connect(url, autocommit=True)
        # Our own look must not be counted, and our own commits must not wait.
        self._admin.execute("SET application_name = 'test'")
        self._admin.execute("SET synchronous_commit = 'local'")

    def ask(self, names: str) -> None:
        """Make the server ask for standbys of these names, or for none."""
        self._admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self._admin.execute("SELECT pg_reload_conf()")
        until(lambda: self._one("SHOW synchronous_standby_names") == names)
        if names:
            self._see_a_commit_wait()

    def waiting(self) -> bool:
        """Whether a ledger has committed and waits to be allowed to say so."""
        return bool(self._one(f"SELECT count(*) FROM ({SESSIONS} AND wait_event = 'SyncRep') AS found"))

    def _see_a_commit_wait(self) -> None:
        """Come back when commits really wait: the process that makes them hears of the change after the others."""
        with (
            psycopg.connect(self._url, autocommit=True, application_name="test") as probe,
            ThreadPoolExecutor(1) as pool,
        ):
            pid = probe.info.backend_pid
            waits = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'"

            def one_commit_waits() -> bool:
                commit = pool.submit(probe.execute, "SELECT pg_logical_emit_message(true, 'test', '')")
                until(lambda: commit.done() or bool(self._one(waits)))
                if waited := not commit.done():
                    self._admin.execute(f"SELECT pg_cancel_backend({pid})")
                commit.result(30)
                return waited

            until(one_commit_waits)

    def close(self) -> None:
        """Close the connection."""
        self._admin.close()

    def _one(self, statement: str) -> Any:  # noqa: ANN401 - whatever the statement gives
        row = self._admin.execute(statement).fetchone()
        assert row is not None
        return row[0]


def unanswered(url: str, command: Callable[[], object], break_it: Callable[[], None]) -> object:
    """Run a command whose COMMIT succeeds and is never answered; its answer, or its error."""
    standby = Standby(url)
    standby.ask("nobody")
    with ThreadPoolExecutor(1) as pool:
        future: Future[object] = pool.submit(command)
        until(standby.waiting)
        break_it()
        answer = future.exception(timeout=30) or future.result()
    standby.close()
    return answer


def end_unanswered(ledgers: ThrowAwayLedgers, command: Callable[[], object]) -> object:
    """Do so by ending the connection; the server answers others."""
    answer = unanswered(ledgers.url, command, lambda: end_sessions(ledgers.url))
    ask_nobody(ledgers.url)
    return answer


def ask_nobody(url: str) -> None:
    """Let commits be answered again."""
    standby = Standby(url)
    standby.ask("")
    standby.close()


def test_a_commit_that_was_never_answered_is_looked_up(ledgers: ThrowAwayLedgers) -> None:
    ledger = ledgers()
    run_id = created(ledger)
    ledger.queue(run_id, actor=ANA)

    def claim() -> object:
        return ledger.claim(run_id, actor=WORKER, executor_type="batch")

    answer = end_unanswered(ledgers, claim)
    assert isinstance(answer, Claimed)
    assert answer.version == 4
    commands: list[tuple[Callable[[], object], type, int]] = [
        (lambda: ledger.start(answer.claim, actor=WORKER), Started, 5),
        (lambda: ledger.running(answer.claim, actor=WORKER), Recorded, 7),
    ]
    for command, kind, version in commands:
        after = end_unanswered(ledgers, command)
        assert isinstance(after, kind)
        assert ledger.run(run_id).version == version
    assert types(ledger, run_id) == [
        "run.created",
        "run.queued",
        "run.dispatching",
        "attempt.claimed",
        "attempt.starting",
        "attempt.running",
        "run.running",
    ]
    assert ledger.verify().clean


def test_a_new_run_that_was_never_answered_is_there_once(ledgers: ThrowAwayLedgers) -> None:
    ledger = ledgers()
    run_id = end_unanswered(ledgers, lambda: created(ledger))
    assert [item.run_id for item in ledger.runs().items] == [run_id]


def test_the_first_of_two_unanswered_commits_may_arrive_after_the_second_was_sent(ledgers: ThrowAwayLedgers) -> None:
    ledger = ledgers()
    run_id = queued(ledger)
    taken_out: list[Any] = []
    event.listen(ledger.database.engine, "checkout", lambda connection, *_: taken_out.append(connection))

    def waiting(count: int) -> bool:
        found = watcher.execute(f"SELECT count(*) FROM ({SESSIONS} AND wait_event_type = 'Lock') AS found").fetchone()
        return found == (count,)

    def cut() -> None:
        # On our side only: the server goes on with what it was asked.
        with suppress(OSError), socket(fileno=os.dup(taken_out[-1].fileno())) as ours:
            ours.shutdown(SHUT_RDWR)

    with (
        psycopg.connect(ledgers.url, application_name="holder") as holder,
        psycopg.connect(ledgers.url, application_name="watcher", autocommit=True) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        holder.execute("SELECT 1 FROM runs FOR UPDATE")
        future = pool.submit(lambda: ledger.claim(run_id, actor=WORKER, executor_type="batch"))
        for count in (1, 2):
            until(lambda count=count: waiting(count))  # type: ignore[misc]  # the count of this turn
            ledgers.clock.advance(1)
            cut()
        holder.rollback()
        answer = future.result(timeout=30)
    assert isinstance(answer, Claimed)
    assert isinstance(ledger.start(answer.claim, actor=WORKER), Started)
    assert types(ledger, run_id)[1:] == ["run.queued", "run.dispatching", "attempt.claimed", "attempt.starting"]
    assert ledger.verify().clean


def test_where_nobody_can_be_asked_the_outcome_is_unknown(server: PostgresServer, ledgers: ThrowAwayLedgers) -> None:
    ledger = ledgers()
    run_id = queued(ledger)

    def claim() -> object:
        return ledger.claim(run_id, actor=WORKER, executor_type="batch", dedupe_key="c")

    answer = unanswered(ledgers.url, claim, server.stop_immediately)
    with pytest.raises(DatabaseUnreachable):
        ledger.run(run_id)
    server.restart()
    ask_nobody(ledgers.url)
    assert isinstance(answer, OutcomeUnknown)
    with ThrowAwayLedgers(ledgers.url) as later:
        # It had been committed; the dedupe key says so.
        assert later().run(run_id).version == 4
        assert not isinstance(later().claim(run_id, actor=WORKER, executor_type="batch", dedupe_key="c"), Claimed)
