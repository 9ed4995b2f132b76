"""Rows of the tables of recovery: the shapes that the rules know, and what each constraint is to refuse (R11.2)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table

from runfacts.infrastructure.database.recovery_tables import commands, recovery_claims, workers

Row = dict[str, Any]
RUN = "01890000-0000-7000-8000-000000000001"
ATTEMPT = "01890000-0000-7000-8000-00000000000a"
BOOT = "01890000-0000-4000-8000-0000000000ff"
DIGEST = "d" * 64

CLAIM: Row = {
    "purpose": "recovery",
    "kind": "attempt",
    "item_id": ATTEMPT,
    "run_id": RUN,
    "attempt_id": ATTEMPT,
    "executor_type": "local",
    "scope": "",
    "state": "claimed",
    "version": 1,
    "owner": "worker-1",
    "token_digest": DIGEST,
    "claim_expires_at_ms": 31_000,
    "next_claim_at_ms": None,
    "due_at_ms": 31_000,
    "delays": 0,
    "failures": 0,
    "reason": None,
    "seen": None,
    "created_at_ms": 1_000,
    "updated_at_ms": 1_000,
}
BOOT_CLAIM: dict[str, Row] = {
    "sqlite": {"claim_boot_id": BOOT, "claim_expires_boot_ms": 30_000},
    "postgresql": {"claim_boot_id": None, "claim_expires_boot_ms": None},
}
_NOBODY: Row = dict.fromkeys(
    ("owner", "token_digest", "claim_expires_at_ms", "claim_boot_id", "claim_expires_boot_ms", "due_at_ms")
)
AVAILABLE: Row = _NOBODY | {"state": "available", "due_at_ms": 1_000}
RETRY: Row = _NOBODY | {"state": "retry", "next_claim_at_ms": 2_000, "due_at_ms": 2_000, "delays": 1}
MANUAL: Row = _NOBODY | {"state": "manual", "reason": "scope_unserved", "seen": "running"}
RESOLVED: Row = _NOBODY | {"state": "resolved"}
OF_A_RUN: Row = {"purpose": "stop", "kind": "run", "item_id": RUN, "attempt_id": None, "executor_type": ""}

SHAPES: list[Row] = [
    {},
    AVAILABLE,
    RETRY,
    MANUAL,
    RESOLVED,
    OF_A_RUN,
    OF_A_RUN | {"purpose": "retry"} | AVAILABLE,
    # An ownerless Run, or one that was never queued.
    OF_A_RUN | {"purpose": "recovery"} | MANUAL,
    {"scope": "s" * 256, "executor_type": "e" * 200, "owner": "w" * 200},
    MANUAL | {"seen": "s" * 512},
]

WORKER: Row = {
    "worker_id": "worker-1",
    "machine_id": "m" * 32,
    "boot_id": BOOT,
    "scope": "here",
    "started_at_ms": 1_000,
    "seen_at_ms": 1_000,
}
COMMAND: Row = {"run_id": RUN, "argv": "[]", "cwd": "/"}

REFUSED: dict[str, tuple[Table, dict[str, list[Row]]]] = {
    "recovery_claims": (
        recovery_claims,
        {
            "item_id": [{"item_id": "x" * 35}, {"item_id": ""}],
            "run_id": [{"run_id": "x" * 35}],
            "attempt_id": [{"attempt_id": ""}, {"attempt_id": "x" * 37}],
            "token_digest": [{"token_digest": ""}, {"token_digest": "rft_token"}],
            "owner": [{"owner": ""}, {"owner": "w" * 201}],
            "seen": [MANUAL | {"seen": ""}, MANUAL | {"seen": "s" * 513}],
            "version": [{"version": -1}],
            "claim_expires_at_ms": [{"claim_expires_at_ms": -1}],
            "next_claim_at_ms": [RETRY | {"next_claim_at_ms": -1}],
            "due_at_ms": [{"due_at_ms": -1}],
            "delays": [{"delays": -1}],
            "failures": [{"failures": -1}],
            "created_at_ms": [{"created_at_ms": -1}],
            "purpose": [OF_A_RUN | {"purpose": "whim"}],
            "kind": [{"kind": "fact"}, {"purpose": "stop"}, {"purpose": "retry"}],
            "executor_type": [{"executor_type": "e" * 201}],
            "scope": [{"scope": "s" * 257}],
            "state": [RESOLVED | {"state": "sleeping"}, RESOLVED | {"state": ""}],
            "reason": [MANUAL | {"reason": "whim"}],
            "held": [{"owner": None}, AVAILABLE | {"owner": "worker-1"}, RESOLVED | {"owner": "worker-1"}],
            "token": [{"token_digest": None}, RETRY | {"token_digest": DIGEST}],
            "expiry": [{"claim_expires_at_ms": None}, MANUAL | {"claim_expires_at_ms": 5}],
            "next_claim": [RETRY | {"next_claim_at_ms": None}, {"next_claim_at_ms": 5}],
            "due": [{"due_at_ms": None}, AVAILABLE | {"due_at_ms": None}, MANUAL | {"due_at_ms": 5}],
            "manual_reason": [MANUAL | {"reason": None}, {"reason": "unexpected"}],
            "manual_seen": [MANUAL | {"seen": None}, RESOLVED | {"seen": "running"}],
            "attempt": [{"attempt_id": None}],
            "updated": [{"updated_at_ms": 999}],
        },
    ),
    "workers": (
        workers,
        {
            "worker_id": [{"worker_id": ""}, {"worker_id": "w" * 201}],
            "machine_id": [{"machine_id": ""}, {"machine_id": "m" * 257}],
            "boot_id": [{"boot_id": "x"}],
            "scope": [{"scope": ""}, {"scope": "s" * 257}],
            "started_at_ms": [{"started_at_ms": -1}],
            "seen": [{"seen_at_ms": 999}],
        },
    ),
    "commands": (
        commands,
        {
            "cwd": [{"cwd": ""}, {"cwd": "d" * 4_097}],
            # 65,537 letters of two bytes: too long in bytes, not in characters.
            "argv": [{"argv": ""}, {"argv": "x" * 131_073}, {"argv": "é" * 65_537}],
        },
    ),
}
REFUSED_BY_SQLITE: dict[str, dict[str, list[Row]]] = {
    "recovery_claims": {
        "claim_boot_id": [{"claim_boot_id": "x"}],
        "claim_expires_boot_ms": [{"claim_expires_boot_ms": -1}],
        "boot_claim": [
            {"claim_boot_id": None},
            {"claim_expires_boot_ms": None},
            AVAILABLE | {"claim_boot_id": BOOT},
            RETRY | {"claim_expires_boot_ms": 5},
        ],
    },
}
REFUSED_BY_POSTGRESQL: dict[str, dict[str, list[Row]]] = {
    "recovery_claims": {
        "no_boot_claim": [{"claim_boot_id": BOOT, "claim_expires_boot_ms": 1}, {"claim_expires_boot_ms": 1}],
    },
}
