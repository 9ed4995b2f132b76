"""
A ledger of one file, for tests of the local executor.

Every command appends one JSON line under a lock, flushed to the disk, so that several processes can share it and
one that is killed leaves exactly what it committed. It knows as much of the rules as a host can notice: one active
attempt per run, the start barrier, repeats, late callbacks, wrong tokens, and proof of the stop where a
cancellation was asked for.
"""

# ruff: noqa: ARG002, FBT003 - a double takes what its port gives, and has no use for all of it

from __future__ import annotations

import fcntl
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runfacts.domain.actors import Actor
from runfacts.domain.answers import (
    AttemptClaim,
    Claimed,
    Finished,
    LateCallback,
    NotClaimable,
    Recorded,
    RenewalRefused,
    Renewed,
    Repeated,
    Started,
    StartRefused,
    StopNotProven,
)
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import AttemptNotFound, DatabaseUnreachable, OutcomeUnknown, TokenRefused
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.outcomes import Outcome
from runfacts.domain.retry import RetryPolicy
from runfacts.domain.views import AttemptView, ExecutionView, LeaseState, Page, RunView

ACTIVE = {"claimed", "starting", "running"}


class JournalLedger:
    """One file of what was committed."""

    def __init__(self, path: Path, *, unknown_running: tuple[bool, ...] = (), unreachable_finish: int = 0) -> None:
        """``unknown_running``: for each of the first calls of ``running``, whether its unknown commit took place."""
        self.path = path
        self.path.touch()
        self._unknown_running = list(unknown_running)
        self._unreachable_finish = unreachable_finish
        self.renewals = 0

    def lines(self) -> list[dict[str, Any]]:
        """Give what was committed, in order."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def attempts(self) -> dict[str, dict[str, Any]]:
        """Give each attempt as it stands."""
        found: dict[str, dict[str, Any]] = {}
        for line in self.lines():
            if line["op"] != "cancel":
                found.setdefault(line["attempt_id"], {}).update(line)
        return found

    def cancel(self, run_id: str) -> None:
        """Ask a run to stop."""
        with self._writing():
            self._append(op="cancel", run_id=run_id)

    def claim(
        self,
        run_id: str,
        *,
        actor: Actor,
        executor_type: str,
        gated: bool = False,
        scope: str = "",
        worker_id: str | None = None,
        lease_ms: int | None = None,
        queue: bool = False,
    ) -> Claimed | NotClaimable:
        """See HostLedger."""
        assert gated
        assert executor_type == "local"
        with self._writing():
            if any(item["run_id"] == run_id for item in self.attempts().values()):
                return NotClaimable(run_id, RunStatus.DISPATCHING, Refusal.NOT_QUEUED)
            claim = AttemptClaim(run_id, str(uuid.uuid4()), 1, "lease-token", f"rft_{uuid.uuid4()}")
            self._append(
                op="claim",
                run_id=run_id,
                attempt_id=claim.attempt_id,
                status="claimed",
                token=claim.callback_token,
                scope=scope,
            )
            return Claimed(claim, 0, 1)

    def start(
        self, claim: AttemptClaim, *, actor: Actor, log_path: str | None = None, receipt_path: str | None = None
    ) -> Started | StartRefused:
        """See HostLedger."""
        with self._writing():
            if self._asked_to_stop(claim.run_id):
                return self._refuse(claim)
            self._append(op="start", attempt_id=claim.attempt_id, status="starting", receipt_path=receipt_path)
            return Started(None, 2)

    def running(
        self, claim: AttemptClaim, *, actor: Actor, handle: str | None = None, pid: int | None = None
    ) -> Recorded | Repeated | StartRefused | LateCallback:
        """See HostLedger."""
        with self._writing():
            commits = self._unknown_running.pop(0) if self._unknown_running else None
            if commits is False:
                raise OutcomeUnknown("the connection broke")
            if self.attempts()[claim.attempt_id]["status"] == "running":
                return Repeated(claim.run_id, RunStatus.RUNNING, 3)
            if self._asked_to_stop(claim.run_id):
                return self._refuse(claim)
            self._append(op="running", attempt_id=claim.attempt_id, status="running", handle=handle, pid=pid)
            if commits:
                raise OutcomeUnknown("the connection broke")
            return Recorded(claim.run_id, RunStatus.RUNNING, 3, ())

    def renew(self, claim: AttemptClaim, *, lease_ms: int | None = None) -> Renewed | RenewalRefused:
        """See HostLedger."""
        self.renewals += 1
        intent = IntentKind.USER if self._asked_to_stop(claim.run_id) else None
        return Renewed(0, AttemptStatus.RUNNING, intent)

    def finish(
        self,
        claim: AttemptClaim,
        outcome: Outcome,
        *,
        actor: Actor,
        sequence: int | None = None,
        group_left: bool = False,
    ) -> Finished | Repeated | LateCallback | StopNotProven:
        """See CompletionLedger."""
        with self._writing():
            if self._unreachable_finish:
                self._unreachable_finish -= 1
                raise DatabaseUnreachable("it is gone")
            attempt = self.attempts().get(claim.attempt_id)
            if attempt is None:
                raise AttemptNotFound(claim.attempt_id)
            if claim.callback_token != attempt["token"]:
                raise TokenRefused(claim.attempt_id)
            if attempt.get("sequence") == sequence:
                return Repeated(claim.run_id, RunStatus(attempt["status"]), 4)
            if attempt["status"] not in ACTIVE:
                return LateCallback(RunStatus.CANCELLED, AttemptStatus(attempt["status"]), 4)
            status = outcome.kind.value
            if self._asked_to_stop(claim.run_id):
                if group_left:
                    return StopNotProven(RunStatus.RUNNING, AttemptStatus.RUNNING)
                status = "cancelled"
            self._append(
                op="finish",
                attempt_id=claim.attempt_id,
                status=status,
                sequence=sequence,
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                error_code=outcome.error_code,
                group_left=group_left,
            )
            return Finished(RunStatus(status), AttemptStatus(status), 4, None)

    def open_executions(
        self, executor_type: str, scope: str, *, after: str | None = None, limit: int | None = None
    ) -> Page[ExecutionView]:
        """See CollectingLedger. Pages of one, so that the cursor is used."""
        found = sorted(
            attempt_id
            for attempt_id, item in self.attempts().items()
            if item["status"] in ACTIVE and item["scope"] == scope and item.get("receipt_path")
        )
        rest = [attempt_id for attempt_id in found if after is None or attempt_id > after]
        views = tuple(self._view(attempt_id) for attempt_id in rest[:1])
        return Page(views, rest[0] if len(rest) > 1 else None)

    def run(self, run_id: str) -> RunView:
        """See HostLedger."""
        attempts = tuple(
            AttemptView(
                attempt_id,
                1,
                AttemptStatus(item["status"]),
                "local",
                None,
                item.get("exit_code"),
                item.get("signal"),
                item.get("error_code"),
                None,
                None,
                LeaseState.NONE,
                0,
                None,
                0,
                None,
                None,
                None if item["status"] in ACTIVE else 1,
            )
            for attempt_id, item in self.attempts().items()
            if item["run_id"] == run_id
        )
        return RunView(
            run_id,
            "default",
            "command",
            RunStatus(attempts[0].status.value),
            4,
            ExecutionOwner.RUNTIME,
            RetryPolicy(),
            None,
            None,
            0,
            0,
            None,
            None,
            None,
            attempts,
            None,
        )

    def _view(self, attempt_id: str) -> ExecutionView:
        item = self.attempts()[attempt_id]
        return ExecutionView(
            attempt_id,
            item["run_id"],
            "local",
            True,
            item["scope"],
            None,
            item.get("handle"),
            item.get("pid"),
            0,
            None,
            0,
            None,
            None,
            item["receipt_path"],
            AttemptStatus(item["status"]),
            self._asked_to_stop(item["run_id"]),
        )

    def _asked_to_stop(self, run_id: str) -> bool:
        return any(line["op"] == "cancel" and line["run_id"] == run_id for line in self.lines())

    def _refuse(self, claim: AttemptClaim) -> StartRefused:
        self._append(op="refused", attempt_id=claim.attempt_id, status="cancelled")
        return StartRefused(RunStatus.CANCELLED, AttemptStatus.CANCELLED, Refusal.CANCELLATION_REQUESTED)

    def _append(self, **line: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
