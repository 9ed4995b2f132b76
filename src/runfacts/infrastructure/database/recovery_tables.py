"""
The tables of recovery: claims, the workers of a ledger, and the commands of Runs that workers may host.

``recovery_claims`` has one row per purpose and item (R11.2). ``due_at_ms`` is when somebody should look at the row
next; null when it waits for an operator or is resolved. For recovery of an Attempt the same time stands in its
execution (``recover_at_ms``), by whose index such items are found.

``workers`` is what a reboot's proof needs on PostgreSQL: which boots of which machine were seen, and when (R8.3).

``commands`` holds what queued Runs are to run (R12.1): never in facts, gone when the Run ends.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ForeignKey, Index, PrimaryKeyConstraint, Table, and_, func, or_

from runfacts.domain.recovery.claims import ClaimState, ItemKind, ManualReason, Purpose
from runfacts.domain.stored_commands import COMMAND_MAX, DIRECTORY_MAX
from runfacts.domain.texts import KEY_MAX, NAME_MAX
from runfacts.infrastructure.database.columns import (
    among,
    at_least,
    boot_times,
    check,
    exactly_when,
    lengths,
    number,
    optional,
    optional_number,
    or_null,
    required,
    texts,
)
from runfacts.infrastructure.database.dialects import identifier, octets
from runfacts.infrastructure.database.tables import DIGEST_LENGTH, UUID_LENGTH, metadata, runs

SEEN_MAX: Final = 512

recovery_claims: Final = Table(
    "recovery_claims",
    metadata,
    required("purpose"),
    required("kind"),
    required("item_id"),
    Column("run_id", identifier(), ForeignKey(runs.c.run_id), nullable=False),
    optional("attempt_id"),
    required("executor_type"),
    required("scope"),
    required("state"),
    number("version"),
    optional("owner"),
    optional("token_digest"),
    optional_number("claim_expires_at_ms"),
    optional("claim_boot_id"),
    optional_number("claim_expires_boot_ms"),
    optional_number("next_claim_at_ms"),
    optional_number("due_at_ms"),
    number("delays"),
    number("failures"),
    optional("reason"),
    optional("seen"),
    number("created_at_ms"),
    number("updated_at_ms"),
    PrimaryKeyConstraint("purpose", "kind", "item_id"),
    sqlite_strict=True,
)
"""Who finds out about which item, until when, and what came of it last. ``seen``: the snapshot of a manual verdict."""

_c = recovery_claims.c
IS_DUE_SOMETIME: Final = _c.due_at_ms.is_not(None)
IS_CLAIMED: Final = among(_c.state, [ClaimState.CLAIMED])
IS_MANUAL: Final = among(_c.state, [ClaimState.MANUAL])
IS_RETRY: Final = among(_c.state, [ClaimState.RETRY])
IS_WAITING: Final = among(_c.state, [ClaimState.AVAILABLE, ClaimState.CLAIMED, ClaimState.RETRY])

Index(
    "ix_recovery_claims_due",
    _c.purpose,
    _c.executor_type,
    _c.scope,
    _c.due_at_ms,
    _c.item_id,
    sqlite_where=IS_DUE_SOMETIME,
    postgresql_where=IS_DUE_SOMETIME,
)
# The queue of operators (R13.1).
Index(
    "ix_recovery_claims_manual",
    _c.updated_at_ms,
    _c.item_id,
    # One Run may be the item of several purposes.
    _c.purpose,
    sqlite_where=IS_MANUAL,
    postgresql_where=IS_MANUAL,
)
# What stands about a Run (show, list), and the rows that end with it.
Index("ix_recovery_claims_run_id", _c.run_id)

lengths(recovery_claims, UUID_LENGTH, "item_id", "run_id", "attempt_id", "claim_boot_id")
lengths(recovery_claims, DIGEST_LENGTH, "token_digest")
texts(recovery_claims, owner=NAME_MAX, seen=SEEN_MAX)
at_least(
    recovery_claims,
    0,
    "version",
    "claim_expires_at_ms",
    "claim_expires_boot_ms",
    "next_claim_at_ms",
    "due_at_ms",
    "delays",
    "failures",
    "created_at_ms",
)
check(
    recovery_claims,
    purpose=among(_c.purpose, Purpose),
    kind=or_(
        and_(among(_c.kind, [ItemKind.ATTEMPT]), among(_c.purpose, [Purpose.RECOVERY])),
        among(_c.kind, [ItemKind.RUN]),
    ),
    # A Run that never had an Attempt has no executor type.
    executor_type=func.length(_c.executor_type) <= NAME_MAX,
    scope=func.length(_c.scope) <= KEY_MAX,
    state=among(_c.state, ClaimState),
    reason=or_null(_c.reason, among(_c.reason, ManualReason)),
    held=exactly_when(IS_CLAIMED, _c.owner),
    token=exactly_when(IS_CLAIMED, _c.token_digest),
    expiry=exactly_when(IS_CLAIMED, _c.claim_expires_at_ms),
    next_claim=exactly_when(IS_RETRY, _c.next_claim_at_ms),
    due=exactly_when(IS_WAITING, _c.due_at_ms),
    manual_reason=exactly_when(IS_MANUAL, _c.reason),
    manual_seen=exactly_when(IS_MANUAL, _c.seen),
    attempt=or_(among(_c.kind, [ItemKind.RUN]), _c.attempt_id.is_not(None)),
    updated=_c.updated_at_ms >= _c.created_at_ms,
)
boot_times(recovery_claims, "boot_claim", "claim_boot_id", "claim_expires_boot_ms", when=IS_CLAIMED)

workers: Final = Table(
    "workers",
    metadata,
    Column("worker_id", identifier(), primary_key=True),
    required("machine_id"),
    required("boot_id"),
    required("scope"),
    number("started_at_ms"),
    number("seen_at_ms"),
    sqlite_strict=True,
)
"""Worker incarnations on PostgreSQL, with the machine and the boot that each runs on (R8.3). Empty on SQLite."""
# The boots of a machine, and of each when it began and when it was seen last.
for _column in (workers.c.started_at_ms, workers.c.seen_at_ms):
    Index(f"ix_workers_boot_{_column.name}", workers.c.machine_id, workers.c.boot_id, _column)
lengths(workers, UUID_LENGTH, "boot_id")
texts(workers, worker_id=NAME_MAX, machine_id=KEY_MAX, scope=KEY_MAX)
at_least(workers, 0, "started_at_ms")
check(workers, seen=workers.c.seen_at_ms >= workers.c.started_at_ms)

commands: Final = Table(
    "commands",
    metadata,
    Column(
        "run_id",
        identifier(),
        # Deferred: it is written before its Run in the command that makes both (R4.4).
        ForeignKey(runs.c.run_id, deferrable=True, initially="DEFERRED"),
        primary_key=True,
    ),
    required("argv"),
    required("cwd"),
    sqlite_strict=True,
)
"""What a Run is to run: ``argv`` as a JSON list of texts, and the directory. No environment (R12.1)."""
texts(commands, cwd=DIRECTORY_MAX)
check(commands, argv=octets(commands.c.argv).between(2, COMMAND_MAX))
