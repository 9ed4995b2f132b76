"""
The host's side of its execution lease (R10.3).

The ledger judges who holds the lease. The host trusts it only until a deadline of its own: counted on the boot clock,
which goes on while the machine sleeps, from the moment *before* it asked, less a margin. A slow round trip shortens
the trust and never stretches it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from runfacts.domain.answers import AttemptClaim, RenewalRefused, Renewed
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import Contended, DatabaseError
from runfacts.infrastructure.processes.ports import HostLedger

_LOG: Final = logging.getLogger("runfacts.host")

_RENEWALS_IN_A_LEASE: Final = 3
_MARGIN: Final = 0.1  # of the lease


class HeldLease:
    """One Attempt's execution lease, in the hands of its host."""

    def __init__(
        self,
        ledger: HostLedger,
        claim: AttemptClaim,
        *,
        lease_ms: int,
        asked_at_ms: int,
        on_intent: Callable[[], None] | None = None,
    ) -> None:
        """``asked_at_ms`` is ``boot_ms()`` from before the claim was asked for.

        ``on_intent`` is called when a renewal is answered that somebody wants the Run to stop.
        """
        self._ledger = ledger
        self._claim = claim
        self._lease_ms = lease_ms
        self._counts_from_ms = asked_at_ms
        self._tried_at_ms = asked_at_ms
        self._refused = False
        self._told = False
        self._on_intent = on_intent

    @property
    def is_trusted(self) -> bool:
        """Whether side effects may begin: the ledger knows of no end, and the local deadline is ahead."""
        return not self._refused and boot_ms() < self._counts_from_ms + self._lease_ms * (1 - _MARGIN)

    def keep(self) -> None:
        """Renew when it is time. To be called only after a look at the process.

        A database that cannot be reached is tried again, and so is recovery that looks at the Attempt; when the local
        deadline passes meanwhile, that is said once. An ended lease may be renewed as long as the Attempt is active.
        """
        now_ms = boot_ms()
        if self._refused or now_ms < self._tried_at_ms + self._lease_ms // _RENEWALS_IN_A_LEASE:
            return
        self._tried_at_ms = now_ms
        self.renew()
        if not self.is_trusted and not self._told:
            self._told = True
            _LOG.warning(
                "attempt %s: its lease could not be renewed; its process is left alone", self._claim.attempt_id
            )

    def renew(self) -> bool:
        """Renew now; tell whether the lease is trusted after it."""
        asked_at_ms = boot_ms()
        try:
            answer = self._ledger.renew(self._claim, lease_ms=self._lease_ms)
        except (Contended, DatabaseError) as error:
            _LOG.warning("attempt %s: its lease is not renewed: %s", self._claim.attempt_id, error)
            return False
        match answer:
            case Renewed(intent=intent):
                self._counts_from_ms = asked_at_ms
                self._told = False
                if intent is not None and self._on_intent is not None:
                    self._on_intent()
            case RenewalRefused(reason=Refusal.RECOVERING):
                # Its term is short, and ends in the Attempt's end or in a lease that can be renewed again.
                _LOG.warning("attempt %s: its lease is not renewed while recovery looks at it", self._claim.attempt_id)
            case RenewalRefused():
                self._refused = True
        return self.is_trusted


def boot_ms() -> int:
    """Give the milliseconds since this machine started, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
