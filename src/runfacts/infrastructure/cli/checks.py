"""
What ``doctor`` looks at (R4.4, R5, R8.2, R8.3).

Every check says in words what it has seen. A database that cannot be opened is a check that is not ok, with the
machine still looked at; a URL that cannot be understood is the caller's mistake and goes up. Nothing is written and
nothing is made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runfacts.domain.errors import DatabaseError, InvalidValue, UnsupportedPlatform
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import EvidenceTarget
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import Invocation
from runfacts.infrastructure.database import opening, ownership, schema
from runfacts.infrastructure.database.catalogue import count_unknown_types, server_version
from runfacts.infrastructure.database.clocks import SystemClock
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.defences import defences
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.engines import parse_url, sqlite_path
from runfacts.infrastructure.evidence import EvidenceRegistry
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity, lasting_machine_id
from runfacts.infrastructure.processes.on_a_ledger import local_provider, machine_is_ambiguous
from runfacts.infrastructure.processes.places import RECEIPT_SUFFIX
from runfacts.infrastructure.processes.proofs import proofs
from runfacts.infrastructure.processes.receipts import QUARANTINED_SUFFIX
from runfacts.infrastructure.stores.cancellation_queue import read_cancellation_queue

_MIB: Final = 1 << 20
_CLOCKS_MAY_DIFFER_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


def look(invocation: Invocation) -> tuple[Check, ...]:
    """Look at everything."""
    return (*_of_the_database(invocation), *_of_this_machine(invocation))


def _of_the_database(invocation: Invocation) -> Iterator[Check]:
    missing = _before_first_use(invocation)
    if missing is not None:
        yield missing
        return
    try:
        database = opening.connect(invocation.url, wal_limit_bytes=invocation.settings.wal_limit_bytes)
    except (DatabaseError, UnsupportedPlatform) as error:
        yield Check("database", ok=False, detail=str(error))
        return
    try:
        try:
            found = schema.compare(database)
        except DatabaseError as error:
            yield Check("database", ok=False, detail=str(error))
            return
        yield Check("database", ok=True, detail=_where(database))
        up_to_date = found.revision == found.head
        yield Check(
            "schema",
            ok=up_to_date,
            detail=f"{found.revision}, the one of this release"
            if up_to_date
            else f"{found.revision or 'there is none'}, this release needs {found.head}: run `runfacts migrate`",
        )
        if up_to_date:
            try:
                yield from _of_the_ledger(invocation, database)
            except DatabaseError as error:
                yield Check("ledger", ok=False, detail=str(error))
    finally:
        database.close()


def _before_first_use(invocation: Invocation) -> Check | None:
    """Look at where a SQLite ledger would be; None where there is something, or a server to be asked.

    The user's own ledger is made by the first command that needs one, so that there is none yet is no illness. One that
    was named is missed: its name may be wrong.
    """
    url = parse_url(invocation.url)
    if url.get_backend_name() != SQLITE:
        return None
    path = sqlite_path(url)
    if os.path.lexists(path):
        return None
    try:
        ownership.refuse_new_on_network(path)
    except DatabaseError as error:
        return Check("database", ok=False, detail=str(error))
    none = f"there is no ledger at {path}"
    if not invocation.uses_own_database:
        return Check("database", ok=False, detail=f"{none}: is the name right? `runfacts migrate` makes one there")
    nearest = next(parent for parent in path.parents if os.path.lexists(parent))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check("database", ok=False, detail=f"{none}, and none can be made: {nearest} cannot be written")
    detail = f"{none} yet; the first command that needs it, such as `runfacts exec`, makes it"
    return Check("database", ok=True, detail=detail)


def _of_the_ledger(invocation: Invocation, database: Database) -> Iterator[Check]:
    for defence in defences(database):
        yield Check(defence.name, ok=defence.ok, detail=defence.detail)
    ledger = Ledger(database, invocation.settings, invocation.machine_id)
    if database.dialect == SQLITE:
        yield _owner(database, invocation)
        yield _wal(database, invocation)
    else:
        yield _clock_difference(database)
    yield _unknown_types(database)
    yield from _projections(ledger)
    yield _receipts(Path(ledger.places().directory))
    yield _cancellations(ledger)
    yield _recoveries(ledger)
    yield from _evidence(ledger)


def _where(database: Database) -> str:
    url = database.engine.url
    place = str(sqlite_path(url)) if database.dialect == SQLITE else f"database {url.database or 'of the role'}"
    with database.reading() as reading:
        return f"{server_version(reading)}, {place}"


def _owner(database: Database, invocation: Invocation) -> Check:
    machine_id = lasting_machine_id(invocation.machine_id)
    refusal = ownership.foreign(database, machine_id)
    if refusal is not None:
        return Check("owner", ok=False, detail=str(refusal))
    bound = "this machine" if ownership.owner(database) is not None else "no machine yet: it has none that lasts"
    return Check("owner", ok=True, detail=f"the ledger belongs to {bound}")


def _wal(database: Database, invocation: Invocation) -> Check:
    limit = invocation.settings.wal_limit_bytes
    try:
        size = os.stat(f"{sqlite_path(database.engine.url)}-wal").st_size  # noqa: PTH116 - a sibling by its suffix
    except FileNotFoundError:
        size = 0
    seen = f"{size / _MIB:.1f} MiB of at most {limit / _MIB:.0f}"
    if size <= limit:
        return Check("wal", ok=True, detail=seen)
    return Check(
        "wal",
        ok=False,
        detail=f"{seen}: checkpoint starvation, a reader that stays open keeps SQLite from using the log again",
    )


def _clock_difference(database: Database) -> Check:
    before = time.time_ns()
    with database.reading() as reading:
        there_ms = reading.now_ms()
    here_ms = (before + time.time_ns()) // 2_000_000
    apart = there_ms - here_ms
    detail = f"the server's clock, which decides, is {apart} ms from this machine's"
    return Check("server clock", ok=abs(apart) <= _CLOCKS_MAY_DIFFER_MS, detail=detail)


def _unknown_types(database: Database) -> Check:
    with database.reading() as reading:
        unknown = count_unknown_types(reading)
    if not unknown:
        return Check("fact types", ok=True, detail="all are known to this release")
    names = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
    return Check("fact types", ok=False, detail=f"of a later release: {names}; their runs can be read, not changed")


def _projections(ledger: Ledger) -> Iterator[Check]:
    for health in ledger.projections():
        lag_s = health.lag.ms / 1_000
        behind = f"{output.counted(health.lag.facts, 'fact')} behind, the oldest of {lag_s:.0f} s ago"
        detail = behind if health.lag.facts else "has every fact"
        if health.unknown:
            detail += (
                f"; {health.unknown} of types unknown then are left out: rebuild it with a release that knows them"
            )
        if health.set_aside:
            detail += f"; {health.set_aside} set aside: see `runfacts rebuild {health.projection} --set-aside`"
        yield Check(
            f"projection {health.projection}",
            # Behind is no illness: whoever reads it brings it up to date.
            ok=not health.set_aside,
            detail=detail,
        )


def _receipts(directory: Path) -> Check:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only
    except FileNotFoundError:
        return Check("receipts", ok=True, detail=f"none; {directory} is made by the first `runfacts exec`")
    except OSError as error:
        return Check("receipts", ok=False, detail=f"{directory} cannot be read: {error.strerror}")
    waiting = sum(name.endswith(RECEIPT_SUFFIX) for name in names)
    aside = sum(name.endswith(QUARANTINED_SUFFIX) for name in names)
    detail = f"{waiting} wait to be recorded, {aside} could not be believed and were set aside, in {directory}"
    return Check("receipts", ok=not aside, detail=detail)


def _cancellations(ledger: Ledger) -> Check:
    with ledger.database.reading() as reading:
        states = read_cancellation_queue(reading)
    if not states:
        return Check("cancellations", ok=True, detail="no run that was asked to stop is still under way")
    runs = output.counted(sum(state.count for state in states.values()), "run")
    oldest_s = max(state.oldest_age_ms for state in states.values()) // 1_000
    detail = f"{runs} asked to stop and not ended, the oldest request {oldest_s} s ago"
    if ledger.blocked(limit=1).items:
        return Check("cancellations", ok=False, detail=f"{detail}; some wait for an operator: see `runfacts blocked`")
    return Check("cancellations", ok=True, detail=detail)


def _recoveries(ledger: Ledger) -> Check:
    waiting = ledger.manual(limit=1).items
    if not waiting:
        return Check("recoveries", ok=True, detail="no run waits for an operator to say what became of it")
    since_ms = waiting[0].since_ms
    with ledger.database.reading() as reading:
        oldest_s = max(0, reading.now_ms() - since_ms) // 1_000
    detail = f"some runs wait for an operator, the first for {oldest_s} s: see `runfacts manual`"
    return Check("recoveries", ok=False, detail=detail)


def _evidence(ledger: Ledger) -> Iterator[Check]:
    try:
        machine = ledger.machine()
    except (UnsupportedPlatform, InvalidValue):
        return  # said of the machine
    if ledger.database.dialect != SQLITE:
        two = machine_is_ambiguous(ledger.database, machine)
        seen = "another one goes by this machine's id: a reboot proves nothing" if two else "nobody else has its id"
        yield Check("one machine", ok=not two, detail=f"{seen}, as far as its workers were seen in the last hour")
    registry = EvidenceRegistry(
        [local_provider(ledger.database, machine)], timeout_ms=ledger.settings.evidence_timeout_ms
    )
    registry.inspect(_oneself(machine))
    hanging = ", ".join(found.executor_type for found in registry.hanging())
    if hanging:
        limit_s = registry.timeout_ms / 1_000
        yield Check("evidence", ok=False, detail=f"the provider of {hanging} does not answer within {limit_s:g} s")
    else:
        yield Check("evidence", ok=True, detail=f"the provider of {', '.join(registry.executor_types)} answers in time")


def _oneself(machine: MachineIdentity) -> EvidenceTarget:
    """Give this very process as something to be looked for."""
    handle = ProcessHandle.of(os.getpid(), machine)
    status, scope = AttemptStatus.RUNNING, machine.scope
    return EvidenceTarget(
        "", "", status, EXECUTOR_TYPE, scope, None, handle.encode(), handle.pid, lease_expires_at_ms=0
    )


def _of_this_machine(invocation: Invocation) -> Iterator[Check]:
    try:
        boot_id = SystemClock().boot_id()
    except UnsupportedPlatform as error:
        yield Check("clocks", ok=False, detail=str(error))
    else:
        yield Check("clocks", ok=True, detail=f"leases are kept by the boot clock of boot {boot_id}")
    for proof in proofs(invocation.machine_id):
        yield Check(proof.name, ok=proof.ok, detail=proof.detail)
