"""
Where an Attempt's output lies, as the local executor knows it on this machine.

No fact holds a path, and a path says nothing on another machine: it follows from the ledger and the Attempt's id, as it
did for the host. Where the files are not there, it is said why as far as that is known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runfacts.domain.errors import AttemptNotFound, InvalidValue, UnsupportedPlatform
from runfacts.domain.views import AttemptView, RunView
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.machine import MachineIdSource


class Whereabouts(StrEnum):
    """Where the output of a local Attempt is."""

    HERE = "here"
    GONE = "gone"
    ELSEWHERE = "elsewhere"
    IMPORTED = "imported"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class AttemptOutput:
    """Where one Attempt's output is; paths only of files that are there."""

    where: Whereabouts
    stdout: str | None = None
    stderr: str | None = None
    directory: str = ""

    @property
    def words(self) -> str | None:
        """Say why a file is not there; None where both are."""
        match self.where:
            case Whereabouts.HERE:
                return None
            case Whereabouts.GONE:
                return f"gone: not in {self.directory}, where it was written"
            case Whereabouts.ELSEWHERE:
                return "on another machine: that of the host"
            case Whereabouts.IMPORTED:
                return "with the ledger from which the run was imported"
            case Whereabouts.NONE:
                return "none: no command was started"


Outputs = Mapping[str, AttemptOutput]
"""By Attempt id; without those of other executors, which keep their output themselves."""


def outputs_of(ledger: Ledger, run: RunView) -> Outputs:
    """Look for the output of every local Attempt of a Run."""
    return {
        attempt.attempt_id: _output_of(ledger, attempt)
        for attempt in run.attempts
        if attempt.executor_type == EXECUTOR_TYPE
    }


def _output_of(ledger: Ledger, attempt: AttemptView) -> AttemptOutput:
    places = ledger.places()
    files = places.of(attempt.attempt_id)
    stdout, stderr = (path if os.path.isfile(path) else None for path in (files.stdout, files.stderr))  # noqa: PTH113 - a path is a text here
    if stdout is not None and stderr is not None:
        return AttemptOutput(Whereabouts.HERE, stdout, stderr)
    return AttemptOutput(_why_not(ledger, attempt), stdout, stderr, places.directory)


def _why_not(ledger: Ledger, attempt: AttemptView) -> Whereabouts:
    """Say why a file is not there."""
    try:
        scope = ledger.execution(attempt.attempt_id).scope
    except AttemptNotFound:
        scope = ""
    if not scope:
        return Whereabouts.IMPORTED
    if attempt.started_at_ms is None:
        return Whereabouts.NONE
    try:
        machine = ledger.machine()
    except (UnsupportedPlatform, InvalidValue):
        return Whereabouts.ELSEWHERE
    if machine.source is MachineIdSource.BOOT_ID:
        # Its id is another one after each reboot.
        return Whereabouts.GONE
    return Whereabouts.GONE if scope.startswith(f"{machine.machine_id}/") else Whereabouts.ELSEWHERE
