"""
The workers of a ledger on a server: which boots of which machine were seen, and when (R8.3).

A machine id is taken for one machine, and after a reboot that is what proofs rest on. A cloned image gives two
machines one id. Boots of one machine follow each other, so a boot that is still seen after a later one began tells of
two: the id is *ambiguous*, and says so for an hour after the last such sighting.

On SQLite there is one machine (R5.2), and nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sqlalchemy import bindparam, func
from sqlalchemy.dialects import postgresql

from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.recovery_tables import workers
from runfacts.infrastructure.database.statements import Statement, read_sql
from runfacts.infrastructure.database.transactions import Reading, Transaction

AMBIGUOUS_FOR_MS: Final = 3_600_000
"""How long a sighting of two machines with one id counts."""

_insert: Final = postgresql.insert(workers).values({c.name: bindparam(c.name) for c in workers.c})
UPSERT_WORKER: Final = Statement(
    "upsert_worker",
    {
        POSTGRESQL: _insert.on_conflict_do_update(
            index_elements=[workers.c.worker_id],
            # A server's clock that stepped back unsees nobody.
            set_={"seen_at_ms": func.greatest(workers.c.seen_at_ms, _insert.excluded.seen_at_ms)},
        )
    },
)
# Not grouped: a row stays of every process that ever was a worker, and after a reboot each proof asks (R12.3).
SELECT_BOOTS: Final = Statement("select_boots", {POSTGRESQL: read_sql("select_boots.postgresql.sql")})


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot of a machine, as long as its workers were seen."""

    started_at_ms: int
    """When the first of them started, or earlier where more is known."""
    seen_at_ms: int
    """When one of them was seen last."""


def see_worker(transaction: Transaction, *, worker_id: str, machine_id: str, boot_id: str, scope: str) -> None:
    """Note that a worker is there now, by the server's time."""
    now_ms = transaction.now_ms()
    transaction.run(
        UPSERT_WORKER,
        {
            "worker_id": worker_id,
            "machine_id": machine_id,
            "boot_id": boot_id,
            "scope": scope,
            "started_at_ms": now_ms,
            "seen_at_ms": now_ms,
        },
    )


def machine_is_ambiguous(reading: Reading, machine_id: str, *, boot_id: str, began_at_ms: int) -> bool:
    """Tell whether two machines were seen under this id within the last hour; never on SQLite.

    Whoever asks is a sighting, too, of his own boot, and knows when that began: earlier than its first worker.
    """
    if reading.dialect == SQLITE:
        return False
    now_ms = reading.now_ms()
    boots = {
        boot: Boot(started, seen) for boot, started, seen in reading.rows(SELECT_BOOTS, {"machine_id": machine_id})
    }
    own = boots.get(boot_id, Boot(began_at_ms, now_ms))
    boots[boot_id] = Boot(min(own.started_at_ms, began_at_ms), max(own.seen_at_ms, now_ms))
    return two_at_once(boots.values(), since_ms=now_ms - AMBIGUOUS_FOR_MS)


def two_at_once(boots: Iterable[Boot], *, since_ms: int) -> bool:
    """Tell whether a boot was seen, at ``since_ms`` or later, after a later one had started."""
    ordered = sorted(boots, key=lambda boot: boot.started_at_ms)
    # Of those that started later the next one did so first: whoever was seen after any of them was seen after it.
    return any(earlier.seen_at_ms >= max(later.started_at_ms, since_ms) for earlier, later in pairwise(ordered))
