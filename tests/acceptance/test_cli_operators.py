"""The operators' commands: what is stuck, why, and the verbs that do something about it (R6.2, R13)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deliveries import ONE, Asked, asked_to_stop, brought_to, held_by, settled_with
from process_watch import Marked, kill, wait_until
from runfacts import DispatchResult, Ledger
from stages import ANA
from told import Told, refused
from under_way import left_by_a_killed_host

VERBS = ("rearm", "abandon", "confirm-stopped")


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    """The ledger that the command uses."""
    with Ledger.open(database_url) as opened:
        yield opened


@pytest.fixture
def blocked(ledger: Ledger) -> Asked:
    """A Run whose cancellation is blocked; its dispatch is at version 2, itself at 9."""
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.IDENTITY_MISMATCH)
    return asked


def last_fact(told: Told, run_id: str) -> tuple[str, str, str, dict[str, Any]]:
    """Type, actor and payload of a Run's last fact."""
    fact = told("audit", run_id, "--json").lines[-1]
    return fact["type"], fact["actor_type"], fact["actor_id"], fact["payload"]


def test_blocked_says_what_is_stuck_since_when_and_what_can_be_done(ledger_told: Told, blocked: Asked) -> None:
    said = ledger_told("blocked", "--json")
    (item,) = said.json["items"]
    assert (said.code, said.json["next"]) == (0, None)
    assert list(item) == ["run_id", "attempt_id", "reason", "since_ms", "diagnosis", "version"]
    assert (item["run_id"], item["attempt_id"], item["reason"], item["version"]) == (
        blocked.run_id,
        blocked.attempt_id,
        "identity_mismatch",
        2,
    )
    assert item["diagnosis"].startswith("The process that has the recorded number now is not the one")
    table = ledger_told("blocked").out.splitlines()
    assert re.fullmatch(r"RUN +REASON +SINCE +VERSION", table[0])
    assert table[1].split()[:2] == [blocked.run_id, "identity_mismatch"]
    assert table[-1] == f"identity_mismatch: {item['diagnosis']}"


def test_the_queues_have_pages(ledger_told: Told, ledger: Ledger, blocked: Asked) -> None:
    second = asked_to_stop(ledger)
    settled_with(ledger, second, DispatchResult.INVALID)
    for queue in ("blocked", "unproven"):
        first = ledger_told(queue, "--limit", "1", "--json").json
        rest = ledger_told(queue, "--limit", "1", "--after", first["next"], "--json").json
        assert [item["run_id"] for item in first["items"] + rest["items"]] == [blocked.run_id, second.run_id]
        assert rest["next"] is None
        assert "There are more: --after " in ledger_told(queue, "--limit", "1").err
        assert refused(ledger_told(queue, "--after", "nonsense", "--json")) == (2, "usage")


def test_empty_queues_are_empty_lists(ledger_told: Told) -> None:
    for queue in ("blocked", "unproven"):
        assert ledger_told(queue, "--json").json == {"items": [], "next": None}
        assert ledger_told(queue).code == 0


def test_list_and_show_say_where_the_delivery_stands(ledger_told: Told, blocked: Asked) -> None:
    (item,) = ledger_told("list", "--json").json["items"]
    assert item["dispatch"] == "blocked"
    assert ledger_told("show", blocked.run_id, "--json").json["cancellation"]["dispatch"] == {
        "status": "blocked",
        "version": 2,
        "dispatch_count": 1,
        "last_result": "identity_mismatch",
        "next_attempt_at_ms": None,
    }
    assert ledger_told("list").out.splitlines()[1].split()[-3:-1] == ["blocked", "-"]
    shown = ledger_told("show", blocked.run_id).out
    assert re.search(r"^delivery +blocked$", shown, re.MULTILINE)
    assert re.search(r"^last result +identity_mismatch$", shown, re.MULTILINE)


def test_doctor_names_the_queue_when_somebody_is_needed(ledger_told: Told, ledger: Ledger) -> None:
    def check() -> tuple[bool, str]:
        (found,) = [one for one in ledger_told("doctor", "--json").json["checks"] if one["name"] == "cancellations"]
        return found["ok"], found["detail"]

    assert check() == (True, "no run that was asked to stop is still under way")
    asked = asked_to_stop(ledger)
    ok, detail = check()
    assert ok
    assert detail.startswith("1 run asked to stop and not ended")
    settled_with(ledger, asked, DispatchResult.INVALID)
    ok, detail = check()
    assert not ok
    assert detail.endswith("see `runfacts blocked`")


def test_rearm_gives_new_tries_after_the_delay(ledger_told: Told, blocked: Asked) -> None:
    arguments = ("rearm", blocked.run_id, "--because", "the stranger is gone", "--version", "2", "--delay", "60")
    said = ledger_told(*arguments, "--as", "olga", "--json")
    assert said.code == 0
    assert said.err == ""
    assert list(said.json) == ["run_id", "outcome", "version", "next_attempt_at_ms"]
    assert (said.json["outcome"], said.json["version"]) == ("rearmed", 3)
    assert last_fact(ledger_told, blocked.run_id) == (
        "run.cancel_dispatch_rearmed",
        "operator",
        "olga",
        {"attempt_id": blocked.attempt_id, "delay_ms": 60_000, "reason": "the stranger is gone"},
    )
    shown = ledger_told("show", blocked.run_id, "--json").json["cancellation"]["dispatch"]
    assert (shown["status"], shown["next_attempt_at_ms"]) == ("retry_wait", said.json["next_attempt_at_ms"])
    assert ledger_told("blocked", "--json").json["items"] == []
    # Said again it is the first answer, said otherwise a conflict.
    assert ledger_told(*arguments, "--as", "olga", "--json").json == said.json
    other = ("rearm", blocked.run_id, "--because", "I feel like it", "--version", "2", "--json")
    assert refused(ledger_told(*other)) == (4, "idempotency_conflict")


def test_rearm_refuses_a_delay_out_of_its_bounds(ledger_told: Told, blocked: Asked) -> None:
    for delay in ("0.5", "86401", "-1", "soon"):
        said = ledger_told("rearm", blocked.run_id, "--because", "x", "--version", "2", f"--delay={delay}", "--json")
        assert refused(said) == (2, "usage")


def test_abandon_ends_the_delivery_and_leaves_the_run(ledger_told: Told, blocked: Asked) -> None:
    said = ledger_told("abandon", blocked.run_id, "--because", "it is harmless", "--version", "2", "--json")
    assert (said.code, said.json) == (0, {"run_id": blocked.run_id, "outcome": "abandoned", "version": 3})
    assert last_fact(ledger_told, blocked.run_id)[0] == "run.cancel_dispatch_abandoned"
    assert ledger_told("blocked", "--json").json["items"] == []
    (item,) = ledger_told("unproven", "--json").json["items"]
    assert (item["run_id"], item["reason"]) == (blocked.run_id, "abandoned")
    assert ledger_told("show", blocked.run_id, "--json").json["status"] == "running"


def test_abandon_is_not_allowed_while_a_worker_delivers(ledger_told: Told, ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked, ONE)
    said = ledger_told("abandon", asked.run_id, "--because", "enough", "--version", "1", "--json")
    assert refused(said) == (1, "not_allowed")
    assert ledger_told("abandon", asked.run_id, "--because", "enough", "--version", "1").err.endswith(
        "a worker holds its dispatch right now\n"
    )


def test_confirm_stopped_ends_the_run_on_an_operators_word_and_says_so(ledger_told: Told, blocked: Asked) -> None:
    (item,) = ledger_told("unproven", "--json").json["items"]
    assert (item["reason"], item["version"]) == ("identity_mismatch", 9)
    arguments = ("confirm-stopped", blocked.run_id, "--because", "I looked", "--version", "9")
    said = ledger_told(*arguments, "--json")
    assert (said.code, said.json) == (
        0,
        {"run_id": blocked.run_id, "outcome": "confirmed", "version": 12, "status": "cancelled"},
    )
    facts = ledger_told("audit", blocked.run_id, "--json").lines[-3:]
    assert [fact["type"] for fact in facts] == ["run.stop_confirmed", "attempt.cancelled", "run.cancelled"]
    assert facts[0]["payload"] == {"evidence": "attested", "reason": "I looked"}
    (item,) = ledger_told("unproven", "--json").json["items"]
    assert (item["run_id"], item["reason"]) == (blocked.run_id, "attested")
    assert ledger_told(*arguments, "--json").json == said.json
    assert ledger_told("verify").code == 0


def test_confirm_stopped_needs_a_request_and_a_run_that_has_not_ended(ledger_told: Told, ledger: Ledger) -> None:
    run_id = brought_to(ledger, "running").run_id
    arguments = ("confirm-stopped", run_id, "--because", "it is gone")
    said = ledger_told(*arguments, "--version", "7", "--json")
    assert refused(said) == (1, "not_allowed")
    assert said.json["error"]["message"].endswith("nobody asked it to stop")
    ledger.request_cancellation(run_id, actor=ANA)
    assert ledger_told(*arguments, "--version", "8").code == 0
    version = str(ledger.run(run_id).version)
    said = ledger_told(*arguments, "--version", version, "--json")
    assert refused(said) == (1, "not_allowed")
    assert said.json["error"]["message"].endswith("it is cancelled")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_what_has_changed_since_is_a_conflict(ledger_told: Told, blocked: Asked, verb: str) -> None:
    said = ledger_told(verb, blocked.run_id, "--because", "x", "--version", "1", "--json")
    assert refused(said) == (4, "version_conflict")
    assert "not 1" in said.json["error"]["message"]


@pytest.mark.parametrize(("verb", "version"), [("rearm", "2"), ("abandon", "2"), ("confirm-stopped", "9")])
def test_a_verb_says_that_nobody_checked_who_the_operator_is(
    ledger_told: Told, blocked: Asked, verb: str, version: str
) -> None:
    said = ledger_told(verb, blocked.run_id, "--because", "x", "--version", version, "--as", "olga")
    assert said.code == 0
    assert "Recorded on the word of olga, as --as or the login name says; nobody has checked" in said.err
    assert last_fact(ledger_told, blocked.run_id)[1] == "operator"
    assert "nobody checks it" in " ".join(ledger_told(verb, "--help").out.split())


@pytest.fixture
def hosted(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marked: Marked) -> Iterator[tuple[str, int]]:
    """A run and its command, whose host was killed and which was asked to stop while nobody delivers it."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("RUNFACTS_DB", url)
    run_id, leader = left_by_a_killed_host(url)
    assert told("cancel", run_id).code == 0
    yield run_id, leader
    for pid in marked.living():
        kill(pid)


def test_confirm_stopped_is_refused_while_its_process_lives(told: Told, hosted: tuple[str, int]) -> None:
    run_id, _ = hosted
    (item,) = told("unproven", "--json").json["items"]
    version = str(item["version"])
    said = told("confirm-stopped", run_id, "--because", "I think it is gone", "--version", version, "--json")
    assert refused(said) == (1, "still_running")
    assert told("show", run_id, "--json").json["status"] == "running"
    said = told("confirm-stopped", run_id, "--because", "not ours", "--version", version, "--force", "--json")
    assert said.json["status"] == "cancelled"
    (confirmed,) = [one for one in told("audit", run_id, "--json").lines if one["type"] == "run.stop_confirmed"]
    assert confirmed["payload"] == {"evidence": "attested", "reason": "not ours", "forced": True}


def test_confirm_stopped_is_refused_while_a_keeper_is_about_to_say_how_it_ended(
    told: Told, hosted: tuple[str, int], marked: Marked
) -> None:
    run_id, leader = hosted
    (keeper,) = marked.living() - {leader}
    (item,) = told("unproven", "--json").json["items"]
    arguments = ("confirm-stopped", run_id, "--because", "I killed it", "--version", str(item["version"]), "--json")
    kill(keeper, signal.SIGSTOP)
    kill(leader)
    wait_until(lambda: leader not in marked.living(), "the command is dead")
    assert refused(told(*arguments)) == (1, "still_running")
    kill(keeper)
    wait_until(lambda: not marked.living(), "the keeper is dead")
    said = told(*arguments)
    assert said.json["status"] == "cancelled"
    (confirmed,) = [one for one in told("audit", run_id, "--json").lines if one["type"] == "run.stop_confirmed"]
    assert "forced" not in confirmed["payload"]


def test_nothing_that_an_operator_asks_touches_a_receipt(
    told: Told, hosted: tuple[str, int], marked: Marked, tmp_path: Path
) -> None:
    run_id, leader = hosted
    (item,) = told("unproven", "--json").json["items"]
    kill(leader)
    wait_until(lambda: not marked.living(), "the keeper has left a receipt")
    (receipt,) = (tmp_path / "ledger.db.runs").glob("*.receipt")
    receipt.write_text("not what a keeper writes")
    said = told("confirm-stopped", run_id, "--because", "I killed it", "--version", str(item["version"]), "--json")
    assert said.json["status"] == "cancelled"
    assert receipt.read_text() == "not what a keeper writes"
