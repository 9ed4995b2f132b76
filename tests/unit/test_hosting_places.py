"""A worker's places: how many at a time, whose trouble is whose, and what is counted (R12.1, R9.3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runfacts import Actor, DatabaseCorrupt, DatabaseUnreachable, Diagnostic, Finished, Outcome, UnknownFactsInRun
from runfacts.domain.answers import LateCallback, NotClaimable, Repeated, StartRefused
from runfacts.domain.cancellation.supervisor import Diagnostics
from runfacts.domain.decisions import Refusal
from runfacts.domain.lifecycle import AttemptStatus, RunStatus
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.views import Page
from runfacts.infrastructure.hosting import HostingPlaces, word_of
from runfacts.infrastructure.processes.hosted import (
    Command,
    Detached,
    Ended,
    HostedOutcome,
    KeeperLost,
    NeverRan,
    NotHosted,
    NotStarted,
)
from waiting import until

WORKER = Actor.worker("w-1")
COMMAND = StoredCommand(("true",), "/")
FAILED = Outcome.failed(exit_code=1)


def ended(run_id: str, status: RunStatus = RunStatus.SUCCEEDED) -> Ended:
    return Ended(run_id, "a", Outcome.succeeded(exit_code=0), Finished(status, AttemptStatus.SUCCEEDED, 9, None))


class Waiting:
    """A queue in memory, in pages of two."""

    def __init__(self, *run_ids: str) -> None:
        self.run_ids = list(run_ids)
        self.reads = 0

    def queued_runs(self, *, limit: int | None = None, after: str | None = None) -> Page[str]:
        """See ``Queue``."""
        assert limit is None
        self.reads += 1
        rest = [run_id for run_id in self.run_ids if after is None or run_id > after]
        return Page(tuple(rest[:2]), rest[1] if len(rest) > 2 else None)

    def command_of(self, run_id: str) -> StoredCommand | None:
        """See ``Queue``."""
        return COMMAND if run_id in self.run_ids else None


class Hosting:
    """Hosts nothing, but says so when it is let go on."""

    def __init__(self, queue: Waiting, answers: dict[str, HostedOutcome | Exception] | None = None) -> None:
        self.queue = queue
        self.answers = answers or {}
        self.asked: list[str] = []
        self.most = 0
        self.now = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._lock = threading.Lock()

    def run(self, run_id: str, command: Command, *, actor: Actor) -> HostedOutcome:
        """See ``Host``."""
        assert (command.argv, command.cwd, command.env, command.stdin, actor) == (("true",), "/", None, False, WORKER)
        with self._lock:
            self.asked.append(run_id)
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            assert self.go_on.wait(30)
            answer = self.answers.get(run_id, ended(run_id))
            if isinstance(answer, Exception):
                raise answer
            self.queue.run_ids.remove(run_id)
            return answer
        finally:
            with self._lock:
                self.now -= 1

    def detach(self) -> None:
        """See ``Host``."""
        self.go_on.set()


@contextmanager
def places(
    queue: Waiting, host: Hosting, *, concurrency: int = 2, interval_ms: int = 60_000
) -> Iterator[tuple[HostingPlaces, list[Diagnostic]]]:
    """Places whose threads have ended when the block ends."""
    told: list[Diagnostic] = []
    made = HostingPlaces(
        queue,
        host,
        actor=WORKER,
        concurrency=concurrency,
        interval_ms=interval_ms,
        diagnostics=Diagnostics(told.append),
    )
    try:
        yield made, told
    finally:
        host.go_on.set()
        assert made.wait_until_free(30)


def go_on(made: HostingPlaces) -> int:
    """Take until nothing is left, as a worker does; give how many were begun."""
    begun = 0
    while more := made.take(lambda: False):
        begun += more
        assert made.wait_until_free(30)
    return begun


def test_no_more_than_allowed_run_at_a_time_and_the_oldest_come_first() -> None:
    queue = Waiting(*"abcdefg")
    host = Hosting(queue)
    host.go_on.clear()
    with places(queue, host, concurrency=3) as (made, _):
        assert made.take(lambda: False) == 3
        assert made.take(lambda: False) == 0
        assert made.hosting == 3
        until(lambda: sorted(host.asked) == ["a", "b", "c"])
        host.go_on.set()
        assert made.wait_until_free(30)
        assert go_on(made) == 4
    assert host.most == 3
    assert [sorted(host.asked[:3]), sorted(host.asked[3:6]), host.asked[6:]] == [
        ["a", "b", "c"],
        ["d", "e", "f"],
        ["g"],
    ]
    assert made.counted() == {"seen": 7, "claimed": 7, "succeeded": 7}
    assert made.counted() == {"seen": 0, "claimed": 0}


def test_who_is_asked_to_stop_takes_nothing_more() -> None:
    queue = Waiting("a")
    host = Hosting(queue)
    with places(queue, host) as (made, _):
        assert made.take(lambda: True) == 0
    assert (host.asked, queue.reads) == ([], 0)


def test_who_loses_a_claim_goes_on_to_the_next() -> None:
    queue = Waiting("a", "b", "c")
    host = Hosting(queue, {"a": NotHosted("a", NotClaimable("a", RunStatus.RUNNING, Refusal.NOT_QUEUED))})
    with places(queue, host, concurrency=1) as (made, told):
        assert go_on(made) == 3
        # By a list that was read anew.
        assert queue.reads > 2
        assert made.counted() == {"seen": 3, "claimed": 2, "succeeded": 2, "taken": 1}
    assert told == []


def test_a_run_whose_command_is_gone_is_passed_over() -> None:
    queue = Waiting("a")
    host = Hosting(queue)
    with places(queue, host, concurrency=1) as (made, _):
        command_of = queue.command_of
        queue.command_of = lambda run_id: command_of(run_id + "x")  # type: ignore[method-assign]  # of this one only
        assert go_on(made) == 1
        assert made.counted() == {"seen": 1, "claimed": 0, "taken": 1}
    assert host.asked == []


@pytest.mark.parametrize("error", [UnknownFactsInRun("a", ("run.new",)), DatabaseCorrupt("it is broken"), ValueError()])
def test_one_runs_trouble_is_set_aside_and_the_others_go_on(error: Exception) -> None:
    queue = Waiting("a", "b", "c", "d")
    host = Hosting(queue, {"a": error})
    with places(queue, host, concurrency=1) as (made, told):
        assert go_on(made) == 4
        assert host.asked == ["a", "b", "c", "d"]
        assert made.counted() == {"seen": 4, "claimed": 3, "succeeded": 3, "error": 1}
        assert not made.in_trouble
    assert [(item.part, item.error, item.run_id) for item in told] == [("hosted", type(error).__name__, "a")]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (DatabaseUnreachable("it is away"), ("DatabaseUnreachable", "it is away")),
        (OSError(24, "too many open files"), ("OSError", "")),
        (NeverRan("a", "x", "launch_failed", "no room", None), ("launch_failed", "no room")),
    ],
)
def test_the_workers_own_trouble_spoils_no_other_run(
    trouble: HostedOutcome | Exception, words: tuple[str, str]
) -> None:
    queue = Waiting("a", "b", "c")
    host = Hosting(queue, {"a": trouble})
    with places(queue, host, concurrency=1, interval_ms=10_000) as (made, told):
        before = made.in_trouble
        assert go_on(made) == 1
        assert (before, made.in_trouble) == (False, True)
        # Twice the interval: it waits longer than usual.
        assert 19_000 < made.pause_ms() <= 20_000
        assert made.in_trouble
    assert host.asked == ["a"]
    assert [(item.part, item.error, item.detail, item.run_id) for item in told] == [("hosted", *words, "a")]


def test_places_are_waited_for_only_as_long_as_somebody_wants_to() -> None:
    queue = Waiting("a")
    host = Hosting(queue)
    host.go_on.clear()
    with places(queue, host) as (made, _):
        made.take(lambda: False)
        assert not made.wait_until_free(0)
        assert not made.wait_until_free(600, lambda: True)
        made.leave()
        assert made.wait_until_free(30)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (ended("r"), "succeeded"),
        (ended("r", RunStatus.RETRY_WAIT), "retry_wait"),
        (Ended("r", "a", FAILED, Repeated("r", RunStatus.FAILED, 9)), "failed"),
        (Ended("r", "a", FAILED, LateCallback(RunStatus.FAILED, AttemptStatus.LOST, 9)), "late"),
        (NotHosted("r", NotClaimable("r", RunStatus.RUNNING, Refusal.NOT_QUEUED)), "taken"),
        (
            NotStarted("r", "a", StartRefused(RunStatus.CANCELLED, AttemptStatus.CANCELLED, Refusal.ENDED)),
            "not_started",
        ),
        (NeverRan("r", "a", "gate_closed", "", None), "never_ran"),
        (KeeperLost("r", "a", "the receipt is gone"), "keeper_lost"),
        (Detached("r", "a"), "detached"),
    ],
)
def test_each_outcome_has_a_counter(outcome: HostedOutcome, word: str) -> None:
    assert word_of(outcome) == word
