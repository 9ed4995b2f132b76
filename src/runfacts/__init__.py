"""
runfacts: what happened to every Run and Attempt, as append-only facts.

``Ledger.open(url)`` is the way in; ``README.md`` has an example and ``docs/api.md`` the guide. Names are loaded when
they are first used, so that importing the package, which pytest does for every user of the plugin, costs next to
nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runfacts.domain.actors import Actor, ActorType
    from runfacts.domain.answers import (
        AlreadyCreated,
        AttemptClaim,
        Claimed,
        Created,
        Finished,
        LateCallback,
        NotClaimable,
        NotQueued,
        Recorded,
        RenewalRefused,
        Renewed,
        Repeated,
        Started,
        StartRefused,
        StopNotProven,
    )
    from runfacts.domain.authentication import Authenticator, authenticated
    from runfacts.domain.decisions import Refusal
    from runfacts.domain.errors import (
        AttemptNotFound,
        CheckpointLost,
        Conflict,
        Contended,
        DatabaseBusy,
        DatabaseCorrupt,
        DatabaseError,
        DatabaseFull,
        DatabaseReadOnly,
        DatabaseUnreachable,
        DedupeConflict,
        ForeignMachine,
        IdempotencyConflict,
        IllegalTransition,
        InvalidCursor,
        InvalidInput,
        InvalidSetting,
        InvalidValue,
        LegacyRun,
        MalformedId,
        MalformedUrl,
        NotAllowed,
        NotAuthenticated,
        NotFound,
        OutcomeUnknown,
        ReaderRefused,
        RunfactsError,
        RunNotFound,
        RunVersionConflict,
        SchemaTooNew,
        SchemaTooOld,
        TokenRefused,
        UnknownFactsInRun,
        UnsuitableConnection,
        UnsupportedPlatform,
    )
    from runfacts.domain.facts import Fact, UnknownPayload
    from runfacts.domain.feeds import Checkpoint, FeedHealth, FeedPage, Waiting
    from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
    from runfacts.domain.limits import Settings
    from runfacts.domain.outcomes import Outcome
    from runfacts.domain.payload_parts import OutcomeKind
    from runfacts.domain.retry import RetryPolicy, Safety
    from runfacts.domain.views import (
        AttemptView,
        CancellationView,
        Difference,
        ExecutionView,
        Head,
        LeaseState,
        Page,
        RunSummary,
        RunView,
        VerifyReport,
    )
    from runfacts.infrastructure.api.feed import Following
    from runfacts.infrastructure.ledger import Ledger
    from runfacts.infrastructure.telemetry.opentelemetry_measures import OpenTelemetryMeasures

__all__ = [
    "Actor",
    "ActorType",
    "AlreadyCreated",
    "AttemptClaim",
    "AttemptNotFound",
    "AttemptStatus",
    "AttemptView",
    "Authenticator",
    "CancellationView",
    "Checkpoint",
    "CheckpointLost",
    "Claimed",
    "Conflict",
    "Contended",
    "Created",
    "DatabaseBusy",
    "DatabaseCorrupt",
    "DatabaseError",
    "DatabaseFull",
    "DatabaseReadOnly",
    "DatabaseUnreachable",
    "DedupeConflict",
    "Difference",
    "ExecutionOwner",
    "ExecutionView",
    "Fact",
    "FeedHealth",
    "FeedPage",
    "Finished",
    "Following",
    "ForeignMachine",
    "Head",
    "IdempotencyConflict",
    "IllegalTransition",
    "IntentKind",
    "InvalidCursor",
    "InvalidInput",
    "InvalidSetting",
    "InvalidValue",
    "LateCallback",
    "LeaseState",
    "Ledger",
    "LegacyRun",
    "MalformedId",
    "MalformedUrl",
    "NotAllowed",
    "NotAuthenticated",
    "NotClaimable",
    "NotFound",
    "NotQueued",
    "OpenTelemetryMeasures",
    "Outcome",
    "OutcomeKind",
    "OutcomeUnknown",
    "Page",
    "ReaderRefused",
    "Recorded",
    "Refusal",
    "RenewalRefused",
    "Renewed",
    "Repeated",
    "RetryPolicy",
    "RunNotFound",
    "RunStatus",
    "RunSummary",
    "RunVersionConflict",
    "RunView",
    "RunfactsError",
    "Safety",
    "SchemaTooNew",
    "SchemaTooOld",
    "Settings",
    "StartRefused",
    "Started",
    "StopNotProven",
    "TokenRefused",
    "UnknownFactsInRun",
    "UnknownPayload",
    "UnsuitableConnection",
    "UnsupportedPlatform",
    "VerifyReport",
    "Waiting",
    "authenticated",
]

_NAMES_BY_MODULE = {
    "runfacts.domain.actors": (
        "Actor",
        "ActorType",
    ),
    "runfacts.domain.answers": (
        "AlreadyCreated",
        "AttemptClaim",
        "Claimed",
        "Created",
        "Finished",
        "LateCallback",
        "NotClaimable",
        "NotQueued",
        "Recorded",
        "RenewalRefused",
        "Renewed",
        "Repeated",
        "StartRefused",
        "Started",
        "StopNotProven",
    ),
    "runfacts.domain.authentication": (
        "Authenticator",
        "authenticated",
    ),
    "runfacts.domain.decisions": ("Refusal",),
    "runfacts.domain.errors": (
        "AttemptNotFound",
        "CheckpointLost",
        "Conflict",
        "Contended",
        "DatabaseBusy",
        "DatabaseCorrupt",
        "DatabaseError",
        "DatabaseFull",
        "DatabaseReadOnly",
        "DatabaseUnreachable",
        "DedupeConflict",
        "ForeignMachine",
        "IdempotencyConflict",
        "IllegalTransition",
        "InvalidCursor",
        "InvalidInput",
        "InvalidSetting",
        "InvalidValue",
        "LegacyRun",
        "MalformedId",
        "MalformedUrl",
        "NotAllowed",
        "NotAuthenticated",
        "NotFound",
        "OutcomeUnknown",
        "ReaderRefused",
        "RunNotFound",
        "RunVersionConflict",
        "RunfactsError",
        "SchemaTooNew",
        "SchemaTooOld",
        "TokenRefused",
        "UnknownFactsInRun",
        "UnsuitableConnection",
        "UnsupportedPlatform",
    ),
    "runfacts.domain.facts": (
        "Fact",
        "UnknownPayload",
    ),
    "runfacts.domain.feeds": (
        "Checkpoint",
        "FeedHealth",
        "FeedPage",
        "Waiting",
    ),
    "runfacts.domain.lifecycle": (
        "AttemptStatus",
        "ExecutionOwner",
        "IntentKind",
        "RunStatus",
    ),
    "runfacts.domain.limits": ("Settings",),
    "runfacts.domain.outcomes": ("Outcome",),
    "runfacts.domain.payload_parts": ("OutcomeKind",),
    "runfacts.domain.retry": (
        "RetryPolicy",
        "Safety",
    ),
    "runfacts.domain.views": (
        "AttemptView",
        "CancellationView",
        "Difference",
        "ExecutionView",
        "Head",
        "LeaseState",
        "Page",
        "RunSummary",
        "RunView",
        "VerifyReport",
    ),
    "runfacts.infrastructure.api.feed": ("Following",),
    "runfacts.infrastructure.ledger": ("Ledger",),
    "runfacts.infrastructure.telemetry.opentelemetry_measures": ("OpenTelemetryMeasures",),
}
_HOMES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    """Load a public name from its home when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
