"""
Workers that host what was submitted, with real processes.

R9.5, R10.2, R10.5, R12.1, R3.6: many workers and no Run twice, a worker that is asked to go, one that is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from process_watch import Marked, wait_until
from real_time import RealTime
from runfacts import Actor, Ledger, RetryPolicy, RunStatus, Safety
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.infrastructure.processes.prepared import LaunchFailed
from runfacts.testing.ledgers import contents_of
from told import Told, environment
from under_way import UnderWay

ANA = Actor.user("ana")
RUNS = 60
WORK = ("work", "--json", "--interval", "0.25")
NOTE = 'echo "$RUNFACTS_RUN_ID" >> ran; '
STAYS = NOTE + "until test -e go; do sleep 0.05; done; exit 7"


@pytest.fixture
def database_url(databases: RealTime) -> str:
    """A fresh database of each kind whose time passes by itself."""
    return databases.create()


@pytest.fixture
def file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger file yet to be made, which the command uses."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("RUNFACTS_DB", url)
    return url


Start = Callable[..., UnderWay]


@pytest.fixture
def start(tmp_path: Path, marked: Marked) -> Iterator[Start]:
    """Start the command on a database; nothing of it outlives the test."""
    assert marked.living() == set()
    place = tmp_path / "said"
    place.mkdir()
    started: list[UnderWay] = []

    def begin(url: str, *arguments: str) -> UnderWay:
        started.append(UnderWay(place, url, *arguments))
        return started[-1]

    yield begin
    for each in started:
        each.end()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the commands run."""
    place = tmp_path / "place"
    place.mkdir()
    return place


def submit(ledger: Ledger, place: Path, script: str, **options: Any) -> str:  # noqa: ANN401 - any option of submit
    """Submit a script; the id of its Run."""
    return ledger.submit(["sh", "-c", script], actor=ANA, cwd=str(place), **options).run.run_id


def ran(place: Path) -> list[str]:
    """Give the Runs whose command has begun, once for each time."""
    file = place / "ran"
    return file.read_text().splitlines() if file.exists() else []


def status(ledger: Ledger, run_id: str) -> RunStatus:
    """Give where a Run stands."""
    return ledger.run(run_id).status


@pytest.mark.timeout(600)
def test_two_workers_host_everything_once(database_url: str, place: Path, start: Start) -> None:
    with Ledger.open(database_url) as ledger:
        run_ids = [submit(ledger, place, NOTE + f"exit {number % 2}") for number in range(RUNS)]
        workers = [start(database_url, *WORK, "--concurrency", "4") for _ in range(2)]
        wait_until(lambda: not ledger.queued_runs().items and not contents_of(ledger)["commands"], "all have ended")
        assert [status(ledger, run_id) for run_id in run_ids] == [RunStatus.SUCCEEDED, RunStatus.FAILED] * (RUNS // 2)
        assert sorted(ran(place)) == sorted(run_ids)
        assert {len(ledger.run(run_id).attempts) for run_id in run_ids} == {1}
        for worker in workers:
            worker.signal(signal.SIGTERM)
        assert [worker.code() for worker in workers] == [0, 0]
        assert sum(worker.counted("hosted", "claimed") for worker in workers) == RUNS
        for outcome in ("succeeded", "failed"):
            assert sum(worker.counted("hosted", outcome) for worker in workers) == RUNS // 2
        assert ledger.verify().clean


@pytest.mark.timeout(300)
def test_a_worker_that_is_asked_to_go_takes_nothing_new_and_lets_its_commands_end(
    database_url: str, place: Path, start: Start
) -> None:
    with Ledger.open(database_url) as ledger:
        first, second, left = (submit(ledger, place, STAYS) for _ in range(3))
        worker = start(database_url, *WORK, "--concurrency", "2", "--set", "drain_ms=60000")
        wait_until(lambda: sorted(ran(place)) == sorted([first, second]), "both places are taken")
        worker.signal(signal.SIGTERM)
        worker.says("waiting for 2 commands to end")
        (place / "go").touch()
        assert worker.code() == 0
        ended = [status(ledger, run_id) for run_id in (first, second, left)]
        assert ended == [RunStatus.FAILED, RunStatus.FAILED, RunStatus.QUEUED]
        assert [ledger.run(run_id).attempts[0].exit_code for run_id in (first, second)] == [7, 7]
        assert worker.counted("hosted", "failed") == 2
        assert sorted(ran(place)) == sorted([first, second])


def recorded_by(start: Start, url: str, *, collecting: tuple[str, ...] = ("supervise", "--once", "--json")) -> None:
    """Let somebody else of this machine record what was left."""
    other = start(url, *collecting)
    assert other.code() == 0
    assert other.counted("completion", "recorded") == 1


@pytest.mark.parametrize("how", ["drain time is over", "second signal"])
def test_what_outlasts_the_drain_is_left_running_and_recorded_by_others(
    file_url: str, place: Path, start: Start, how: str
) -> None:
    with Ledger.open(file_url) as ledger:
        run_id = submit(ledger, place, STAYS)
        drain = "60000" if how == "second signal" else "0"
        worker = start(file_url, *WORK, "--set", f"drain_ms={drain}")
        wait_until(lambda: status(ledger, run_id) is RunStatus.RUNNING and ran(place) == [run_id], "it runs")
        worker.signal(signal.SIGTERM)
        if how == "second signal":
            worker.says("waiting for 1 command to end; once more leaves them alone")
            worker.signal(signal.SIGTERM)
        assert worker.code() == 0
        assert "1 command left running" in worker.err
        assert worker.counted("hosted", "detached") == 1
        assert status(ledger, run_id) is RunStatus.RUNNING
        (place / "go").touch()
        receipts = ledger.places()
        wait_until(lambda: list(receipts.receipts()), "the keeper leaves its receipt")
        recorded_by(start, file_url)
        (attempt,) = ledger.run(run_id).attempts
        assert (attempt.status, attempt.exit_code, ran(place)) == ("failed", 7, [run_id])


@pytest.mark.timeout(300)
def test_commands_of_a_killed_worker_go_on_and_the_next_worker_records_them(
    database_url: str, place: Path, start: Start
) -> None:
    with Ledger.open(database_url) as ledger:
        run_ids = sorted(submit(ledger, place, STAYS) for _ in range(2))
        worker = start(database_url, *WORK, "--concurrency", "2")
        wait_until(lambda: sorted(ran(place)) == run_ids, "both run")
        worker.signal(signal.SIGKILL)
        assert worker.code() == -signal.SIGKILL
        other = start(database_url, *WORK)
        (place / "go").touch()
        wait_until(lambda: {status(ledger, run_id) for run_id in run_ids} == {RunStatus.FAILED}, "both are recorded")
        assert sorted(ran(place)) == run_ids
        assert [ledger.run(run_id).attempts[0].exit_code for run_id in run_ids] == [7, 7]
        other.signal(signal.SIGTERM)
        assert other.code() == 0
        assert contents_of(ledger)["commands"] == []
        assert ledger.verify().clean


@pytest.mark.timeout(300)
def test_what_is_lost_with_its_worker_is_tried_again_by_another_where_that_is_safe(
    database_url: str, place: Path, start: Start, marked: Marked
) -> None:
    again = RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=0)
    script = NOTE + 'test "$(wc -l < ran)" -ge 2 || sleep 600'
    short = ("--set", "execution_lease_ms=2000", "--set", "recovery_delay_ms=100")
    with Ledger.open(database_url) as ledger:
        run_id = submit(ledger, place, script, policy=again)
        worker = start(database_url, *WORK, *short)
        wait_until(lambda: ran(place) == [run_id], "it runs")
        worker.signal(signal.SIGKILL)
        # Its keeper and the command die with it.
        marked.end()
        other = start(database_url, *WORK, *short)
        wait_until(lambda: status(ledger, run_id) is RunStatus.SUCCEEDED, "it is lost on proof and tried again")
        run = ledger.run(run_id)
        assert [(each.number, each.status) for each in run.attempts] == [(1, "lost"), (2, "succeeded")]
        assert {each.worker_id for each in run.attempts} != {run.attempts[0].worker_id}
        assert ran(place) == [run_id] * 2
        other.signal(signal.SIGTERM)
        assert other.code() == 0
        assert contents_of(ledger)["commands"] == []
        assert ledger.verify().clean


def test_a_run_that_a_worker_hosts_can_be_cancelled(database_url: str, place: Path, start: Start) -> None:
    with Ledger.open(database_url) as ledger:
        run_id = submit(ledger, place, STAYS)
        worker = start(database_url, *WORK)
        wait_until(lambda: ran(place) == [run_id], "it runs")
        ledger.request_cancellation(run_id, actor=ANA)
        wait_until(lambda: status(ledger, run_id) is RunStatus.CANCELLED, "it is stopped")
        late = submit(ledger, place, STAYS, timeout_ms=300)
        wait_until(lambda: status(ledger, late) is RunStatus.TIMED_OUT, "its time is over")
        worker.signal(signal.SIGTERM)
        assert worker.code() == 0
        assert (worker.counted("hosted", "cancelled"), worker.counted("hosted", "timed_out")) == (1, 1)


@pytest.mark.usefixtures("file_url", "marked")
def test_once_hosts_what_is_queued_and_ends(told: Told, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    said = [told("submit", "--json", *options) for options in COMMANDS_IN_TROUBLE]
    assert [each.code for each in said] == [0] * 5
    run_ids = [each.json["run_id"] for each in said]
    assert {each.json["status"] for each in said} == {"queued"}
    gone = place / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    run_ids.append(told("submit", "--", "true").out.strip())
    monkeypatch.chdir(place)
    gone.rmdir()
    worked = told("work", "--once", "--json", "--concurrency", "2")
    (line,) = worked.lines
    assert worked.code == 0
    assert line["hosted"] == {"seen": 6, "claimed": 6, "succeeded": 1, "failed": 5}
    assert {"cancellation", "completion"} < line.keys()
    shown = [told("show", run_id, "--json").json for run_id in run_ids]
    attempts = [run["attempts"][0] for run in shown]
    assert [(each["exit_code"], each["signal"], each["error_code"]) for each in attempts] == [
        (0, None, None),
        (3, None, None),
        (None, 9, None),
        (127, None, "command_not_found"),
        (126, None, "command_not_executable"),
        (126, None, "directory_unusable"),
    ]
    assert [(run["task"], run["project"]) for run in shown[:2]] == [("command", "default"), ("t", "p")]
    again = told("work", "--once", "--json")
    assert again.lines[0]["hosted"] == {"seen": 0, "claimed": 0}
    assert told("verify").code == 0


@pytest.mark.usefixtures("marked")
def test_once_that_leaves_what_is_queued_because_of_its_own_trouble_fails(
    file_url: str, told: Told, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a cron job must not pass for one that has done its work."""

    def prepare(*_: object) -> None:
        raise LaunchFailed("too many open files")

    with Ledger.open(file_url) as ledger:
        run_ids = [submit(ledger, place, NOTE) for _ in range(4)]
        with monkeypatch.context() as patched:
            patched.setattr(Launcher, "prepare", prepare)
            worked = told("work", "--once", "--concurrency", "1")
        assert worked.code == 1, worked
        assert "hosting failed; what is still queued was left" in worked.err
        # One was spoiled, and whoever has no trouble goes on with the rest.
        assert [status(ledger, run_id) for run_id in run_ids] == [RunStatus.FAILED] + [RunStatus.QUEUED] * 3
        assert told("work", "--once", "--concurrency", "1").code == 0
        assert ran(place) == run_ids[1:]


COMMANDS_IN_TROUBLE = (
    ("--", "true"),
    ("--task", "t", "--project", "p", "--", "sh", "-c", "exit 3"),
    ("--", "sh", "-c", "kill -KILL $$"),
    ("--", "no-such-command-anywhere"),
    ("--", "/etc/passwd"),
)


@pytest.mark.usefixtures("file_url", "marked")
def test_a_worker_shows_nothing_of_commands(told: Told, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    submitted = told("submit", "--", "sh", "-c", "exit 3 # hunter2")
    worked = told("work", "--once", "--debug")
    run_id = submitted.out.strip()
    said = [submitted, worked, *(told(*words) for words in (("show", run_id), ("audit", run_id, "--json"), ("list",)))]
    assert [each.code for each in said] == [0] * 5
    assert [each for each in said if "hunter2" in each.out + each.err] == []


@pytest.mark.usefixtures("file_url", "marked")
def test_a_submitted_command_has_the_workers_environment(
    told: Told, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("OF_THE_SUBMITTER", "yes")
    told("submit", "--", "sh", "-c", 'echo "$OF_THE_SUBMITTER/$OF_THE_WORKER/$PWD" > seen')
    monkeypatch.delenv("OF_THE_SUBMITTER")
    monkeypatch.setenv("OF_THE_WORKER", "too")
    monkeypatch.chdir("/")
    assert told("work", "--once").code == 0
    assert (place / "seen").read_text() == f"/too/{place}\n"


def test_a_key_submits_once(file_url: str, told: Told) -> None:
    """Another command is no conflict (R2.11), but it is told: in words and to programs."""
    assert environment(file_url)["RUNFACTS_DB"] == file_url
    first = told("submit", "--key", "k", "--json", "--", "true")
    run_id = first.json["run_id"]
    assert first.json == {"run_id": run_id, "status": "queued", "created": True, "differs": None}
    same = told("submit", "--key", "k", "--json", "--", "true")
    assert (same.code, same.json) == (0, first.json | {"created": False})
    belongs = f"runfacts: the key k belongs to run {run_id}, which is queued"
    assert same.err == f"{belongs}; it is not run a second time\n"
    again = told("submit", "--key", "k", "--json", "--", "false")
    assert (again.code, again.json) == (0, first.json | {"created": False, "differs": "command"})
    assert again.err == f"{belongs} and has another command: yours was neither kept nor run\n"
    other = told("submit", "--key", "k", "--task", "other", "--json", "--", "true")
    assert (other.code, other.json["error"]["code"]) == (4, "idempotency_conflict")


def test_exec_tells_that_the_run_of_its_key_has_another_command(file_url: str, told: Told) -> None:
    assert environment(file_url)["RUNFACTS_DB"] == file_url
    run_id = told("submit", "--key", "k", "--json", "--", "true").json["run_id"]
    belongs = f"runfacts: the key k belongs to run {run_id}, which is"
    said = told("exec", "--key", "k", "--", "false")
    assert (said.code, said.err.splitlines()[1]) == (
        4,
        f"{belongs} queued and has another command: yours was neither kept nor run",
    )
    assert told("work", "--once").code == 0
    ended = told("exec", "--key", "k", "--", "false")
    assert (ended.code, ended.err.splitlines()[1]) == (
        0,
        f"{belongs} succeeded; yours was not run, and not compared with its command, which is not kept",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--", ""), "The command is empty"),
        ((), "Missing argument"),
        (("--attempts", "0", "--", "true"), "0 is not in the range 1<=x<=16"),
        (("--attempts", "17", "--retry-failed", "--", "true"), "17 is not in the range 1<=x<=16"),
        (("--attempts", "3", "--", "true"), "--attempts would change nothing"),
        (("--retry-failed", "--", "true"), "--retry-failed would change nothing"),
        (("--attempts", "3", "--retry-lost", "--", "true"), "--retry-lost needs --replay-safe"),
        (("--replay-safe", "unknown", "--", "true"), "'unknown' is not one of"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    file_url: str, told: Told, arguments: tuple[str, ...], words: str
) -> None:
    assert file_url
    said = told("submit", "--json", *arguments)
    assert (said.code, said.json["error"]["code"]) == (2, "usage")
    assert words in said.err
    ran_in_vain = told("exec", *arguments)
    assert (ran_in_vain.code, words in ran_in_vain.err) == (125, True)
    assert told("list", "--json").json["items"] == []


@pytest.mark.parametrize("concurrency", ["0", "257", "many"])
def test_a_worker_has_a_bounded_number_of_places(file_url: str, told: Told, concurrency: str) -> None:
    assert file_url
    assert told("work", "--concurrency", concurrency).code == 2
