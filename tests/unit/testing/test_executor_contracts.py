"""R14.3: the suites for users' controllers and evidence providers catch the mistakes that they are there for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from runfacts.domain.cancellation.controllers import OutOfTime, StopResult, StopTarget, TimeLeft
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.payloads import Escalation
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking, Unknown
from runfacts.testing.controller_contract import ControllerContract
from runfacts.testing.evidence_contract import BlindSpot, EvidenceContract

UNKNOWN = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
HERE = "here"


@dataclass
class Jobs:
    """An executor in memory: jobs by number, each with a generation that makes the number unique."""

    running: dict[int, str] = field(default_factory=dict)
    stubborn: set[int] = field(default_factory=set)
    generations: itertools.count[int] = field(default_factory=itertools.count)
    patience: threading.Event = field(default_factory=threading.Event)

    def start(self, number: int | None = None) -> tuple[int, str]:
        """Start one."""
        generation = next(self.generations)
        number = generation + 1 if number is None else number
        self.running[number] = f"{number}/{generation}"
        return number, self.running[number]


@dataclass
class JobController:
    """A correct controller, whose mistakes can be switched on."""

    jobs: Jobs
    mistake: str = ""
    executor_type: str = "job"
    scopes: frozenset[str] = frozenset({HERE})
    worst_case_ms: int = 100

    def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
        """See ExecutionController."""
        refused = self._refusal(target)
        if refused is not None:
            return StopResult(refused)
        if self.mistake != "no deadline" and not time_left.allows(1 << 30 if self.mistake == "greedy" else 50):
            raise OutOfTime
        number = (target.handle or "").partition("/")[0]
        ended = int(number) if number.isdigit() else target.pid or 0
        if self.mistake == "claims to kill" and ended in self.jobs.stubborn:
            return StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.KILL)
        self.jobs.running.pop(ended, None)
        if self.mistake == "kills all":
            self.jobs.running.clear()
        escalation = Escalation.NONE if self.mistake == "no escalation" else Escalation.TERM
        if ended in self.jobs.stubborn and escalation is Escalation.TERM:
            escalation = Escalation.KILL
        return StopResult(DispatchResult.TERMINATION_REQUESTED, escalation)

    def _refusal(self, target: StopTarget) -> DispatchResult | None:
        if target.handle is None:
            return DispatchResult.HANDLE_MISSING
        found = self.jobs.running.get(int(target.handle.partition("/")[0] or 0) if "/" in target.handle else 0)
        checks = (
            (DispatchResult.INVALID, "/" in target.handle, {"guesses"}),
            (DispatchResult.PID_MISMATCH, target.handle.startswith(f"{target.pid}/"), {"guesses", "any number"}),
            (DispatchResult.SCOPE_MISMATCH, target.scope in self.scopes, {"any scope"}),
            (DispatchResult.ALREADY_EXITED, found is not None, {"guesses", "always delivered"}),
            (DispatchResult.IDENTITY_MISMATCH, found == target.handle, {"guesses", "by number", "always delivered"}),
        )
        failed = (
            result for result, holds, passed_over_by in checks if not holds and self.mistake not in passed_over_by
        )
        return next(failed, None)


@dataclass
class StopBench:
    """See ControllerWorkbench."""

    controller: JobController

    def start(self, *, stubborn: bool = False) -> StopTarget:
        """See ControllerWorkbench."""
        target = self._target(*self.controller.jobs.start())
        if stubborn:
            self.controller.jobs.stubborn.add(target.pid or 0)
        return target

    def runs(self, target: StopTarget) -> bool:
        """See ControllerWorkbench."""
        return self.controller.jobs.running.get(target.pid or 0) == target.handle

    def end(self, target: StopTarget) -> None:
        """See ControllerWorkbench."""
        del self.controller.jobs.running[target.pid or 0]

    def replaced(self) -> tuple[StopTarget, StopTarget]:
        """See ControllerWorkbench."""
        record = self.start()
        return record, self._target(*self.controller.jobs.start(record.pid))

    def _target(self, number: int, handle: str) -> StopTarget:
        return StopTarget("run", "attempt", "job", HERE, handle, number)


class Impatient(ControllerContract):
    """The suite, for doubles that do at once what they ever do."""

    patience_s = 0.1


class TestCorrectController(Impatient):
    """Without a mistake everything passes."""

    @pytest.fixture
    def workbench(self) -> StopBench:
        """A correct one."""
        return StopBench(JobController(Jobs()))


def _with_a_handle(test: Callable[..., None]) -> Callable[[Impatient, StopBench], None]:
    return lambda suite, workbench: test(suite, workbench, handle="{")


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        ("by number", Impatient.test_a_stranger_in_its_place_is_left_alone),
        ("any scope", Impatient.test_another_scope_is_refused),
        ("any number", Impatient.test_a_number_that_is_not_the_handles_is_refused),
        ("guesses", _with_a_handle(Impatient.test_a_handle_that_cannot_be_read_is_refused)),
        ("always delivered", Impatient.test_what_has_ended_gets_nothing),
        ("always delivered", Impatient.test_a_second_stop_finds_nothing_to_do),
        ("no deadline", Impatient.test_time_is_asked_for_and_never_more_than_the_worst_case),
        ("kills all", Impatient.test_only_what_is_meant_is_stopped),
        ("no escalation", Impatient.test_what_runs_is_asked_to_stop),
        ("claims to kill", Impatient.test_what_ignores_that_is_ended_or_reported_truthfully),
    ],
)
def test_a_mistake_is_caught(mistake: str, test: Callable[[Impatient, StopBench], None]) -> None:
    with pytest.raises(AssertionError):
        test(Impatient(), StopBench(JobController(Jobs(), mistake)))


def test_a_controller_that_wants_more_time_than_it_states_is_caught() -> None:
    with pytest.raises(OutOfTime):
        Impatient().test_time_is_asked_for_and_never_more_than_the_worst_case(
            StopBench(JobController(Jobs(), "greedy"))
        )


def test_a_controller_that_never_asks_for_time_is_caught() -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Impatient().test_without_time_nothing_is_sent(StopBench(JobController(Jobs(), "no deadline")))


@dataclass
class JobEvidence:
    """A correct provider, whose mistakes can be switched on."""

    jobs: Jobs
    mistake: str = ""
    is_offline: bool = False
    executor_type: str = "job"
    required: frozenset[str] = frozenset({"handle"})

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See EvidenceProvider."""
        if self.mistake == "scribbles":
            object.__setattr__(target, "handle", "mine")
        if self.mistake == "deaf" and timeout_ms == 30_000:
            self.jobs.patience.wait(30)
        if cancelled.is_set():
            if self.mistake == "broken off is gone":
                return Evidence.not_running()
            return Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
        if self.mistake == "no time is gone" and timeout_ms < 10:
            return Evidence.not_running()
        if self.mistake == "recorded as ended is gone" and target.attempt_status is AttemptStatus.LOST:
            return Evidence.not_running()
        found = self._found(target)
        if self.mistake == "talks":
            return Talking(found.liveness, found.reason)
        return Evidence(found.liveness, Unknown.PROVIDER_UNAVAILABLE) if self.mistake == "always a reason" else found

    def _found(self, target: EvidenceTarget) -> Evidence:
        if self.is_offline:
            if self.mistake == "offline is gone":
                return Evidence.not_running()
            return Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
        if target.handle is None or not target.handle.replace("/", "").isdigit():
            return Evidence.not_running() if self.mistake == "unreadable is gone" else UNKNOWN
        if target.scope != HERE:
            return Evidence.not_running() if self.mistake == "elsewhere is gone" else UNKNOWN
        if self.mistake == "ends what it sees":
            self.jobs.running.clear()
            return Evidence.running()
        number = int(target.handle.split("/")[0])
        found = self.jobs.running.get(number)
        if found == target.handle or (found is not None and self.mistake == "by number"):
            return Evidence.running()
        if self.mistake == "always running":
            return Evidence.running()
        return Evidence.not_running()


class Talking(Evidence):
    """An answer with more to it than was asked for."""


@dataclass
class LookBench:
    """See EvidenceWorkbench."""

    provider: JobEvidence

    def start(self) -> EvidenceTarget:
        """See EvidenceWorkbench."""
        return self._target(*self.provider.jobs.start())

    def runs(self, target: EvidenceTarget) -> bool:
        """See EvidenceWorkbench."""
        return self.provider.jobs.running.get(target.pid or 0) == target.handle

    def end(self, target: EvidenceTarget) -> None:
        """See EvidenceWorkbench."""
        del self.provider.jobs.running[target.pid or 0]

    def replaced(self) -> tuple[EvidenceTarget, EvidenceTarget]:
        """See EvidenceWorkbench."""
        record = self.start()
        return record, self._target(*self.provider.jobs.start(record.pid))

    def blind_spots(self) -> list[BlindSpot]:
        """See EvidenceWorkbench."""
        return [BlindSpot("its worker is offline", replace(self.provider, is_offline=True), self.start())]

    def _target(self, number: int, handle: str) -> EvidenceTarget:
        return EvidenceTarget("run", "attempt", AttemptStatus.RUNNING, "job", HERE, None, handle, number, 0)


class ImpatientLook(EvidenceContract):
    """The suite, for doubles that know at once what they ever know."""

    patience_s = 0.1
    tolerance_s = 1.0


class TestCorrectEvidence(ImpatientLook):
    """Without a mistake everything passes."""

    @pytest.fixture
    def workbench(self) -> LookBench:
        """A correct one."""
        return LookBench(JobEvidence(Jobs()))


@pytest.mark.parametrize(
    ("mistake", "test"),
    [
        ("offline is gone", ImpatientLook.test_a_blind_spot_never_proves_absence),
        ("elsewhere is gone", ImpatientLook.test_another_scope_never_proves_absence),
        ("by number", ImpatientLook.test_a_stranger_in_its_place_is_not_taken_for_it),
        ("always running", ImpatientLook.test_what_has_ended_is_not_said_to_run),
        ("ends what it sees", ImpatientLook.test_looking_changes_nothing),
        ("scribbles", ImpatientLook.test_what_runs_is_running),
        ("talks", ImpatientLook.test_what_runs_is_running),
        ("always a reason", ImpatientLook.test_what_runs_is_running),
        ("deaf", ImpatientLook.test_it_ends_when_nobody_waits_any_more),
        ("broken off is gone", ImpatientLook.test_that_nobody_waits_never_proves_absence),
        (
            "no time is gone",
            lambda suite, bench: suite.test_too_little_time_never_proves_absence(bench, timeout_ms=1),
        ),
        (
            "recorded as ended is gone",
            lambda suite, bench: suite.test_what_was_recorded_of_its_status_proves_nothing(
                bench, status=AttemptStatus.LOST
            ),
        ),
        (
            "unreadable is gone",
            lambda suite, bench: suite.test_a_handle_that_cannot_be_read_proves_nothing(bench, handle="{"),
        ),
        (
            "unreadable is gone",
            lambda suite, bench: suite.test_without_what_it_requires_it_knows_nothing(bench, name="handle"),
        ),
    ],
)
def test_a_guess_is_caught(mistake: str, test: Callable[[ImpatientLook, LookBench], None]) -> None:
    jobs = Jobs()
    try:
        with pytest.raises(AssertionError):
            test(ImpatientLook(), LookBench(JobEvidence(jobs, mistake)))
    finally:
        jobs.patience.set()
