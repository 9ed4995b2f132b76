"""
The Attempts of one Run in the foreground: hosted here one after the other, or followed where others host them.

A failed Attempt's retry is this host's own affair: it waits until the retry is due, and takes it by a claim that
queues the Run in the same moment, so that nobody comes in between. Another worker may be faster all the same, since
everybody may serve a retry; then its Attempt is followed to its end. A lost Attempt is nobody's to judge but
recovery's, and the Run is followed to whatever comes of that.

After an interruption nothing more is begun. The Run is being cancelled then, and is followed to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import NotClaimable
from runfacts.domain.decisions import Refusal
from runfacts.domain.lifecycle import TERMINAL_RUN, AttemptStatus, RunStatus
from runfacts.domain.views import RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.exec_endings import say_how_it_ended, status_after
from runfacts.infrastructure.cli.interruption import Interruption
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command, HostedOutcome, NotHosted

_LOOK_EVERY_S: Final = 0.25
_NOT_DUE_S: Final = 0.02
_GROUP_LIVES_S: Final = 1.0
_CLAIMABLE: Final = frozenset({RunStatus.QUEUED, RunStatus.RETRY_WAIT})


@dataclass(frozen=True, slots=True)
class HostedHere:
    """The Run's last Attempt was hosted here, or left here; ``outcome`` says how it ended."""

    outcome: HostedOutcome


@dataclass(frozen=True, slots=True)
class Followed:
    """The Run has ended otherwise, or is left to others: its status says which."""

    run: RunView


class Foreground:
    """Brings one Run to its end, in the thread that calls ``run``."""

    def __init__(
        self,
        ledger: Ledger,
        host: LocalHost,
        interruption: Interruption,
        *,
        run_id: str,
        command: Command,
        actor: Actor,
        end_line: Callable[[], None] | None = None,
    ) -> None:
        """``end_line`` ends an unfinished line of the command's, before anything else is said."""
        self._ledger = ledger
        self._host = host
        self._interruption = interruption
        self._run_id = run_id
        self._command = command
        self._actor = actor
        self._end_line = end_line
        self._said: set[tuple[str, int]] = set()
        self._next_try_s = 0.0

    def run(self) -> HostedHere | Followed:
        """Host the Run's Attempts, or follow them, to the end of the Run."""
        outcome = self._try()
        while True:
            if not isinstance(outcome, NotHosted):
                status = status_after(outcome)
                if status is None or status in TERMINAL_RUN:
                    return HostedHere(outcome)
                say_how_it_ended(self._ledger, outcome)
            followed = self._follow()
            if isinstance(followed, RunView):
                return Followed(followed)
            outcome = followed

    def _try(self) -> HostedOutcome:
        try:
            return self._host.run(self._run_id, self._command, actor=self._actor, queue=True)
        finally:
            if self._end_line is not None:
                self._end_line()

    def _follow(self) -> RunView | HostedOutcome:
        """Wait for the end of the Run, or for the end of an Attempt that can be hosted here."""
        while True:
            run = self._ledger.run(self._run_id)
            if run.status in TERMINAL_RUN or self._interruption.times > 1:
                return run
            wait_s = _LOOK_EVERY_S
            if run.status in _CLAIMABLE and not self._interruption.times:
                if run.status is RunStatus.RETRY_WAIT and self._once("retry", run):
                    self._wait_for_the_retry(run)
                wait_s = self._next_try_s - time.monotonic()
                if wait_s <= 0:
                    outcome = self._try()
                    if not isinstance(outcome, NotHosted):
                        return outcome
                    wait_s = self._pause_after(run, outcome.answer)
            elif run.status not in _CLAIMABLE:
                self._say_who_has_it(run)
            self._interruption.wait(min(wait_s, _LOOK_EVERY_S))

    def _wait_for_the_retry(self, run: RunView) -> None:
        """Let the next try be when the retry is due, as far as this process can tell; the ledger decides."""
        due_s = 0.0 if run.retry_due_at_ms is None else max(0, run.retry_due_at_ms - run.updated_at_ms) / 1_000
        self._next_try_s = time.monotonic() + due_s
        what = "was lost" if run.attempts[-1].status is AttemptStatus.LOST else "failed"
        output.say(
            f"runfacts: attempt {len(run.attempts)} of {run.policy.max_attempts} {what}; the next one in {due_s:g} s"
        )

    def _pause_after(self, run: RunView, answer: NotClaimable) -> float:
        """Give how long to wait after a claim that was refused."""
        pause_s = _LOOK_EVERY_S
        if answer.reason is Refusal.NOT_DUE:
            pause_s = _NOT_DUE_S
        elif answer.reason is Refusal.GROUP_LIVES:
            pause_s = _GROUP_LIVES_S
            if self._once("group", run):
                output.say(
                    "runfacts: something of the last attempt may live;"
                    " a worker lets the next one begin when it is proven gone"
                )
        self._next_try_s = time.monotonic() + pause_s
        return pause_s

    def _say_who_has_it(self, run: RunView) -> None:
        if run.status is RunStatus.LOST:
            if self._once("lost", run):
                output.say(f"run {run.run_id} was lost; waiting for a worker to decide what follows")
        elif self._once("taken", run):
            output.say(f"run {run.run_id} was claimed by another worker; following it")

    def _once(self, what: str, run: RunView) -> bool:
        """Tell whether this is the first time for the Run's present Attempt."""
        key = (what, len(run.attempts))
        if key in self._said:
            return False
        self._said.add(key)
        return True
