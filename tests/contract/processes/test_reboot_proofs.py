"""
R12.3, R8.3: what a reboot proves on each database, and how a cloned machine id takes the proof away.

A machine cannot be started again within a test. The process is real and lives, and its handle is the real one; what is
faked is the worker's /proc, which says another boot, and the ledger's clock. So an answer that went by the process's
number, which is in use, would be "running".
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import pytest

from another_boot import OTHER_BOOT, AnotherBoot
from runfacts import Ledger
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Unknown
from runfacts.infrastructure.evidence import EvidenceRegistry
from runfacts.infrastructure.presence import WorkerPresence
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.processes.on_a_ledger import local_provider, machine_is_ambiguous
from runfacts.testing.clock import EPOCH_MS, ManualClock
from stages import one_writer

GONE = Evidence.not_running()
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
HOUR = 3_600_000
MINUTE = 60_000


@dataclass
class Machine:
    """One machine before and after a reboot, as a ledger knows it."""

    ledger: Ledger
    before: MachineIdentity
    after: MachineIdentity
    began_at_ms: int
    """When the present boot began, by the ledger's clock, which stands."""

    def seen(self, last_seen_at_ms: int, *, machine: MachineIdentity | None = None) -> Evidence:
        """Say, after the reboot, what became of this very process, which was heard of last then."""
        procfs = AnotherBoot()
        registry = EvidenceRegistry([local_provider(self.ledger.database, machine or self.after, procfs)])
        handle = ProcessHandle.of(os.getpid(), self.before)
        target = EvidenceTarget(
            "run",
            "attempt",
            AttemptStatus.RUNNING,
            "local",
            handle.scope,
            "w-1",
            handle.encode(),
            handle.pid,
            EPOCH_MS + HOUR,
            last_seen_at_ms,
        )
        return registry.inspect(target)

    def beat(self, machine: MachineIdentity, worker_id: str) -> None:
        """Let a worker say that it is there."""
        WorkerPresence(self.ledger.database, worker_id, machine).beat()

    def beat_at(self, at_ms: int, clock: ManualClock, worker_id: str) -> None:
        """Let a worker from before the reboot have said so then."""
        clock.jump_database(at_ms - EPOCH_MS)
        self.beat(self.before, worker_id)
        clock.jump_database(EPOCH_MS - at_ms)


@pytest.fixture
def machine(ledger: Ledger) -> Machine:
    """A machine that was started again, with an id that lasts."""
    before = MachineIdentity.of_this_process("rack-7")
    after = MachineIdentity.of_this_process("rack-7", procfs=AnotherBoot())
    assert (before.scope, after.boot_id) == (after.scope, OTHER_BOOT)
    uptime_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return Machine(ledger, before, after, EPOCH_MS - uptime_ms)


def test_what_was_heard_of_last_before_this_boot_began_is_gone(machine: Machine) -> None:
    assert machine.seen(machine.began_at_ms - MINUTE) == GONE


def test_what_was_heard_of_since_is_not(machine: Machine) -> None:
    # The handle was recorded, or the lease renewed, after this boot began: another machine's clock or id is at work.
    assert machine.seen(EPOCH_MS) == UNVERIFIABLE


def test_where_the_boot_id_stands_in_a_reboot_proves_nothing(machine: Machine) -> None:
    nameless = MachineIdentity(
        machine.after.machine_id,
        MachineIdSource.BOOT_ID,
        OTHER_BOOT,
        machine.after.pid_namespace,
        machine.after.time_namespace,
    )
    assert machine.seen(machine.began_at_ms - MINUTE, machine=nameless) == UNVERIFIABLE


def test_a_cloned_machine_id_takes_the_proof_away_while_both_are_seen(
    machine: Machine, manual_clock: ManualClock
) -> None:
    """On a server the other machine's workers tell; a file belongs to one machine."""
    machine.beat_at(machine.began_at_ms - 10 * MINUTE, manual_clock, "w-1")
    machine.beat(machine.after, "w-2")
    assert machine.seen(machine.began_at_ms - MINUTE) == GONE
    # "Before the reboot" goes on being seen after it: that was no reboot.
    machine.beat(machine.before, "w-3")
    expected = GONE if one_writer(machine.ledger) else UNVERIFIABLE
    assert machine.seen(machine.began_at_ms - MINUTE) == expected
    manual_clock.advance(HOUR)
    assert machine.seen(machine.began_at_ms - MINUTE) == expected
    manual_clock.advance(1)
    assert machine.seen(machine.began_at_ms - MINUTE) == GONE


def test_the_boot_before_counts_as_seen_until_it_ended(machine: Machine, manual_clock: ManualClock) -> None:
    """An ordinary reboot, with workers on both sides of it."""
    machine.beat_at(machine.began_at_ms - MINUTE, manual_clock, "w-1")
    machine.beat(machine.after, "w-2")
    assert machine.seen(machine.began_at_ms - 2 * MINUTE) == GONE


def test_doctor_asks_the_same_of_the_machine_that_it_runs_on(machine: Machine) -> None:
    database = machine.ledger.database
    assert not machine_is_ambiguous(database, machine.before)
    machine.beat(machine.before, "w-1")
    assert not machine_is_ambiguous(database, machine.before)
    machine.beat(machine.after, "w-2")
    assert machine_is_ambiguous(database, machine.before) == (not one_writer(machine.ledger))


def test_a_database_that_does_not_answer_proves_nothing(machine: Machine) -> None:
    """The ledger's clock is asked for the proof; without it the provider is unavailable, and may be asked again."""
    machine.ledger.close()
    assert machine.seen(machine.began_at_ms - MINUTE) == Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
    assert not any(thread.name == "runfacts-evidence" for thread in threading.enumerate())
