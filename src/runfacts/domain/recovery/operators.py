"""
What operators see and do about recovery (R13).

Whatever no program can decide waits for a person, with a diagnosis in words: what was recorded, what was seen, what it
means and what can be done. So does what nobody looks at at all, because no worker of its scope runs. Each verb needs an
actor, a reason and the version of the claim's row; saying the same again gives the first answer, saying something else
is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from runfacts.domain.cancellation.dispatch import verb_key
from runfacts.domain.history import History
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.recovery.claims import ItemKind, ManualReason, Purpose, RecoveryKey

RELEASE: Final = "release"
ATTEST: Final = "attest-not-running"

RETRIED: Final = frozenset({RunStatus.LOST, RunStatus.RETRY_WAIT})
"""Run statuses that the retry authority moves on (R12.1)."""


@dataclass(frozen=True, slots=True)
class ManualRecovery:
    """Something about a Run that waits for an operator (R13.1)."""

    run_id: str
    attempt_id: str | None
    reason: str
    since_ms: int
    """Since when it waits for an operator, or for anybody where nobody serves its scope."""
    diagnosis: str
    version: int
    """The claim row's, which ``release`` and ``attest_not_running`` take; 0 where there is no row."""
    purpose: Purpose
    """What is to be found out: whether it runs, whether it has stopped, whether it may be tried again."""
    run_version: int
    """The Run's, which ``confirm_stopped`` takes."""


@dataclass(frozen=True, slots=True)
class Released:
    """Workers look at it again (R13.2). ``version`` is the claim row's."""

    run_id: str
    purpose: Purpose
    version: int


@dataclass(frozen=True, slots=True)
class AttestedLost:
    """Attempt and Run are lost on an operator's word (R13.2). ``version`` is the claim row's."""

    run_id: str
    attempt_id: str | None
    status: RunStatus
    version: int


def item_of(history: History) -> RecoveryKey:
    """Give what a claim about the Run as it is now would be for: at most one row matters at a time.

    Whoever was asked to stop is stopped, not recovered (R12.2); what is lost or waits is tried again or not (R12.1);
    anything else is recovered (R11.1).
    """
    run = history.run
    if run.intent is not None:
        return RecoveryKey(Purpose.STOP, ItemKind.RUN, run.id)
    if run.status in RETRIED:
        return RecoveryKey(Purpose.RETRY, ItemKind.RUN, run.id)
    attempt = history.active_attempt
    if attempt is not None:
        return RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, attempt.id)
    return RecoveryKey(Purpose.RECOVERY, ItemKind.RUN, run.id)


def release_key(item: RecoveryKey, version: int) -> str:
    """The dedupe key of a release (R7.4)."""
    return verb_key(RELEASE, f"{item.purpose.value}:{item.item_id}", version)


def attest_key(item: RecoveryKey, version: int) -> str:
    """The dedupe key of an attestation (R7.4)."""
    return verb_key(ATTEST, item.item_id, version)


def items_ever(history: History) -> Iterator[RecoveryKey]:
    """Give every item that a claim about the Run may have been for: a verb is known again after things moved on."""
    for attempt_id in history.attempts:
        yield RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, attempt_id)
    for purpose in Purpose:
        yield RecoveryKey(purpose, ItemKind.RUN, history.run_id)


def diagnosis(purpose: Purpose, kind: ItemKind, reason: ManualReason) -> str:
    """Say what was recorded, what was seen, what it means and what can be done (R13.1)."""
    if reason is ManualReason.STUCK_CREATED:
        return _STUCK_CREATED
    return f"{_RECORDED[purpose, kind]} {_SEEN[reason]} {_TO_DO[purpose, kind]}"


UNSERVED: Final[Mapping[Purpose, str]] = MappingProxyType(
    {
        Purpose.RECOVERY: (
            "The attempt's lease expired long ago, and no worker of its executor type has looked what became of it. The"
            " machine may be off, or no worker runs there: it may run or not. Start a worker there; or, if you know"
            " that nothing of the run is left, attest-not-running."
        ),
        Purpose.STOP: (
            "The run was asked to stop, and no worker of its attempt's executor type has looked whether it did. The"
            " machine may be off, or no worker runs there: it may run or not. Start a worker there; or, if you know"
            " that nothing of the run is left, confirm-stopped with the run's version."
        ),
        Purpose.RETRY: (
            "The run is lost or its retry is due, and no worker that could move it on has come: none of its executor"
            " type or, where something of the try before may be left, none of that try's own machine. Start one; or"
            " cancel the run."
        ),
    }
)
"""What an operator is told of what nobody looks at (R8.2)."""

_STUCK_CREATED: Final = (
    "The run was created long ago and never queued: whoever created it has most likely gone in between. It has no"
    " attempt and nothing of it runs. Queue it if it is still wanted, else cancel it."
)
_RECORDED: Final[Mapping[tuple[Purpose, ItemKind], str]] = MappingProxyType(
    {
        (Purpose.RECOVERY, ItemKind.ATTEMPT): "The attempt's lease has expired and no end of it is recorded.",
        (Purpose.RECOVERY, ItemKind.RUN): "The run is recorded as under way, and no attempt of it is.",
        (Purpose.STOP, ItemKind.RUN): "The run was asked to stop and no end of it is recorded.",
        (Purpose.RETRY, ItemKind.RUN): "The run is lost or waits to be tried again.",
    }
)
_SEEN: Final[Mapping[ManualReason, str]] = MappingProxyType(
    {
        ManualReason.INCONSISTENT: (
            "Run and attempt contradict each other, so that neither can be believed and nothing was changed; `runfacts"
            " verify` and the audit trail say more."
        ),
        ManualReason.IDENTITY_UNVERIFIABLE: (
            "What is on the machine now cannot be told from a stranger, or cannot be seen from the worker that looked:"
            " it may run or not."
        ),
        ManualReason.CONFLICTING_EVIDENCE: (
            "What was seen of its processes contradicts itself or what was recorded: it may run or not."
        ),
        ManualReason.SCOPE_UNSERVED: (
            "No worker of the attempt's own scope has come for a long time, and the one from elsewhere that looked can"
            " prove nothing from there. The machine may be off, or no worker runs there: it may run or not."
        ),
        ManualReason.FAILURE_LIMIT: (
            "Looking at it failed as often in a row as allowed, or the workers that looked died: nothing is known. The"
            " workers' logs and `runfacts doctor` say more."
        ),
        ManualReason.UNEXPECTED: "What was found fits no rule, so that nothing was changed.",
    }
)
_TO_DO: Final[Mapping[tuple[Purpose, ItemKind], str]] = MappingProxyType(
    {
        (Purpose.RECOVERY, ItemKind.ATTEMPT): (
            "Look on the machine: if nothing of the run is left, attest-not-running; where a worker can tell by now,"
            " release."
        ),
        (Purpose.RECOVERY, ItemKind.RUN): (
            "If nothing of the run is left, cancel ends it, and where its last attempt is lost attest-not-running does;"
            " where the cause is removed, release."
        ),
        (Purpose.STOP, ItemKind.RUN): (
            "Look on the machine: if nothing of the run is left, confirm-stopped with the run's version; where a worker"
            " can tell by now, release."
        ),
        (Purpose.RETRY, ItemKind.RUN): (
            "A new try must not run beside what is left of the one before: end that on the machine, then release; or"
            " cancel the run."
        ),
    }
)
