"""A host tries again what may be answered otherwise a little later, and no more what has ended (R10.3)."""

from __future__ import annotations

import pytest

from runfacts import AttemptClaim, AttemptStatus, DatabaseBusy, IntentKind, Refusal, RenewalRefused, Renewed, RunStatus
from runfacts.infrastructure.processes import lease as lease_module
from runfacts.infrastructure.processes.lease import HeldLease

CLAIM = AttemptClaim("run", "attempt", 1, "rft_lease", "rft_callback")
RENEWED = Renewed(0, AttemptStatus.RUNNING, None)
RECOVERING = RenewalRefused(RunStatus.RUNNING, AttemptStatus.RUNNING, Refusal.RECOVERING)
ENDED = RenewalRefused(RunStatus.LOST, AttemptStatus.LOST)
Answer = Renewed | RenewalRefused | Exception


class Answering:
    """A ledger that answers renewals from a list."""

    def __init__(self, *answers: Answer) -> None:
        """Answer these, in order."""
        self.answers = list(answers)

    def renew(self, claim: AttemptClaim, *, lease_ms: int | None = None) -> Renewed | RenewalRefused:
        """Give the next answer."""
        assert (claim, lease_ms) == (CLAIM, 30_000)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The boot clock, which stands at its only entry."""
    clock = [100_000]
    monkeypatch.setattr(lease_module, "boot_ms", lambda: clock[0])
    return clock


def held(ledger: Answering) -> HeldLease:
    return HeldLease(ledger, CLAIM, lease_ms=30_000, asked_at_ms=100_000)  # type: ignore[arg-type]  # it only renews


@pytest.mark.parametrize("answer", [RECOVERING, DatabaseBusy("locked")])
def test_what_may_be_renewed_later_is_trusted_until_its_own_deadline_and_tried_again(
    now: list[int], answer: Answer
) -> None:
    ledger = Answering(answer, answer, RENEWED)
    lease = held(ledger)
    now[0] = 110_000
    lease.keep()
    assert (lease.is_trusted, len(ledger.answers)) == (True, 2)
    now[0] = 119_999
    lease.keep()
    assert len(ledger.answers) == 2
    # 30,000 less a tenth after it was asked for, no side effect begins any more.
    now[0] = 127_000
    lease.keep()
    assert (lease.is_trusted, len(ledger.answers)) == (False, 1)
    now[0] = 140_000
    lease.keep()
    assert (lease.is_trusted, len(ledger.answers)) == (True, 0)


def test_what_has_ended_is_not_trusted_and_not_tried_again(now: list[int]) -> None:
    ledger = Answering(ENDED, RENEWED)
    lease = held(ledger)
    now[0] = 110_000
    lease.keep()
    assert lease.is_trusted is False
    now[0] = 150_000
    lease.keep()
    assert len(ledger.answers) == 1


def test_before_the_gate_opens_recovery_is_no_reason_to_trust(now: list[int]) -> None:
    lease = held(Answering(RECOVERING))
    now[0] = 130_000
    assert lease.renew() is False


def test_a_renewal_tells_of_an_intent(now: list[int]) -> None:
    told: list[str] = []
    ledger = Answering(Renewed(0, AttemptStatus.RUNNING, IntentKind.USER))
    lease = HeldLease(
        ledger,  # type: ignore[arg-type]  # it only renews
        CLAIM,
        lease_ms=30_000,
        asked_at_ms=100_000,
        on_intent=lambda: told.append("stop"),
    )
    now[0] = 110_000
    lease.keep()
    assert told == ["stop"]
