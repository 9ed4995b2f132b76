"""The operators' commands of recovery: what no worker can tell, and what is done about it (R6.2, R12, R13)."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deliveries import asked_to_stop, brought_to
from left_rows import expired, left_to_operators, put_row
from process_watch import Marked, kill, wait_until
from runfacts import AttemptClaim, Ledger, Outcome
from runfacts.domain.recovery.claims import ClaimState, Purpose
from stages import ANA, WORKER
from told import Told, refused
from under_way import left_by_a_killed_host

VERBS = ("release", "attest-not-running")
FIELDS = ["run_id", "attempt_id", "reason", "since_ms", "diagnosis", "version", "purpose", "run_version"]


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    """The ledger that the command uses."""
    with Ledger.open(database_url) as opened:
        yield opened


@pytest.fixture
def manual(ledger: Ledger) -> AttemptClaim:
    """A running Run whose worker vanished and that waits for an operator; its claim is at version 2, itself at 7."""
    claim = brought_to(ledger, "running")
    expired(ledger, claim)
    left_to_operators(ledger, claim)
    return claim


def last_facts(told: Told, run_id: str, count: int) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Type, actor and payload of a Run's last facts."""
    facts = told("audit", run_id, "--json").lines[-count:]
    return [(fact["type"], fact["actor_type"], fact["actor_id"], fact["payload"]) for fact in facts]


def recovery(told: Told, run_id: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = told("show", run_id, "--json").json["recovery"]
    return found


def test_manual_says_what_no_worker_can_tell_since_when_and_what_can_be_done(
    ledger_told: Told, manual: AttemptClaim
) -> None:
    said = ledger_told("manual", "--json")
    (item,) = said.json["items"]
    assert (said.code, said.json["next"]) == (0, None)
    assert list(item) == FIELDS
    assert (item["run_id"], item["attempt_id"], item["reason"]) == (
        manual.run_id,
        manual.attempt_id,
        "identity_unverifiable",
    )
    assert (item["version"], item["run_version"], item["purpose"]) == (2, 7, "recovery")
    assert item["diagnosis"].startswith("The attempt's lease has expired and no end of it is recorded. What is on the")
    table = ledger_told("manual").out.splitlines()
    assert re.fullmatch(r"RUN +FOR +REASON +SINCE +VERSION +RUN VERSION", table[0])
    assert table[1].split()[:3] == [manual.run_id, "recovery", "identity_unverifiable"]
    assert table[-1] == f"recovery, identity_unverifiable: {item['diagnosis']}"


def test_the_queue_has_pages_and_may_be_empty(ledger_told: Told, ledger: Ledger) -> None:
    assert ledger_told("manual", "--json").json == {"items": [], "next": None}
    assert ledger_told("manual").code == 0
    claims = [brought_to(ledger, "running") for _ in range(2)]
    for claim in claims:
        left_to_operators(ledger, claim)
    first = ledger_told("manual", "--limit", "1", "--json").json
    rest = ledger_told("manual", "--limit", "1", "--after", first["next"], "--json").json
    assert [item["run_id"] for item in first["items"] + rest["items"]] == [claim.run_id for claim in claims]
    assert rest["next"] is None
    assert "There are more: --after " in ledger_told("manual", "--limit", "1").err
    for option in (("--after", "nonsense"), ("--limit", "0"), ("--limit", "x")):
        assert refused(ledger_told("manual", *option, "--json")) == (2, "usage")


def test_what_nobody_serves_is_in_manual_and_can_be_attested(ledger_told: Told, ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    expired(ledger, claim)
    (item,) = ledger_told("manual", "--json").json["items"]
    assert (item["reason"], item["version"], item["since_ms"]) == ("scope_unserved", 0, 1)
    said = ledger_told(
        "attest-not-running", claim.run_id, "--because", "the machine is scrap", "--version", "0", "--json"
    )
    assert (said.code, said.json["status"], said.json["version"]) == (0, "lost", 1)
    assert ledger_told("manual", "--json").json["items"] == []


def test_list_and_show_say_where_a_run_stands(ledger_told: Told, ledger: Ledger, manual: AttemptClaim) -> None:
    (item,) = ledger_told("list", "--json").json["items"]
    assert item["recovery"] == "manual"
    assert recovery(ledger_told, manual.run_id) == {
        "state": "manual",
        "purpose": "recovery",
        "version": 2,
        "reason": "identity_unverifiable",
        "next_claim_at_ms": None,
    }
    words = "waits for an operator: identity_unverifiable"
    assert words in ledger_told("list").out
    shown = ledger_told("show", manual.run_id).out
    assert re.search(rf"^recovery +{words}$", shown, re.MULTILINE)
    assert re.search(r"^recovery version +2$", shown, re.MULTILINE)
    put_row(ledger, Purpose.RECOVERY, ClaimState.CLAIMED, manual.run_id, manual.attempt_id)
    words = "its worker vanished; being recovered by a worker"
    assert words in ledger_told("list").out
    assert re.search(rf"^recovery +{words}$", ledger_told("show", manual.run_id).out, re.MULTILINE)


def test_doctor_names_the_queue_when_somebody_is_needed(ledger_told: Told, ledger: Ledger) -> None:
    def check() -> tuple[bool, str]:
        (found,) = [one for one in ledger_told("doctor", "--json").json["checks"] if one["name"] == "recoveries"]
        return found["ok"], found["detail"]

    claim = brought_to(ledger, "running")
    assert check() == (True, "no run waits for an operator to say what became of it")
    left_to_operators(ledger, claim)
    ok, detail = check()
    assert not ok
    assert re.fullmatch(r"some runs wait for an operator, the first for \d+ s: see `runfacts manual`", detail)


def test_release_lets_workers_look_again(ledger_told: Told, manual: AttemptClaim) -> None:
    arguments = ("release", manual.run_id, "--because", "the host is back", "--version", "2", "--as", "olga")
    said = ledger_told(*arguments, "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json == {"run_id": manual.run_id, "outcome": "released", "version": 3, "purpose": "recovery"}
    payload = {"purpose": "recovery", "reason": "the host is back"}
    assert last_facts(ledger_told, manual.run_id, 1) == [("run.recovery_released", "operator", "olga", payload)]
    assert ledger_told("manual", "--json").json["items"] == []
    stands = recovery(ledger_told, manual.run_id)
    assert stands is not None
    assert (stands["state"], stands["version"]) == ("available", 3)
    # Said again it is the first answer, said otherwise a conflict.
    assert ledger_told(*arguments, "--json").json == said.json
    other = ("release", manual.run_id, "--because", "I feel like it", "--version", "2", "--json")
    assert refused(ledger_told(*other)) == (4, "idempotency_conflict")
    assert refused(ledger_told("release", manual.run_id, "--because", "again", "--version", "3", "--json")) == (
        1,
        "not_allowed",
    )


def test_a_manual_stop_is_released_by_its_own_version_or_confirmed_by_the_runs(
    ledger_told: Told, ledger: Ledger
) -> None:
    asked = asked_to_stop(ledger)
    left_to_operators(ledger, asked.claim, Purpose.STOP, reason="conflicting_evidence")
    (item,) = ledger_told("manual", "--json").json["items"]
    assert (item["purpose"], item["reason"]) == ("stop", "conflicting_evidence")
    said = ledger_told("release", asked.run_id, "--because", "look again", "--version", str(item["version"]), "--json")
    assert (said.json["purpose"], said.json["version"]) == ("stop", item["version"] + 1)
    left_to_operators(ledger, asked.claim, Purpose.STOP, version=5)
    (item,) = ledger_told("manual", "--json").json["items"]
    version = str(item["run_version"])
    said = ledger_told("confirm-stopped", asked.run_id, "--because", "I looked", "--version", version, "--json")
    assert (said.code, said.json["status"]) == (0, "cancelled")
    assert ledger_told("manual", "--json").json["items"] == []
    said = ledger_told("attest-not-running", asked.run_id, "--because", "x", "--version", "6", "--json")
    assert refused(said) == (1, "not_allowed")


def test_attest_not_running_makes_the_run_lost_on_an_operators_word(ledger_told: Told, manual: AttemptClaim) -> None:
    run_id = manual.run_id
    arguments = ("attest-not-running", run_id, "--because", "I looked", "--version", "2", "--as", "olga")
    said = ledger_told(*arguments, "--json")
    assert (said.code, said.json) == (
        0,
        {"run_id": run_id, "outcome": "attested", "version": 3, "attempt_id": manual.attempt_id, "status": "lost"},
    )
    assert last_facts(ledger_told, run_id, 3) == [
        ("run.recovery_attested", "operator", "olga", {"reason": "I looked"}),
        ("attempt.lost", "operator", "olga", {"evidence": "attested"}),
        ("run.lost", "operator", "olga", {"evidence": "attested"}),
    ]
    shown = ledger_told("show", run_id, "--json").json
    assert (shown["status"], shown["attempts"][0]["status"], shown["attempts"][0]["evidence"]) == (
        "lost",
        "lost",
        "attested",
    )
    assert (shown["recovery"]["purpose"], shown["recovery"]["state"]) == ("retry", "available")
    assert "lost on an operator's word; a retry is not decided yet" in ledger_told("show", run_id).out
    assert "lost: attested" in ledger_told("show", run_id).out
    assert ledger_told(*arguments, "--json").json == said.json
    (item,) = ledger_told("unproven", "--json").json["items"]
    assert (item["run_id"], item["reason"]) == (run_id, "attested")
    assert ledger_told("verify").code == 0


def test_a_false_attestation_is_listed_when_the_attempt_reports_after_all(
    ledger_told: Told, ledger: Ledger, manual: AttemptClaim
) -> None:
    assert ledger_told("attest-not-running", manual.run_id, "--because", "I looked", "--version", "2").code == 0
    ledger.finish(manual, Outcome.succeeded(exit_code=0), actor=WORKER)
    (item,) = ledger_told("unproven", "--json").json["items"]
    assert (item["run_id"], item["reason"]) == (manual.run_id, "reported_since")
    table = ledger_told("unproven").out.splitlines()
    assert table[-1].startswith("reported_since: The run ended, or its attempt was declared lost,")


def test_attest_not_running_is_not_allowed_for_what_has_a_worker_or_was_asked_to_stop(
    ledger_told: Told, ledger: Ledger
) -> None:
    claim = brought_to(ledger, "running")
    left_to_operators(ledger, claim)
    arguments = ("attest-not-running", claim.run_id, "--because", "it is gone", "--version", "2", "--json")
    said = ledger_told(*arguments)
    assert refused(said) == (1, "not_allowed")
    assert said.json["error"]["message"].endswith("its worker holds a valid lease")
    ledger.request_cancellation(claim.run_id, actor=ANA)
    said = ledger_told(*arguments)
    assert refused(said) == (1, "not_allowed")
    assert said.json["error"]["message"].endswith("somebody asked it to stop; confirm-stopped is for that")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_what_has_changed_since_is_a_conflict(ledger_told: Told, manual: AttemptClaim, verb: str) -> None:
    said = ledger_told(verb, manual.run_id, "--because", "x", "--version", "1", "--json")
    assert refused(said) == (4, "version_conflict")
    assert said.json["error"]["message"] == f"the recovery of run {manual.run_id} is at version 2, not 1"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_that_nobody_checked_who_the_operator_is(
    ledger_told: Told, manual: AttemptClaim, verb: str
) -> None:
    said = ledger_told(verb, manual.run_id, "--because", "x", "--version", "2", "--as", "olga")
    assert said.code == 0
    assert "Recorded on the word of olga, as --as or the login name says; nobody has checked" in said.err
    assert "nobody checks it" in " ".join(ledger_told(verb, "--help").out.split())


@pytest.fixture
def abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: Marked) -> Iterator[tuple[str, int]]:
    """A run and its command, whose host was killed."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("RUNFACTS_DB", url)
    monkeypatch.setenv("RUNFACTS_UNSERVED_AFTER_MS", "1000")
    run_id, leader = left_by_a_killed_host(url, "--set", "execution_lease_ms=2000")
    yield run_id, leader
    for pid in marked.living():
        kill(pid)


def test_attest_not_running_is_refused_while_its_process_lives(
    told: Told, abandoned: tuple[str, int], marked: Marked
) -> None:
    run_id, leader = abandoned
    wait_until(lambda: json.loads(told("manual", "--json").out)["items"] != [], "nobody serves the run")
    (item,) = told("manual", "--json").json["items"]
    assert (item["run_id"], item["reason"], item["version"]) == (run_id, "scope_unserved", 0)
    arguments = ("attest-not-running", run_id, "--because", "I think it is gone", "--version", "0", "--json")
    assert refused(told(*arguments)) == (1, "still_running")
    assert told("show", run_id, "--json").json["status"] == "running"
    (keeper,) = marked.living() - {leader}
    kill(keeper, signal.SIGSTOP)
    kill(leader)
    wait_until(lambda: leader not in marked.living(), "the command is dead")
    # A keeper that is about to say how it ended counts as running.
    assert refused(told(*arguments)) == (1, "still_running")
    kill(keeper)
    wait_until(lambda: not marked.living(), "the keeper is dead")
    said = told(*arguments)
    assert (said.code, said.json["status"]) == (0, "lost")
    (word,) = [fact for fact in told("audit", run_id, "--json").lines if fact["type"] == "run.recovery_attested"]
    assert word["payload"] == {"reason": "I think it is gone"}


def test_attest_not_running_may_be_forced_and_says_so(told: Told, abandoned: tuple[str, int]) -> None:
    run_id, _ = abandoned
    wait_until(lambda: json.loads(told("manual", "--json").out)["items"] != [], "nobody serves the run")
    arguments = ("attest-not-running", run_id, "--because", "not ours", "--version", "0", "--force", "--json")
    assert told(*arguments).json["status"] == "lost"
    (word,) = [fact for fact in told("audit", run_id, "--json").lines if fact["type"] == "run.recovery_attested"]
    assert word["payload"] == {"reason": "not ours", "forced": True}
