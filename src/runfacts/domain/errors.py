"""
Every error that this library raises on purpose.

* RunfactsError
  + InvalidInput                 what was passed in cannot be used
    - MalformedId                an id is not a UUID in its usual text form
    - MalformedUrl               a database URL cannot be used
    - InvalidSetting             a setting is unknown or out of its bounds (R15)
    - InvalidValue               any other argument is out of its bounds
    - InvalidCursor              a page's cursor is not one of ours
  + NotFound
    - RunNotFound
    - AttemptNotFound
  + Conflict
    - RunVersionConflict         the caller named a version, and another one is current (R4.3)
    - DispatchVersionConflict    an operator named a version of the dispatch, and another one is current (R13.2)
    - RecoveryVersionConflict    an operator named a version of a recovery's claim, and another one is current (R13.2)
    - IdempotencyConflict        the key is used by a Run with another task or policy (R2.11)
    - DedupeConflict             the dedupe key is recorded with another content (R3.4)
    - Contended                  decided anew as often as allowed, and lost each race (R4.3)
  + IllegalTransition            a decision asked for a target that the tables do not have (R2.5)
  + NotAllowed                   a condition of the command does not hold
    - LegacyRun                  another system executes this Run (R2.10)
    - UnknownFactsInRun          the Run has facts of a later release; it can be read, not changed (R3.7)
    - TokenRefused               the token is not the one given at the claim (R2.7)
    - NotAuthenticated           the platform does not say who the caller is (R13.3)
    - AlreadyStarted             a worker is started already, or its last cycle has not ended (R9.3)
    - VerbRefused                an operator's verb does not apply now (R13.2)
    - RebuildOvertaken           another rebuild of the view goes on alone (R14.1)
    - StillRunning               the process seems to run; force says that an operator knows better (R13.2)
  + UnsupportedPlatform          this needs Linux
  + DatabaseError
    - DatabaseUnreachable        it cannot be opened or reached
    - DatabaseReadOnly           it cannot be written
    - DatabaseFull               no room is left for a write
    - DatabaseCorrupt            what is there is no ledger
    - DatabaseBusy               a bounded wait for a lock ran out (R4.4)
    - SchemaTooOld, SchemaTooNew the tables are of another release
    - ForeignMachine             the SQLite ledger belongs to another machine or lies on a network (R5.2)
    - UnsuitableConnection       a caller's connection cannot carry our writes (R4.5)
    - OutcomeUnknown             the connection broke after COMMIT was sent and nobody can be asked (R4.6)
    - ReaderRefused              facts cannot be read in order there (R3.9)
    - CheckpointLost             another fact, or none, is where the checkpoint was taken (R3.9)

Messages are one line, for people, and hold no secret. Fields carry what a program needs.
"""

from __future__ import annotations


class RunfactsError(Exception):
    """The root of all errors of this library."""


class InvalidInput(RunfactsError, ValueError):
    """What was passed in cannot be used. Also a ``ValueError``, as Python has it."""


class MalformedId(InvalidInput):
    """An id is not a UUID in its usual text form."""

    def __init__(self, what: str, value: str) -> None:
        """Name the kind of id and show at most 64 characters of it."""
        self.what = what
        self.value = value
        super().__init__(f"{what} is not a UUID: {value[:64]!r}")


class MalformedUrl(InvalidInput):
    """A database URL cannot be used."""

    def __init__(self, reason: str) -> None:
        """Say why, without the URL: it may hold a password."""
        self.reason = reason
        super().__init__(f"the database URL cannot be used: {reason}")


class InvalidSetting(InvalidInput):
    """A setting is unknown, not a number or out of its bounds (R15)."""

    def __init__(self, name: str, reason: str) -> None:
        """Name the setting and what is wrong with it."""
        self.name = name
        self.reason = reason
        super().__init__(f"setting {name} {reason}")


class InvalidValue(InvalidInput):
    """An argument is out of its bounds."""

    def __init__(self, name: str, reason: str) -> None:
        """Name the argument and what is wrong with it."""
        self.name = name
        self.reason = reason
        super().__init__(f"{name} {reason}")


class InvalidCursor(InvalidInput):
    """A page's cursor is not one that this library gave out."""

    def __init__(self) -> None:
        """Say so; a cursor is opaque."""
        super().__init__("the cursor is not one of a page of this ledger")


class NotFound(RunfactsError):
    """What was asked for is not there."""


class RunNotFound(NotFound):
    """There is no Run of that id."""

    def __init__(self, run_id: str) -> None:
        """Name the Run."""
        self.run_id = run_id
        super().__init__(f"there is no run {run_id}")


class AttemptNotFound(NotFound):
    """There is no Attempt of that id."""

    def __init__(self, attempt_id: str) -> None:
        """Name the Attempt."""
        self.attempt_id = attempt_id
        super().__init__(f"there is no attempt {attempt_id}")


class Conflict(RunfactsError):
    """Something else is recorded than the caller thinks."""


class RunVersionConflict(Conflict):
    """The caller named a version of the Run, and another one is current (R4.3)."""

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        """Name the Run, the version that the caller expected and the one that is recorded."""
        self.run_id = run_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"run {run_id} is at version {actual}, not {expected}")


class DispatchVersionConflict(Conflict):
    """An operator named a version of a Run's dispatch, and another one is current (R13.2)."""

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        """Name the Run, the version that was expected and the one that is recorded (0: there is no dispatch)."""
        self.run_id = run_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"the dispatch of run {run_id} is at version {actual}, not {expected}")


class RecoveryVersionConflict(Conflict):
    """An operator named a version of the claim about a Run's recovery, and another one is current (R13.2)."""

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        """Name the Run, the version that was expected and the one that is recorded (0: there is no claim)."""
        self.run_id = run_id
        self.expected = expected
        self.actual = actual
        super().__init__(f"the recovery of run {run_id} is at version {actual}, not {expected}")


class IdempotencyConflict(Conflict):
    """The idempotency key is used in this project by a Run with another task or policy (R2.11)."""

    def __init__(self, run_id: str, field: str) -> None:
        """Name the Run that has the key and the field that differs."""
        self.run_id = run_id
        self.field = field
        super().__init__(f"the idempotency key is used by run {run_id} with another {field}")


class DedupeConflict(Conflict):
    """The dedupe key is recorded in this Run with another content (R3.4)."""

    def __init__(self, run_id: str, dedupe_key: str) -> None:
        """Name the Run and the key."""
        self.run_id = run_id
        self.dedupe_key = dedupe_key
        super().__init__(f"dedupe key {dedupe_key!r} of run {run_id} is recorded with another content")


class Contended(Conflict):
    """The command was decided anew as often as allowed and lost every race (R4.3). Trying again is safe."""

    def __init__(self, run_id: str, tries: int) -> None:
        """Name the Run and how often the command was decided."""
        self.run_id = run_id
        self.tries = tries
        super().__init__(f"run {run_id} changed during each of {tries} tries")


class IllegalTransition(RunfactsError):
    """A decision asked for a target that the transition table does not have (R2.5)."""

    def __init__(self, aggregate: str, current: str, target: str) -> None:
        """Name the kind of aggregate (run or attempt), its status and the refused one."""
        self.aggregate = aggregate
        self.current = current
        self.target = target
        super().__init__(
            f"{'an' if aggregate == 'attempt' else 'a'} {aggregate} that is {current} cannot become {target}"
        )


class NotAllowed(RunfactsError):
    """A condition of the command does not hold."""


class LegacyRun(NotAllowed):
    """Another system executes this Run; its facts are only kept (R2.10)."""

    def __init__(self, run_id: str) -> None:
        """Name the Run."""
        self.run_id = run_id
        super().__init__(f"run {run_id} is executed by another system")


class UnknownFactsInRun(NotAllowed):
    """The Run has facts of types or versions that this release does not know: it can be read, not changed (R3.7)."""

    def __init__(self, run_id: str, types: tuple[str, ...]) -> None:
        """Name the Run and the types."""
        self.run_id = run_id
        self.types = types
        super().__init__(f"run {run_id} has facts that this release does not know: {', '.join(types)}")


class TokenRefused(NotAllowed):
    """The token is not the one that was given at the claim (R2.7)."""

    def __init__(self, attempt_id: str) -> None:
        """Name the Attempt; never the token."""
        self.attempt_id = attempt_id
        super().__init__(f"the token does not belong to attempt {attempt_id}")


class NotAuthenticated(NotAllowed):
    """The embedding platform does not say who the caller is (R13.3)."""

    def __init__(self, reason: str) -> None:
        """Say why; never the credential."""
        self.reason = reason
        super().__init__(f"the caller is not authenticated: {reason}")


class VerbRefused(NotAllowed):
    """An operator's verb does not apply as things stand (R13.2)."""

    def __init__(self, verb: str, run_id: str, reason: str) -> None:
        """Name the verb, the Run and what stands in the way."""
        self.verb = verb
        self.run_id = run_id
        self.reason = reason
        super().__init__(f"{verb} does not apply to run {run_id}: {reason}")


class StillRunning(NotAllowed):
    """The process seems to run; an operator who knows better says so with ``force`` (R13.2)."""

    def __init__(self, run_id: str) -> None:
        """Name the Run."""
        self.run_id = run_id
        super().__init__(f"the process of run {run_id} is running")


class RebuildOvertaken(NotAllowed):
    """Another rebuild of the same projection began later and goes on alone (R14.1)."""

    def __init__(self, projection: str) -> None:
        """Name the projection."""
        self.projection = projection
        super().__init__(f"another rebuild of {projection} was begun meanwhile; this one has ended")


class AlreadyStarted(NotAllowed):
    """A worker cannot be started: it is, or its last cycle has not ended since it was stopped (R9.3)."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("it runs already, or its last cycle has not ended")


class UnsupportedPlatform(RunfactsError):
    """What was asked for needs Linux."""

    def __init__(self, what: str) -> None:
        """Name what needs it."""
        self.what = what
        super().__init__(f"{what} needs Linux")


class DatabaseError(RunfactsError):
    """The database cannot do what is asked of it."""

    def __init__(self, reason: str) -> None:
        """Say why in one line, without the URL's secrets."""
        self.reason = reason
        super().__init__(reason)


class DatabaseUnreachable(DatabaseError):
    """The database cannot be opened or reached."""


class DatabaseReadOnly(DatabaseError):
    """The database cannot be written."""


class DatabaseFull(DatabaseError):
    """No room is left for a write; nothing was written."""


class DatabaseCorrupt(DatabaseError):
    """What is there is no ledger, or a broken one."""


class DatabaseBusy(DatabaseError):
    """A bounded wait for a lock or a statement ran out; nothing was written (R4.4)."""


class SchemaTooOld(DatabaseError):
    """The tables are of an earlier release and must be migrated."""


class SchemaTooNew(DatabaseError):
    """The tables are of a later release; this one writes nothing to them."""


class ForeignMachine(DatabaseError):
    """The SQLite ledger belongs to another machine or lies on a network file system (R5.2)."""


class UnsuitableConnection(DatabaseError):
    """A caller's connection cannot carry our writes (R4.5)."""


class OutcomeUnknown(DatabaseError):
    """The connection broke after COMMIT was sent, and the database cannot be asked what became of it (R4.6)."""


class ReaderRefused(DatabaseError):
    """Facts cannot be read in order there: a premise of the order does not hold (R3.9)."""

    def __init__(self, premise: str, reason: str) -> None:
        """Name the premise, as ``runfacts doctor`` does, and say what was found."""
        self.premise = premise
        super().__init__(f"facts cannot be read in order: {reason}")


class CheckpointLost(DatabaseError):
    """Another fact, or none, is where the checkpoint was taken: the database is not what it was (R3.9)."""

    def __init__(self, position: int, found: str | None) -> None:
        """Name the position and the hash that is there now, if any."""
        self.position = position
        self.found = found
        super().__init__(
            f"position {position} {'holds no fact any more' if found is None else 'holds another fact'}, not the one of"
            " the checkpoint: the database was restored, or a fail-over lost facts"
        )
