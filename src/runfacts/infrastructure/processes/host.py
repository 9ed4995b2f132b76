"""
Hosting one Attempt on this machine, from its claim to its end (R10).

::

    claim ─> start barrier ─> prepare (keeper, process at its gate) ─> commit handle and running ─> open the gate
          ─> look, renew, look … ─> receipt ─> finish ─> remove the receipt

Until the gate opens, every way out closes it, and the command never runs. After that, every way out leaves the
command to its keeper, and the receipt brings the end. The host records an end only from a receipt: it never guesses.

A cancellation is delivered beside it (``Stops``); then the host looks on until the whole group is gone (R6.5).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import (
    AttemptClaim,
    LateCallback,
    NotClaimable,
    Recorded,
    Repeated,
    StartRefused,
    StopNotProven,
)
from runfacts.domain.errors import Contended, DatabaseError, OutcomeUnknown
from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.processes import keeper
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.completion import FINAL_SEQUENCE, Completion, outcome_of
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.hosted import (
    Command,
    Detached,
    Ended,
    HostedOutcome,
    KeeperLost,
    NeverRan,
    NotHosted,
    NotStarted,
)
from runfacts.infrastructure.processes.launcher import Launcher, LaunchSpec, require_usable
from runfacts.infrastructure.processes.lease import HeldLease, boot_ms
from runfacts.infrastructure.processes.places import AttemptFiles, Places
from runfacts.infrastructure.processes.ports import HostLedger, Stops
from runfacts.infrastructure.processes.prepared import LaunchFailed, PreparedProcess
from runfacts.infrastructure.processes.receipts import Receipt, Unbelievable, read_receipt
from runfacts.infrastructure.processes.tail import ByteSink, LiveTail
from runfacts.infrastructure.steps import NO_STEPS, Steps

_LOG: Final = logging.getLogger("runfacts.host")

_UNKNOWN_RETRY_S: Final = 0.25
_ASK_AGAIN_S: Final = 1.0


class LocalHost:
    """Runs Attempts on this machine under a ledger. One may host several at a time, each in a thread of its own."""

    def __init__(
        self,
        ledger: HostLedger,
        launcher: Launcher,
        places: Places,
        *,
        worker_id: str | None = None,
        lease_ms: int = 30_000,
        poll_ms: int = 50,
        stdout: ByteSink | None = None,
        stderr: ByteSink | None = None,
        held: HeldPidfds | None = None,
        stops: Stops | None = None,
        steps: Steps = NO_STEPS,
    ) -> None:
        """``stdout`` and ``stderr`` are where a command's output is shown while it runs; ``None`` shows nothing.

        ``held`` gets the descriptor of each command's process from before its gate opens, for the controller (R8.5).
        ``stops`` delivers cancellations of what is hosted here; without one that is left to supervisors (R9.5).
        """
        self._ledger = ledger
        self._launcher = launcher
        self._places = places
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._poll_s = poll_ms / 1000
        self._sinks = (stdout, stderr)
        self._held = held or HeldPidfds()
        self._stops = stops
        self._steps = steps
        self._completion = Completion(ledger, launcher.machine, steps=steps)
        self._detaching = False
        self._showing_the_rest = False

    @property
    def showing_the_rest(self) -> bool:
        """Whether a command's end is recorded and only its output is waited for, which ``detach`` ends at once."""
        return self._showing_the_rest

    def detach(self) -> None:
        """Ask to go: commands that run are left alone, ``run`` answers ``Detached``. Safe in a signal handler."""
        # No event: a second signal within the first one's handler would wait for its lock for ever.
        self._detaching = True

    def run(self, run_id: str, command: Command, *, actor: Actor, queue: bool = False) -> HostedOutcome:
        """Claim the Run's next Attempt and host it to its end. Errors of the ledger go up; the receipt then waits.

        With ``queue`` the claim also queues what was not queued yet, or whose retry is due.
        """
        self._showing_the_rest = False
        directory = os.path.abspath(command.cwd or os.getcwd())
        require_usable(command.argv, directory, command.env)
        self._places.make()
        asked_at_ms = boot_ms()
        claimed = self._ledger.claim(
            run_id,
            actor=actor,
            executor_type=EXECUTOR_TYPE,
            gated=True,
            scope=self._launcher.machine.scope,
            worker_id=self._worker_id,
            lease_ms=self._lease_ms,
            queue=queue,
        )
        if isinstance(claimed, NotClaimable):
            return NotHosted(run_id, claimed)
        claim = claimed.claim
        lease = HeldLease(
            self._ledger,
            claim,
            lease_ms=self._lease_ms,
            asked_at_ms=asked_at_ms,
            on_intent=None if self._stops is None else self._stops.wake,
        )
        files = self._places.of(claim.attempt_id)
        self._steps.reached("launch:before:start")
        started = self._ledger.start(claim, actor=actor, log_path=files.stdout, receipt_path=files.receipt)
        self._steps.reached("launch:after:start")
        if isinstance(started, StartRefused):
            return NotStarted(run_id, claim.attempt_id, started)
        spec = LaunchSpec(
            run_id=claim.run_id,
            attempt_id=claim.attempt_id,
            argv=command.argv,
            directory=directory,
            files=files,
            callback_sequence=FINAL_SEQUENCE,
            callback_token=claim.callback_token,
            environment=command.env,
            stdin=command.stdin,
        )
        try:
            process = self._launcher.prepare(spec)
        except LaunchFailed as failed:
            return self._never_ran(claim, "launch_failed", str(failed), actor)
        with process:
            self._held.release_ended()
            self._held.hold(claim.attempt_id, process.leader_pidfd, process.handle)
            with nullcontext() if self._stops is None else self._stops.hosting(claim.attempt_id):
                outcome = self._go_through_the_gate(claim, process, files, lease, actor)
            if not _may_have_to_be_stopped(outcome):
                self._held.release(claim.attempt_id)
            return outcome

    def _go_through_the_gate(
        self, claim: AttemptClaim, process: PreparedProcess, files: AttemptFiles, lease: HeldLease, actor: Actor
    ) -> HostedOutcome:
        self._steps.reached("launch:before:running")
        answer = self._commit_running(claim, process, actor)
        self._steps.reached("launch:after:running")
        match answer:
            case None:
                process.abandon()
                detail = "whether its process is recorded could not be known in time"
                return NeverRan(claim.run_id, claim.attempt_id, "commit_unknown", detail, None)
            case StartRefused():
                process.abandon()
                return NotStarted(claim.run_id, claim.attempt_id, answer)
            case LateCallback():
                process.abandon()
                detail = "its attempt had been ended before"
                return NeverRan(claim.run_id, claim.attempt_id, "attempt_ended", detail, answer)
            case Recorded() | Repeated():
                pass
        if not lease.is_trusted and not lease.renew():
            process.abandon()
            return self._never_ran(claim, "lease_over", "the lease was over before the gate could open", actor)
        self._steps.reached("launch:before:gate")
        if not process.open_gate():
            process.abandon()
            return self._never_ran(claim, "gate_closed", "the process ended at its gate", actor)
        try:
            self._steps.reached("launch:after:gate")
            with self._live_tail(files) as tail:
                if not self._watch(process, lease):
                    self._launcher.leave(process)
                    return Detached(claim.run_id, claim.attempt_id)
                try:
                    return self._conclude(claim, process, files, lease, actor)
                finally:
                    # After the end is recorded: whoever reads the output may be slow.
                    if tail is not None:
                        self._showing_the_rest = True
                        tail.finish(lambda: self._detaching)
        except BaseException:
            self._launcher.leave(process)
            raise

    def _commit_running(
        self, claim: AttemptClaim, process: PreparedProcess, actor: Actor
    ) -> Recorded | Repeated | StartRefused | LateCallback | None:
        """Record handle and running, the gate being shut; ``None`` when it stays unknown whether they are recorded."""
        handle = process.handle.encode()
        deadline = time.monotonic() + self._launcher.gate_timeout_ms / 1000
        while True:
            try:
                return self._ledger.running(claim, actor=actor, handle=handle, pid=process.pid)
            except OutcomeUnknown as unknown:
                # Asking again tells: what was recorded is answered as a repeat.
                _LOG.warning("attempt %s: is its process recorded? %s", claim.attempt_id, unknown)
                if time.monotonic() > deadline or process.has_ended():
                    return None
            time.sleep(_UNKNOWN_RETRY_S)

    def _watch(self, process: PreparedProcess, lease: HeldLease) -> bool:
        """Look at the process until it is over; false when the host was asked to go first."""
        while not process.wait(0):
            if self._detaching:
                return False
            # The look that a renewal needs (R10.3): the keeper is there, so the end is yet to come.
            process.wait_for_a_change(self._poll_s)
            if process.wait(0):
                break
            lease.keep()
        while not process.has_ended():
            # The keeper is gone and its command lives: its exit code is lost, but it is looked after all the same.
            if self._detaching:
                return False
            process.wait_for_a_change(self._poll_s)
            if not process.has_ended():
                lease.keep()
        return True

    def _conclude(
        self, claim: AttemptClaim, process: PreparedProcess, files: AttemptFiles, lease: HeldLease, actor: Actor
    ) -> HostedOutcome:
        receipt = read_receipt(files.receipt, run_id=claim.run_id, attempt_id=claim.attempt_id)
        match receipt:
            case Receipt():
                handle = process.handle.encode()
                while True:
                    answer = self._completion.record(receipt, files, handle=handle, actor=actor)
                    if not isinstance(answer, StopNotProven):
                        return Ended(claim.run_id, claim.attempt_id, outcome_of(receipt), answer)
                    if not self._outlast(handle, lease):
                        self._launcher.leave(process)
                        return Detached(claim.run_id, claim.attempt_id)
            case Unbelievable():
                return KeeperLost(claim.run_id, claim.attempt_id, f"its receipt was set aside: {receipt.reason}")
            case None:
                pass
        if process.keeper_code == keeper.NEVER_OPENED:
            return self._never_ran(claim, "gate_closed", "the process ended at its gate", actor)
        # The code is unknown where an application reaps everything.
        if (
            process.keeper_code in {keeper.PUBLISHED, None}
            and (collected := self._collected_elsewhere(claim)) is not None
        ):
            return collected
        return KeeperLost(claim.run_id, claim.attempt_id, _why_no_receipt(process.keeper_code))

    def _outlast(self, handle: str, lease: HeldLease) -> bool:
        """Look at what is left of the group until it is time to ask again; false when the host was asked to go."""
        if self._stops is not None:
            self._stops.wake()
        # Asked now and then in any case: somebody else may have ended the Attempt.
        deadline = time.monotonic() + _ASK_AGAIN_S
        while time.monotonic() < deadline and not self._completion.group_is_gone(handle):
            if self._detaching:
                return False
            lease.keep()
            time.sleep(self._poll_s)
        return not self._detaching

    def _collected_elsewhere(self, claim: AttemptClaim) -> Ended | None:
        """Give the end as it is recorded, when another process of this scope consumed the receipt first."""
        run = self._ledger.run(claim.run_id)
        attempt = next((item for item in run.attempts if item.attempt_id == claim.attempt_id), None)
        if attempt is None or (attempt.exit_code is None and attempt.signal is None):
            return None
        if attempt.exit_code == 0:
            outcome = Outcome.succeeded(exit_code=0)
        else:
            outcome = Outcome.failed(
                exit_code=attempt.exit_code,
                signal=attempt.signal,
                error_code=attempt.error_code,
                error_summary=attempt.error_summary,
            )
        return Ended(claim.run_id, claim.attempt_id, outcome, Repeated(claim.run_id, run.status, run.version))

    def _never_ran(self, claim: AttemptClaim, code: str, summary: str, actor: Actor) -> NeverRan:
        """End an Attempt whose command provably never ran and never will."""
        outcome = Outcome.failed(error_code=code, error_summary=summary)
        try:
            answer = self._ledger.finish(claim, outcome, actor=actor, sequence=FINAL_SEQUENCE)
        except (Contended, DatabaseError) as error:
            _LOG.warning("attempt %s never ran, which could not be recorded: %s", claim.attempt_id, error)
            return NeverRan(claim.run_id, claim.attempt_id, code, summary, None)
        return NeverRan(claim.run_id, claim.attempt_id, code, summary, answer)

    @contextmanager
    def _live_tail(self, files: AttemptFiles) -> Iterator[LiveTail | None]:
        pairs = zip((files.stdout, files.stderr), self._sinks, strict=True)
        streams = tuple((path, sink) for path, sink in pairs if sink is not None)
        with LiveTail(streams, poll_s=self._poll_s) if streams else nullcontext() as tail:
            yield tail


def _may_have_to_be_stopped(outcome: HostedOutcome) -> bool:
    """Tell whether something of the command may go on that a cancellation still has to reach."""
    match outcome:
        case Detached() | KeeperLost():
            return True
        case Ended():
            return isinstance(outcome.answer, StopNotProven)
        case NotHosted() | NotStarted() | NeverRan():
            return False


def _why_no_receipt(code: int | None) -> str:
    if code is None:
        return "the keeper ended without a receipt"
    if code < 0:
        return f"the keeper was ended by signal {-code} and left no receipt"
    if code == keeper.NOT_PUBLISHED:
        return "the keeper could not write a receipt"
    return "the receipt is gone"
