"""``runfacts cancel``: ask a run to stop, and wait for its end if wanted."""

from __future__ import annotations

import time
from typing import Final

import click

from runfacts.domain.cancellation.terms import AlreadyRequested, AlreadyTerminal, CancelRequested
from runfacts.domain.errors import DatabaseBusy, DatabaseError, DatabaseUnreachable
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import TERMINAL_RUN, RunStatus
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import WaitTimeout
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.seconds import Seconds
from runfacts.infrastructure.ledger import Ledger

_OUTCOMES: Final = {
    CancelRequested: "accepted",
    AlreadyRequested: "already_requested",
    AlreadyTerminal: "already_terminal",
}
_SAID: Final = {
    "accepted": "it is asked to stop",
    "already_requested": "it was asked to stop before",
    "already_terminal": "it has ended",
}
_ENDED_AT_ONCE: Final = "nothing of it was running, and it has ended"
_LOOK_EVERY_S: Final = 0.1


@click.command("cancel", cls=EverywhereCommand, short_help="Ask a run to stop.")
@click.argument("run_id", metavar="RUN")
@click.option("--reason", metavar="TEXT", help="Why; kept with the request.")
@click.option("--wait", "wait_ms", type=Seconds(zero=True), metavar="S", help="Wait so many seconds for its end.")
@pass_invocation
def command(invocation: Invocation, run_id: str, reason: str | None, wait_ms: int | None) -> None:
    """Ask a run to stop. That it was asked does not mean that it has stopped: --wait waits for that."""
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        answer = ledger.request_cancellation(run_id, actor=invocation.actor, reason=reason)
        outcome, status = _OUTCOMES[type(answer)], answer.status
        if not invocation.json:
            ended = outcome == "accepted" and status in TERMINAL_RUN
            output.say(f"run {run_id}: {_ENDED_AT_ONCE if ended else _SAID[outcome]}")
        if wait_ms is not None:
            status = _wait(ledger, run_id, wait_ms)
    if invocation.json:
        output.write_json({"run_id": run_id, "outcome": outcome, "status": status.value})
    else:
        output.sheet({"run": run_id, "outcome": outcome, "status": status.value})


def _wait(ledger: Ledger, run_id: str, wait_ms: int) -> RunStatus:
    """Wait for the Run's end (``WaitTimeout``).

    The request is recorded, so a database that is away for a while ends no wait; one that is still away at the end of
    it does (``DatabaseUnreachable``, ``DatabaseBusy``).
    """
    begun_s = time.monotonic()
    is_away = False
    with output.progress("waiting for its end") as tell:
        while True:
            standing = _look(ledger, run_id)
            if isinstance(standing, RunStatus) and standing in TERMINAL_RUN:
                return standing
            waited_s = time.monotonic() - begun_s
            left_s = wait_ms / 1_000 - waited_s
            if left_s <= 0:
                raise WaitTimeout(run_id, standing) if isinstance(standing, RunStatus) else standing
            if isinstance(standing, DatabaseError) and not is_away:
                output.say(f"runfacts: the database cannot be used; waiting on: {standing}")
            is_away = isinstance(standing, DatabaseError)
            if tell is not None:
                tell(f"{'the database is away' if is_away else standing}, {waited_s:.0f} s")
            time.sleep(min(_LOOK_EVERY_S, left_s))


def _look(ledger: Ledger, run_id: str) -> RunStatus | DatabaseError:
    """Give the Run's status, or what keeps us from seeing it that may pass."""
    try:
        return ledger.run(run_id).status
    except (DatabaseUnreachable, DatabaseBusy) as error:
        return error
