"""Work for whoever hosts: Runs that are queued with the command that they are to run (R12.1)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AlreadyCreated, Created
from runfacts.domain.errors import InvalidCursor, MalformedId
from runfacts.domain.ids import canonical_id
from runfacts.domain.retry import RetryPolicy
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.views import Page
from runfacts.infrastructure.api.run_commands import RunCommands
from runfacts.infrastructure.commands import Caller
from runfacts.infrastructure.stores.run_commands import read_command, read_queued


class Work(RunCommands):
    """Submit commands, and find those that wait."""

    def submit(
        self,
        argv: Sequence[str],
        *,
        actor: Actor,
        cwd: str | None = None,
        task: str = "command",
        project: str = "default",
        policy: RetryPolicy | None = None,
        idempotency_key: str | None = None,
        retry_of_run_id: str | None = None,
        timeout_ms: int | None = None,
        deadline_at_ms: int | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Created | AlreadyCreated:
        """Create a Run, keep its command and queue it, all at once: any worker of this ledger may host it (R12.1).

        ``cwd`` is where the command runs, this process's own directory if left out; the environment is the worker's.
        What cannot be kept is refused (``InvalidValue``). The rest is as in ``create``.
        """
        return self._create(
            actor=actor,
            task=task,
            project=project,
            policy=policy,
            idempotency_key=idempotency_key,
            retry_of_run_id=retry_of_run_id,
            timeout_ms=timeout_ms,
            deadline_at_ms=deadline_at_ms,
            command=StoredCommand.of(argv, os.getcwd() if cwd is None else cwd),  # noqa: PTH109 - links kept
            queued=True,
            correlation_id=correlation_id,
            causation_id=causation_id,
            connection=connection,
        )

    def command_of(self, run_id: str) -> StoredCommand | None:
        """Give what a Run is to run; None where nothing is kept: it was given none, or has ended."""
        with self._database.reading() as reading:
            return read_command(reading, canonical_id("run id", run_id))

    def queued_runs(self, *, limit: int | None = None, after: str | None = None) -> Page[str]:
        """Give a page of the queued Runs whose command is kept, oldest first.

        ``after`` is the cursor that the page before gave as ``next``.
        """
        try:
            cursor = None if after is None else canonical_id("cursor", after)
        except MalformedId:
            raise InvalidCursor from None
        with self._database.reading() as reading:
            return read_queued(reading, limit=self._within("fact_page", limit, "limit"), after=cursor)
