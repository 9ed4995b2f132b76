"""What goes in and out, as JSON."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from runfacts import Fact, Page, RunSummary, RunView


class Submission(BaseModel):
    """What a caller wants to run: a job of the service's list, never a command of the caller's own."""

    model_config = ConfigDict(extra="forbid")

    job: str
    retries: Annotated[int, Field(ge=0, le=15)] = 0
    timeout_ms: Annotated[int, Field(ge=1_000)] | None = None


class Stop(BaseModel):
    """A request to stop a Run."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=200)] | None = None
    version: int | None = None
    """The Run's version that the caller has seen; with another one current, nothing is asked (R4.3)."""


class Attempt(BaseModel):
    """One attempt of a Run."""

    number: int
    status: str
    exit_code: int | None
    signal: int | None


class Progress(BaseModel):
    """How far a request to stop has come: asked, delivered and stopped are three things (R6.2)."""

    requested_at_ms: int
    requested_by: str | None
    reason: str | None
    delivery: str | None
    """Where its delivery stands; null where there was nothing to deliver."""
    deliveries: int
    """How often somebody has set out to deliver it."""
    stopped: bool
    """Whether the Run has ended: by its own report, by its receipt, or on proof."""


class Run(BaseModel):
    """One Run as it stands."""

    run_id: str
    job: str
    status: str
    version: int
    attempts: list[Attempt]

    @classmethod
    def of(cls, run: RunView) -> Run:
        """Shape a Run."""
        attempts = [
            Attempt(number=item.number, status=item.status, exit_code=item.exit_code, signal=item.signal)
            for item in run.attempts
        ]
        return cls(run_id=run.run_id, job=run.task, status=run.status, version=run.version, attempts=attempts)


class Line(BaseModel):
    """A Run in a list."""

    run_id: str
    job: str
    status: str
    stop_requested: bool


class Lines(BaseModel):
    """A page of Runs, newest first; ``next`` is the ``after`` of the following one."""

    items: list[Line]
    next: str | None

    @classmethod
    def of(cls, page: Page[RunSummary]) -> Lines:
        """Shape a page."""
        items = [
            Line(run_id=run.run_id, job=run.task, status=run.status, stop_requested=run.intent_at_ms is not None)
            for run in page.items
        ]
        return cls(items=items, next=page.next)


class Entry(BaseModel):
    """A fact in the audit trail."""

    run_id: str
    sequence: int
    type: str
    recorded_at_ms: int
    actor_type: str
    actor: str | None
    payload: dict[str, object]


class Trail(BaseModel):
    """A page of the audit trail, oldest first."""

    items: list[Entry]
    next: str | None

    @classmethod
    def of(cls, page: Page[Fact]) -> Trail:
        """Shape a page."""
        items = [
            Entry(
                run_id=fact.run_id,
                sequence=fact.sequence,
                type=fact.type,
                recorded_at_ms=fact.recorded_at_ms,
                actor_type=fact.actor.type,
                actor=fact.actor.id,
                payload=json.loads(fact.payload_text),
            )
            for fact in page.items
        ]
        return cls(items=items, next=page.next)
