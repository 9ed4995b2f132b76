"""``exec`` with several attempts, with real processes: it retries, follows others, and can be taken over (R12.1)."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from process_watch import wait_until
from real_time import RealTime
from runfacts import Actor, Claimed, Ledger, Outcome, Recorded, RunStatus
from runfacts.domain.stored_commands import StoredCommand
from runfacts.testing.ledgers import contents_of
from told import Told
from under_way import UnderWay

THIRD_SUCCEEDS = 'echo try; echo x >> tries; test "$(wc -l < tries)" -eq 3 || exit 5'
TWICE = ("--attempts", "2", "--retry-failed")
OTHER = Actor.worker("other")


@pytest.fixture
def database_url(databases: RealTime) -> str:
    """A fresh database of each kind whose time passes by itself."""
    return databases.create()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger file yet to be made, which the command uses."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("RUNFACTS_DB", url)
    return url


def test_a_command_that_fails_twice_is_tried_a_third_time(ledger_told: Told, database_url: str, place: Path) -> None:
    said = ledger_told("exec", "--attempts", "3", "--retry-failed", "--json", "--", "sh", "-c", THIRD_SUCCEEDS)
    assert (said.code, said.out, (place / "tries").read_text()) == (0, "try\n" * 3, "x\n" * 3)
    assert said.err.splitlines()[1:3] == [
        "runfacts: attempt 1 of 3 failed; the next one in 1 s",
        "runfacts: attempt 2 of 3 failed; the next one in 2 s",
    ]
    shown = json.loads(said.err.splitlines()[-1])
    assert [(each["number"], each["status"], each["exit_code"]) for each in shown["attempts"]] == [
        (1, "failed", 5),
        (2, "failed", 5),
        (3, "succeeded", 0),
    ]
    begun = ["run.dispatching", "attempt.claimed", "attempt.starting", "attempt.running", "run.running"]
    with Ledger.open(database_url) as ledger:
        assert [fact.type for fact in ledger.history(said.run_id)] == [
            *("run.created", "run.queued", *begun, "attempt.failed", "run.retry_wait"),
            *("run.queued", *begun, "attempt.failed", "run.retry_wait"),
            *("run.queued", *begun, "attempt.succeeded", "run.succeeded"),
        ]
        assert contents_of(ledger)["commands"] == []
        assert "tries" not in str(ledger.history(said.run_id)) + said.err
        assert ledger.verify().clean


@pytest.mark.usefixtures("place")
def test_the_exit_code_is_that_of_the_last_attempt(file_url: str, told: Told) -> None:
    assert file_url
    said = told("exec", *TWICE, "--", "sh", "-c", 'echo x >> tries; exit "$(wc -l < tries)"')
    assert (said.code, said.err.splitlines()[1]) == (2, "runfacts: attempt 1 of 2 failed; the next one in 1 s")


def test_a_command_that_is_not_found_is_tried_again_like_any_other(file_url: str, told: Told) -> None:
    assert file_url
    said = told("exec", *TWICE, "--json", "--", "no-such-command-anywhere")
    assert said.code == 127
    assert [each["exit_code"] for each in json.loads(said.err.splitlines()[-1])["attempts"]] == [127, 127]


def test_stdin_does_not_go_with_several_attempts(file_url: str, told: Told) -> None:
    assert file_url
    said = told("exec", *TWICE, "--stdin", "--", "cat")
    assert (said.code, said.err.count("--stdin can be read once only")) == (125, 1)


class Overtaken:
    """Lets another worker claim one Attempt before the host can, and end it while the host follows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.kept: list[StoredCommand | None] = []
        claim, run = Ledger.claim, Ledger.run
        taken: list[Claimed] = []
        looks: list[str] = []

        def claiming(ledger: Ledger, run_id: str, **given: Any) -> object:  # noqa: ANN401 - as the host calls it
            self.kept.append(ledger.command_of(run_id))
            if not taken and len(run(ledger, run_id).attempts) == number - 1:
                # Where the retry is not due yet there is nothing to take.
                found = claim(ledger, run_id, actor=OTHER, executor_type="other", queue=True)
                if isinstance(found, Claimed):
                    taken.append(found)
                    ledger.start(found.claim, actor=OTHER)
                    ledger.running(found.claim, actor=OTHER)
            return claim(ledger, run_id, **given)

        def looking(ledger: Ledger, run_id: str) -> object:
            if taken:
                looks.append(run_id)
            if len(looks) == 2:
                ledger.finish(taken[0].claim, Outcome.failed(exit_code=11), actor=OTHER)
            return run(ledger, run_id)

        monkeypatch.setattr(Ledger, "claim", claiming)
        monkeypatch.setattr(Ledger, "run", looking)


def test_an_attempt_that_another_worker_took_is_followed_and_the_next_is_hosted(
    file_url: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken = Overtaken(monkeypatch, 1)
    said = told("exec", *TWICE, "--", "sh", "-c", "echo here; exit 6")
    assert (said.code, said.out) == (6, "here\n")
    assert said.err.splitlines() == [
        f"run {said.run_id}",
        f"run {said.run_id} was claimed by another worker; following it",
        "runfacts: attempt 1 of 2 failed; the next one in 1 s",
    ]
    assert overtaken.kept[0] == StoredCommand(("sh", "-c", "echo here; exit 6"), str(Path.cwd()))
    with Ledger.open(file_url) as ledger:
        attempts = ledger.run(said.run_id).attempts
        assert [(each.executor_type, each.exit_code) for each in attempts] == [("other", 11), ("local", 6)]


def test_a_retry_that_another_worker_took_is_followed_to_its_end(
    file_url: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_url
    Overtaken(monkeypatch, 2)
    said = told("exec", *TWICE, "--", "sh", "-c", "exit 6")
    assert said.code == 11
    assert said.err.splitlines()[1:] == [
        "runfacts: attempt 1 of 2 failed; the next one in 1 s",
        f"run {said.run_id} was claimed by another worker; following it",
    ]


def test_a_run_of_one_attempt_keeps_no_command(file_url: str, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_url
    overtaken = Overtaken(monkeypatch, 2)
    # Longer than anything that is kept.
    assert told("exec", "--", "true", "x" * 131_072).code == 126
    assert told("exec", "--", "true").code == 0
    assert overtaken.kept == [None, None]
    said = told("exec", *TWICE, "--", "true", "x" * 131_072)
    assert (said.code, said.err) == (125, "runfacts: command is longer than 131072 bytes\n")


def host(place: Path, url: str, script: str) -> UnderWay:
    """Start a host of two attempts; its Run's id is the first that it says."""
    return UnderWay(place, url, "exec", *TWICE, "--", "sh", "-c", script)


def run_id_of(begun: UnderWay) -> str:
    """Wait for the id of the Run that a host names first."""
    begun.says("run ")
    return begun.err.splitlines()[0].removeprefix("run ")


@pytest.mark.usefixtures("marked")
def test_a_signal_between_two_attempts_cancels_the_run(file_url: str, place: Path) -> None:
    begun = host(place, file_url, "sleep 600 & exit 5")
    with Ledger.open(file_url) as ledger:
        begun.says("something of the last attempt may live; a worker lets the next one begin when it is proven gone")
        run_id = run_id_of(begun)
        assert ledger.run(run_id).status is RunStatus.RETRY_WAIT
        begun.signal(signal.SIGTERM)
        assert begun.code() == 5
        run = ledger.run(run_id)
        assert (run.status, len(run.attempts)) == (RunStatus.CANCELLED, 1)
        assert run.cancellation is not None
        assert run.cancellation.reason == "SIGTERM at the host"


@pytest.mark.usefixtures("marked")
def test_a_second_signal_leaves_the_run_to_others(file_url: str, place: Path, told: Told) -> None:
    script = "echo x >> tries; trap '' TERM; until test -e go; do sleep 0.05; done; exit 5"
    begun = host(place, file_url, script)
    wait_until((place / "tries").exists, "it runs")
    begun.signal(signal.SIGTERM)
    begun.says("once more leaves it alone")
    begun.signal(signal.SIGTERM)
    assert begun.code() == 143
    (place / "go").touch()
    run_id = run_id_of(begun)
    with Ledger.open(file_url) as ledger:

        def ended() -> bool:
            assert told("supervise", "--once").code == 0
            return ledger.run(run_id).status is RunStatus.CANCELLED

        wait_until(ended, "a supervisor brings it to its end")


@pytest.mark.usefixtures("marked")
def test_any_worker_can_begunthe_next_attempt_when_the_begunis_gone(database_url: str, place: Path, told: Told) -> None:
    script = 'echo x >> tries; exit "$(wc -l < tries)"'
    begun = host(place, database_url, script)
    begun.says("the next one in 1 s")
    begun.signal(signal.SIGKILL)
    assert begun.code() == -signal.SIGKILL
    run_id = run_id_of(begun)
    with Ledger.open(database_url) as ledger:
        if ledger.run(run_id).status is RunStatus.RETRY_WAIT:
            wait_until(lambda: isinstance(ledger.queue(run_id, actor=OTHER), Recorded), "the retry is due")
        assert told("--db", database_url, "work", "--once").code == 0
        run = ledger.run(run_id)
        assert (run.status, [each.exit_code for each in run.attempts]) == (RunStatus.FAILED, [1, 2])
        assert contents_of(ledger)["commands"] == []
