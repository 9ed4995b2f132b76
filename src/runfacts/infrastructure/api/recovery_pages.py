"""
Claiming what recovery looks at: one page of candidates, listed and claimed in one short transaction (R11.1, R11.2).

A first look tells, without holding anything, where there is something to do; a clean page ends with it. Then the
transaction holds as many items of each range as were seen there, passing over what other workers hold, judges each
anew under its lock, and begins a term for those that still are candidates. What is none any more gets the due time
that it really has, or is resolved, and takes no place in the page.

Locks are taken without waiting for anybody, so that workers neither wait for each other nor for a deadlock to be
found; only the claims' rows are written, and the executions' times beside them (R4.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from runfacts.domain.errors import Contended, DatabaseError, OutcomeUnknown
from runfacts.domain.leases import TokenPurpose, matches
from runfacts.domain.recovery.claims import (
    PAGE_MAX,
    ClaimState,
    ItemKind,
    Purpose,
    RecoveryClaimed,
    RecoveryKey,
    RecoveryScan,
)
from runfacts.domain.texts import NAME_MAX
from runfacts.infrastructure.api.core import LedgerCore, plain
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.forks import ForkedLock
from runfacts.infrastructure.database.transactions import Change, Reading, Transaction
from runfacts.infrastructure.stores import recovery_claims as store
from runfacts.infrastructure.stores.recovery_claims import ClaimRow
from runfacts.infrastructure.stores.recovery_pages import (
    ANYWHERE,
    Found,
    Query,
    Range,
    foreign_ranges,
    own_ranges,
    unowned_ranges,
    walks,
)
from runfacts.infrastructure.stores.recovery_scan import scan
from runfacts.infrastructure.stores.recovery_targets import Moments, Target, read_targets
from runfacts.infrastructure.tokens import new_token

_ROUNDS: Final = 3
"""How often a range is gone back to where what stood at its beginning was no candidate."""
_FOREIGN_SHARE: Final = 16
"""One place in so many is a foreign item's, and one of any page of several, even where one's own would fill it."""
_LATE_MS: Final = 60_000
"""How long a Run may take from the time that it records to where a walk can see it, at the very most."""
_WALK_AGAIN_MS: Final = 10 * 60_000
"""After how long a walk begins anew, whatever it has seen."""
_SLEWED_MS: Final = 1_000
"""What a clock that is only being adjusted may lose, and what a take-over may be late by then."""


@dataclass(slots=True)
class Walks:
    """How far the walks along Runs have come; everything before has a row, or is none of recovery's (R11.1)."""

    lock: ForkedLock = field(default_factory=ForkedLock)
    places: dict[Query, int] = field(default_factory=dict)
    begun_at_ms: int = 0

    def at(self, now_ms: int) -> dict[Query, int]:
        """Give the places to begin at."""
        with self.lock:
            if not self.begun_at_ms <= now_ms < self.begun_at_ms + _WALK_AGAIN_MS:
                self.places, self.begun_at_ms = {}, now_ms
            return dict(self.places)

    def seen(self, query: Query, until_ms: int, found: list[Found]) -> None:
        """Remember that nothing stands before the first that was found."""
        with self.lock:
            self.places[query] = min([until_ms - _LATE_MS] + [each.at_ms - 1 for each in found[:1]])


@dataclass(slots=True)
class WallClock:
    """Whether this machine's wall clock was set back while somebody looked: what it goes ahead of the boot clock."""

    lock: ForkedLock = field(default_factory=ForkedLock)
    boot_id: str | None = None
    ahead_ms: int = 0
    noticed_boot_ms: int | None = None

    def stepped_back(self, moments: Moments) -> bool:
        """Tell it for as long as a lease may stand that was given before."""
        if moments.boot_id is None:
            return False
        ahead_ms = moments.now_ms - moments.boot_ms
        with self.lock:
            if self.boot_id != moments.boot_id or ahead_ms > self.ahead_ms - _SLEWED_MS:
                self.boot_id, self.ahead_ms, self.noticed_boot_ms = moments.boot_id, ahead_ms, None
                return False
            if self.noticed_boot_ms is None:
                self.noticed_boot_ms = moments.boot_ms
            if moments.boot_ms - self.noticed_boot_ms > _WALK_AGAIN_MS:
                self.ahead_ms = ahead_ms
            return True


@dataclass(frozen=True, slots=True)
class _Terms:
    """What the terms of a page have in common."""

    purpose: Purpose
    owner: str
    lease_ms: int


class RecoveryPages(LedgerCore):
    """Find and claim what nobody looks after."""

    _walks: Walks
    _wall: WallClock

    def claim_recoveries(
        self,
        purpose: Purpose,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        limit: int | None = None,
        lease_ms: int | None = None,
    ) -> tuple[RecoveryClaimed, ...]:
        """See ``RecoveryClaims``.

        A term that had expired counts as one failure of its item. Raises ``Contended``, ``OutcomeUnknown`` and
        ``DatabaseError``.
        """
        purpose = Purpose(purpose)
        plain("owner", owner, NAME_MAX)
        limit = self._within("recovery_page", limit, "limit")
        terms = _Terms(purpose, owner, self._within("recovery_lease_ms", lease_ms, "lease_ms"))
        tries = self._settings.decide_retries + 1
        for _ in range(tries):
            wanted = self._look(purpose, served, limit)
            if not wanted:
                return ()
            begun: list[RecoveryClaimed] = []
            try:
                with self._database.transaction() as transaction:
                    _Page(self, transaction, terms, begun).fill(wanted)
            except LostRace:
                continue
            except OutcomeUnknown as error:
                landed = self._landed(begun, error)
                if landed:
                    return landed
                continue
            return tuple(begun)
        raise Contended(owner, tries)

    def scan_recoveries(self, served: frozenset[tuple[str, str]], *, limit: int) -> RecoveryScan:
        """Say what recovery has to do, at most ``limit`` of each kind, writing nothing (R11.9)."""
        limit = min(max(1, limit), PAGE_MAX)
        seen = self._look(Purpose.RECOVERY, served, limit)
        with self._database.reading() as reading:
            return scan(reading, served | {ANYWHERE}, Moments.of(reading), sum(seen.values()), limit)

    def _look(self, purpose: Purpose, served: frozenset[tuple[str, str]], limit: int) -> Counter[Range]:
        """Say where the next page's items stand, and how many of them in each range: one's own, oldest first."""
        with self._database.reading() as reading:
            moments = Moments.of(reading)
            stepped_back = self._wall.stepped_back(moments)
            ranges = own_ranges(purpose, served, moments, self._settings, stepped_back=stepped_back)
            if purpose is Purpose.RECOVERY:
                ranges += unowned_ranges(moments, self._walks.at(moments.now_ms), self._settings)
            seen = self._looked(reading, ranges, moments, limit)
            own = sorted(seen, key=_by_time)[:limit]
            # Full pages of one's own for ever would leave a machine that is gone unseen for ever (R8.2).
            room = max(limit - len(own), limit // _FOREIGN_SHARE, int(limit > 1))
            later: list[tuple[Found, Range]] = []
            if room:
                foreign = foreign_ranges(reading, purpose, served, moments, self._settings)
                later = sorted(self._looked(reading, foreign, moments, room), key=_by_time)[:room]
        return Counter(where for _, where in own[: limit - len(later)] + later)

    def _looked(self, reading: Reading, ranges: list[Range], moments: Moments, limit: int) -> list[tuple[Found, Range]]:
        ends = walks(moments, self._settings)
        seen: list[tuple[Found, Range]] = []
        for each in ranges:
            found = each.look(reading, limit)
            if each.query in ends:
                self._walks.seen(each.query, ends[each.query], found)
            seen += ((item, each) for item in found)
        return seen

    def _landed(self, begun: Iterable[RecoveryClaimed], unanswered: OutcomeUnknown) -> tuple[RecoveryClaimed, ...]:
        """Look up which terms began although the connection broke during the commit (R4.6)."""
        try:
            with self._database.reading() as reading:
                rows = [(claim, store.read_claim(reading, claim.key)) for claim in begun]
        except DatabaseError as error:
            raise unanswered from error
        return tuple(claim for claim, row in rows if row is not None and _has_token(row, claim))


class _Page:
    """The transaction of one page."""

    def __init__(
        self, ledger: RecoveryPages, transaction: Transaction, terms: _Terms, begun: list[RecoveryClaimed]
    ) -> None:
        self._transaction = transaction
        self._terms = terms
        self._begun = begun
        self._settings = ledger.settings
        self._moments = Moments.of(transaction)
        self._lease = ledger._lease(self._moments.now_ms, terms.lease_ms)  # noqa: SLF001 - of one ledger
        self._passed: set[str] = set()

    def fill(self, wanted: Counter[Range]) -> None:
        """Claim as many items of each range as are wanted."""
        for each, many in wanted.items():
            left = many
            for _ in range(_ROUNDS):
                found = [item for item in each.hold(self._transaction, left) if item.item_id not in self._passed]
                claimed, set_anew = self._claim(each, found)
                left -= claimed
                if not left or not set_anew:
                    break

    def _claim(self, where: Range, found: list[Found]) -> tuple[int, int]:
        """Begin a term for each item that is a candidate; how many, and how many others were given their due time."""
        items = [item.item_id for item in found]
        self._passed.update(items)
        purpose, kind = self._terms.purpose, where.kind
        # First the rows, then what they are about: a command that made a row available has recorded why (R4.1).
        rows = store.lock_claims(self._transaction, purpose, kind, items)
        targets = read_targets(self._transaction, kind, items)
        inserts: list[dict[str, object]] = []
        updates: list[dict[str, object]] = []
        moves: list[Change] = []
        claimed = set_anew = 0
        for item in found:
            target, row = targets.get(item.item_id), rows.get(item.item_id)
            if target is None or (row is None and item.version is not None):
                continue
            standing = target.standing(purpose, kind, self._moments, self._settings)
            if standing is None or standing > self._moments.now_ms:
                if row is not None and kind is ItemKind.RUN:
                    updates.append(dict(store.moved(row, standing, self._moments.now_ms).parameters))
                    set_anew += 1
                continue
            if row is not None and not row.claimable(target, self._moments):
                continue
            claim = self._term(where, RecoveryKey(purpose, kind, item.item_id), target, row)
            parameters = store.claimed(claim, row, self._lease, self._moments.now_ms)
            (inserts if row is None else updates).append(parameters)
            if kind is ItemKind.ATTEMPT:
                moves.append(store.moved_execution(item.item_id, target, self._lease.expires_at_ms))
            self._begun.append(claim)
            claimed += 1
        self._write(inserts, updates, moves)
        return claimed, set_anew

    def _write(self, inserts: list[dict[str, object]], updates: list[dict[str, object]], moves: list[Change]) -> None:
        changed = self._transaction.run_many(store.CHANGE_RECOVERY_CLAIM, updates)
        self._transaction.run_many(store.INSERT_RECOVERY_CLAIM, inserts)
        moved = self._transaction.run_many(store.MOVE_RECOVERY, [move.parameters for move in moves])
        if (changed, moved) != (len(updates), len(moves)):
            raise LostRace(store.CHANGE_RECOVERY_CLAIM.name)

    def _term(self, where: Range, key: RecoveryKey, target: Target, row: ClaimRow | None) -> RecoveryClaimed:
        counted = row is not None and row.state not in {ClaimState.RESOLVED, ClaimState.MANUAL}
        expired = row is not None and row.state == ClaimState.CLAIMED
        return RecoveryClaimed(
            key=key,
            run_id=target.run_id,
            attempt_id=target.attempt_id,
            executor_type=where.where[0],
            scope=where.where[1],
            owner=self._terms.owner,
            version=1 if row is None else row.version + 1,
            expires_at_ms=self._lease.expires_at_ms,
            delays=row.delays if row is not None and counted else 0,
            # Whoever held it has not come back, which is as much as an exception (R11.8).
            failures=row.failures + expired if row is not None and counted else 0,
            foreign=where.foreign,
            token=new_token(),
        )


def _by_time(seen: tuple[Found, Range]) -> tuple[int, str]:
    found, _ = seen
    return found.at_ms, found.item_id


def _has_token(row: ClaimRow, claim: RecoveryClaimed) -> bool:
    return row.token_digest is not None and matches(TokenPurpose.RECOVERY, claim.token, row.token_digest)
