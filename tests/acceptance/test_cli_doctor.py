"""What ``doctor`` says of evidence: one machine to an id, what a reboot proves, and whether providers answer (R8.3)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from another_boot import OTHER_BOOT
from process_watch import DEADLINE_S
from runfacts import Ledger
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking
from runfacts.infrastructure.presence import WorkerPresence
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity
from told import Told


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> MachineIdentity:
    """The machine under an id that lasts, as the command knows it, too."""
    monkeypatch.setenv("RUNFACTS_MACHINE_ID", "rack-7")
    return MachineIdentity.of_this_process("rack-7")


def checks(told: Told) -> dict[str, dict[str, Any]]:
    """Give what the command looked at, by name."""
    return {check["name"]: check for check in told("doctor", "--json").json["checks"]}


def test_doctor_says_when_a_machine_id_names_two_machines(
    ledger_told: Told, database_url: str, named: MachineIdentity
) -> None:
    with Ledger.open(database_url, machine_id="rack-7") as ledger:
        WorkerPresence(ledger.database, "w-1", named).beat()
        if database_url.startswith("sqlite"):
            # A file belongs to one machine.
            assert "one machine" not in checks(ledger_told)
            return
        assert checks(ledger_told)["one machine"]["ok"]
        clone = MachineIdentity("rack-7", named.source, OTHER_BOOT, named.pid_namespace, named.time_namespace)
        WorkerPresence(ledger.database, "w-2", clone).beat()
    found = checks(ledger_told)["one machine"]
    assert not found["ok"]
    assert "a reboot proves nothing" in found["detail"]


def test_doctor_says_what_a_reboot_proves(ledger_told: Told, database_url: str, named: MachineIdentity) -> None:
    with Ledger.open(database_url, machine_id="rack-7"):
        assert named.machine_id == "rack-7"
    assert checks(ledger_told)["after a reboot"] == {
        "name": "after a reboot",
        "ok": True,
        "detail": "what ran before it is proven gone",
    }


def test_doctor_names_a_provider_that_hangs(
    ledger_told: Told, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(database_url):
        assert checks(ledger_told)["evidence"]["detail"] == "the provider of local answers in time"
    let_go = threading.Event()

    def hang(provider: LocalEvidence, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        del provider, target, timeout_ms, cancelled
        assert let_go.wait(DEADLINE_S)
        return Evidence.running()

    monkeypatch.setattr(LocalEvidence, "inspect", hang)
    try:
        said = ledger_told("--set", "evidence_timeout_ms=20", "doctor", "--json")
        (found,) = [check for check in said.json["checks"] if check["name"] == "evidence"]
        assert (said.code, found["ok"]) == (1, False)
        assert found["detail"] == "the provider of local does not answer within 0.02 s"
    finally:
        let_go.set()
