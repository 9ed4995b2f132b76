"""A ledger that nobody tampered with is clean, whoever writes meanwhile (R1.3, R14.2)."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from runfacts import Actor, Ledger, RunNotFound, VerifyReport
from runfacts.infrastructure.stores import verify
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, created, finished, running
from tampering import change, owner_of

OTHER_ID = "01890000-0000-7000-8000-00000000000f"


def test_an_unknown_run_is_not_found(ledger: Ledger) -> None:
    finished(ledger)
    with pytest.raises(RunNotFound):
        ledger.verify(OTHER_ID)


def test_one_run_is_verified_alone(ledger: Ledger, database_url: str) -> None:
    one, other = finished(ledger).run_id, finished(ledger).run_id
    with owner_of(database_url) as owner:
        change(owner, "runs", {"run_id": other}, "task", "changed")
    assert ledger.verify(one).clean
    assert not ledger.verify(other).clean


def test_an_empty_ledger_is_clean(ledger: Ledger) -> None:
    assert ledger.verify() == VerifyReport(0, 0, {}, ())


def test_more_runs_than_a_page_are_all_verified(ledger: Ledger) -> None:
    ids = [created(ledger) for _ in range(201)]
    heard: list[tuple[int, int]] = []
    report = ledger.verify(progress=lambda *so_far: heard.append(so_far))
    assert (report.clean, report.runs, report.facts) == (True, 201, 201)
    assert heard == [(number, number) for number in range(1, len(ids) + 1)]


def test_runs_that_are_read_together_are_verified_as_each_alone(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = [finished(ledger) for _ in range(4)]
    running(ledger)
    created(ledger)
    ledger.project()
    with owner_of(database_url) as owner:
        change(owner, "facts", {"run_id": claims[0].run_id, "sequence": 3}, "project", "other")
        # Each says that it is the other Run's; another's Attempt is of a Run that nothing else is known of.
        change(owner, "executions", {"attempt_id": claims[1].attempt_id}, "run_id", claims[2].run_id)
        change(owner, "executions", {"attempt_id": claims[2].attempt_id}, "run_id", claims[1].run_id)
        change(owner, "attempts", {"attempt_id": claims[3].attempt_id}, "run_id", OTHER_ID)
    reports = []
    # Alone; two at a time; all.
    for together in (0, 18, 500):
        monkeypatch.setattr(verify, "_FACTS_TOGETHER", together)
        reports.append(ledger.verify())
    assert reports[0] == reports[1] == reports[2]
    named = {found.run_id for found in reports[0].differences}
    assert named == {*(claim.run_id for claim in claims), OTHER_ID}
    assert (reports[0].runs, reports[0].facts) == (7, 44)


def test_a_clean_ledger_is_clean_while_writers_go_on(ledger_factory: ThrowAwayLedgers) -> None:
    writing, reading = ledger_factory(), ledger_factory()
    claim = running(writing)
    stop, going = Event(), Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            while not stop.is_set():
                # One Run that changes all the time, and new ones that come and end.
                writing.wait_for_approval(claim, actor=ANA)
                writing.go_on(claim, actor=ANA)
                writing.renew(claim)
                if writing.run(claim.run_id).version % 20 == 0:
                    finished(writing)
                going.set()
        except BaseException as error:
            failed.append(error)
            going.set()
            raise

    writer = Thread(target=write)
    writer.start()
    try:
        assert going.wait(30)
        for _ in range(15):
            assert reading.verify().differences == ()
            assert reading.verify(claim.run_id).differences == ()
    finally:
        stop.set()
        writer.join(30)
    assert not failed
    assert not writer.is_alive()


def test_a_verification_writes_nothing_and_leaves_the_connection_as_it_was(ledger: Ledger) -> None:
    for _ in range(3):
        assert ledger.verify().clean
        finished(ledger)
    assert ledger.create(actor=Actor.user("zoë"), task="naïve ☃").run.task == "naïve ☃"
