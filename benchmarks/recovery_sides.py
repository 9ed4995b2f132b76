"""
The product's recovery: Attempts declared lost, pages of candidates, and a backlog that is drained.

As with a supervisor, somebody else has written the Runs: their histories are read, not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks import backlogs
from benchmarks.delivery_sides import OWNER, SERVED
from benchmarks.ledger_sides import BUSY_TIMEOUT_MS, begin_run, open_ledger
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery.claims import Purpose, RecoveryApplied, RecoveryClaimed, RecoverySettled
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.supervision import Duty, Supervision

LOST: Final = "lose and settle"
LOOKED_FOR: Final = "page of recovery looked for"
CLAIMED: Final = "page of recovery claimed and given back"
DRAINED: Final = "backlog of expired Attempts"
PAGE: Final = 32
"""Items in a page."""
PROVIDER: Final = SERVED[0]
LEASE_MS: Final = 300_000
"""Of claims, which must last as long as a turn."""
_IDLE_CYCLES: Final = 3
_PAGE_MOST: Final = 128
_PLACES: Final = frozenset({SERVED})


def abandon(ledger: Ledger, count: int) -> None:
    """Begin Runs, and let their leases be over."""
    with ledger.database.engine.begin() as connection:
        for _ in range(count):
            begin_run(ledger, connection)
        backlogs.expire(connection)


def claim_abandoned(ledger: Ledger, count: int) -> list[RecoveryClaimed]:
    """Begin Runs, let their leases be over, and claim them for recovery."""
    abandon(ledger, count)
    claims: list[RecoveryClaimed] = []
    while len(claims) < count:
        page = ledger.claim_recoveries(
            Purpose.RECOVERY,
            owner=OWNER,
            served=_PLACES,
            limit=min(_PAGE_MOST, count - len(claims)),
            lease_ms=LEASE_MS,
        )
        if not page:
            raise RuntimeError("a page of the bench is empty")
        claims += page
    return claims


@dataclass(slots=True)
class Losses:
    """Declares one Attempt lost after the other, and settles."""

    ledger: Ledger

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``. Each step has a Run of its own, which somebody has looked at."""
        claims = claim_abandoned(self.ledger, steps)
        return self._steps([(claim, self.ledger.recovery_snapshot(claim)) for claim in claims])

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()

    def _steps(self, seen: list[tuple[RecoveryClaimed, Snapshot | None]]) -> Iterator[int]:
        for claim, snapshot in seen:
            if snapshot is None:
                raise RuntimeError("a Run of the bench is not there")
            applied = self.ledger.apply_lost(claim, snapshot, EvidenceKind.NOT_RUNNING, PROVIDER)
            settled = self.ledger.settle_recovery(claim)
            if not isinstance(applied, RecoveryApplied) or not isinstance(settled, RecoverySettled):
                raise TypeError(f"a recovery of the bench was answered by {applied} and {settled}")
            yield 1


@dataclass(slots=True)
class Discoveries:
    """Looks for the first page of what recovery has to do, over and over."""

    ledger: Ledger

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for _ in range(steps):
            found = self.ledger.scan_recoveries(_PLACES, limit=PAGE)
            if found.unsafe != PAGE:
                raise RuntimeError("a page of the bench is not full")
            yield 1

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


@dataclass(slots=True)
class ClaimedPages:
    """Claims a page of what recovery has to do, and gives it back, over and over."""

    ledger: Ledger

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for _ in range(steps):
            page = self.ledger.claim_recoveries(Purpose.RECOVERY, owner=OWNER, served=_PLACES, limit=PAGE)
            if self.ledger.give_back(page) != PAGE:
                raise RuntimeError("a page of the bench is not full")
            yield 1

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


@dataclass(slots=True)
class NotRunning:
    """Says at once of every Attempt that it does not run. See ``EvidenceProvider``."""

    executor_type: str = PROVIDER
    required: frozenset[str] = frozenset()

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del target, timeout_ms, cancelled
        return Evidence.not_running()


@dataclass(slots=True)
class Drain:
    """Runs cycle after cycle until a backlog is gone: each Attempt is lost, and each Run decided on."""

    ledger: Ledger
    worker: Supervision
    warm: bool = False

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``. The first turn, which does not count, is a single cycle; the next one all there is to do."""
        del steps
        if not self.warm:
            self.warm = True
            yield self._cycle()[0]
            return
        idle = 0
        while idle < _IDLE_CYCLES:
            lost, decided = self._cycle()
            idle = 0 if lost or decided else idle + 1
            yield lost

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()

    def _cycle(self) -> tuple[int, int]:
        report = self.worker.cycle()
        if report.failed:
            raise RuntimeError(f"a cycle of the bench failed: {report}")
        return report[Duty.RECOVERY]["claimed"], report[Duty.RETRY]["claimed"]


def losses(url: str) -> Losses:
    """Open the side that declares Attempts lost."""
    return Losses(open_ledger(url))


def discoveries(url: str) -> Discoveries:
    """Open the side that looks for pages, with one page of work."""
    return Discoveries(_with_a_page(url))


def claimed_pages(url: str) -> ClaimedPages:
    """Open the side that claims pages, with one page of work."""
    return ClaimedPages(_with_a_page(url))


def drain(url: str) -> Drain:
    """Open the side that drains."""
    ledger = Ledger.open(url, busy_timeout_ms=BUSY_TIMEOUT_MS, recovery_page=PAGE)
    worker = ledger.supervise(providers=[NotRunning()], local=False, duties=(Duty.RECOVERY, Duty.RETRY))
    return Drain(ledger, worker)


def _with_a_page(url: str) -> Ledger:
    ledger = open_ledger(url)
    if ledger.scan_recoveries(_PLACES, limit=PAGE).unsafe == 0:
        abandon(ledger, PAGE)
    return ledger
