"""
The local provider on a ledger's own clock, and with what the ledger's workers say of this machine (R8.3, R12.3).

What a reboot proves depends on both: when the process was last heard of was recorded by the ledger's time, and whether
the machine id names one machine is known from all who were seen under it.
"""

from __future__ import annotations

from runfacts.domain.errors import DatabaseUnreachable
from runfacts.infrastructure.database.clocks import refuse_time_offset
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.processes.sight import boot_began_at_ms
from runfacts.infrastructure.stores import workers


def local_provider(database: Database, machine: MachineIdentity, procfs: ProcFs | None = None) -> LocalEvidence:
    """Make who looks for this machine's own processes, and at no file."""
    return LocalEvidence(
        machine,
        procfs=procfs,
        now_ms=lambda: _now_ms(database),
        machine_is_ambiguous=lambda began_at_ms: _is_ambiguous(database, machine, began_at_ms),
    )


def machine_is_ambiguous(database: Database, machine: MachineIdentity) -> bool:
    """Tell whether another machine was seen under this one's id within the last hour."""
    try:
        refuse_time_offset(ProcFs())
    except DatabaseUnreachable:
        # When this boot began cannot be told from here; what its workers said still counts.
        return _is_ambiguous(database, machine, _now_ms(database))
    return _is_ambiguous(database, machine, boot_began_at_ms(lambda: _now_ms(database)))


def _is_ambiguous(database: Database, machine: MachineIdentity, began_at_ms: int) -> bool:
    with database.reading() as reading:
        return workers.machine_is_ambiguous(
            reading, machine.machine_id, boot_id=machine.boot_id, began_at_ms=began_at_ms
        )


def _now_ms(database: Database) -> int:
    with database.reading() as reading:
        return reading.now_ms()
