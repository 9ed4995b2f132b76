"""
The example of a FastAPI application does what its page says, over HTTP (R13.3, R6.2, R2.11, R4.3).

The application is served by uvicorn, in a thread on every database, and once in a process of its own that is killed.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy.exc import OperationalError

from pages import ROOT
from process_watch import DEADLINE_S, Marked, wait_until
from runfacts import Actor, DatabaseUnreachable, Ledger, LegacyRun
from runfacts.infrastructure.database.opening import migrate
from runfacts.testing.plugin import DATABASES
from runfacts.testing.postgres import PostgresServer
from runs_api.accounts import ACCOUNTS, Accounts, Role
from runs_api.app import Service, create_app
from told import COMMAND, environment

EXAMPLE = ROOT / "examples" / "fastapi_app"
PATHS = f"{EXAMPLE}:{ROOT / 'tests' / 'doubles'}"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: Any


@dataclass(frozen=True)
class Client:
    """Calls the service with a token."""

    port: int
    token: str | None = None

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Call it once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), sent)
            response = connection.getresponse()
            return Answer(response.status, response.headers, json.loads(response.read()))
        finally:
            connection.close()


@dataclass(frozen=True)
class World:
    """A service that runs, and who may call it."""

    url: str
    place: Path
    port: int
    tokens: dict[str, str]

    def client(self, name: str) -> Client:
        """Give the client of an account."""
        return Client(self.port, self.tokens[name])

    @property
    def olga(self) -> Client:
        """An operator."""
        return self.client("olga")

    @property
    def victor(self) -> Client:
        """A viewer."""
        return self.client("victor")


@contextmanager
def served(service: Service) -> Iterator[int]:
    """Serve in a thread; gives the port."""
    config = uvicorn.Config(create_app(service), lifespan="on", loop="asyncio", http="h11", ws="none", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive(), "it serves")
            assert server.started
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database of each kind whose time passes by itself."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    server: PostgresServer = request.getfixturevalue(request.param.replace("postgresql-", "postgres_"))
    url = server.create_database()
    migrate(url)
    yield url
    server.drop_database(url)


def accounts_at(url: str) -> dict[str, str]:
    with Ledger.open(url) as ledger:
        accounts = Accounts(ledger.database.engine)
        return {"olga": accounts.add("olga", Role.OPERATOR), "victor": accounts.add("victor", Role.VIEWER)}


def jobs_in(place: Path) -> dict[str, list[str]]:
    return {
        "good": ["true"],
        "bad": ["sh", "-c", "exit 3"],
        "long": ["sh", "-c", f"touch {place}/up; until test -e {place}/go; do sleep 0.05; done; exit 4"],
    }


@pytest.fixture
def world(database_url: str, tmp_path: Path, marked: Marked) -> Iterator[World]:
    """The service on a fresh database of each kind."""
    assert marked.living() == set()
    tokens = accounts_at(database_url)
    with served(Service(database_url, jobs_in(tmp_path), drain_ms=0)) as port:
        yield World(database_url, tmp_path, port, tokens)


def submitted(world: World, job: str, **more: object) -> str:
    answer = world.olga("POST", "/runs", {"job": job, **more})
    assert answer.status == 201
    run_id: str = answer.body["run_id"]
    return run_id


def status_of(world: World, run_id: str) -> str:
    status: str = world.victor("GET", f"/runs/{run_id}").body["status"]
    return status


def test_a_job_is_submitted_hosted_and_shown(world: World) -> None:
    good, bad = submitted(world, "good"), submitted(world, "bad")
    wait_until(lambda: (status_of(world, good), status_of(world, bad)) == ("succeeded", "failed"), "both have ended")
    shown = world.victor("GET", f"/runs/{bad}").body
    assert (shown["job"], shown["attempts"]) == (
        "bad",
        [{"number": 1, "status": "failed", "exit_code": 3, "signal": None}],
    )
    first = world.victor("GET", "/runs?limit=1").body
    assert [line["run_id"] for line in first["items"]] == [bad]
    second = world.victor("GET", f"/runs?limit=1&after={first['next']}").body
    assert ([line["run_id"] for line in second["items"]], second["next"]) == ([good], None)
    failed = world.victor("GET", "/runs?status=failed").body
    assert [line["run_id"] for line in failed["items"]] == [bad]


def test_the_same_key_is_the_same_run(world: World) -> None:
    made = world.olga("POST", "/runs", {"job": "good"}, Idempotency_Key="k-1")
    again = world.olga("POST", "/runs", {"job": "good"}, Idempotency_Key="k-1")
    assert (made.status, again.status) == (201, 200)
    assert made.body["run_id"] == again.body["run_id"]
    other = world.olga("POST", "/runs", {"job": "bad"}, Idempotency_Key="k-1")
    assert (other.status, other.body["error"]) == (409, "IdempotencyConflict")


def test_a_stop_is_asked_delivered_and_shown_and_says_who_asked(world: World) -> None:
    run_id = submitted(world, "long")
    wait_until((world.place / "up").exists, "it runs")
    none = world.victor("GET", f"/runs/{run_id}/stop")
    assert (none.status, none.body["error"]) == (404, "NotAsked")
    stale = world.olga("POST", f"/runs/{run_id}/stop", {"version": 1})
    assert (stale.status, stale.body["error"]) == (409, "RunVersionConflict")
    asked = world.olga("POST", f"/runs/{run_id}/stop", {"reason": "wrong file"})
    assert asked.status in {200, 202}
    wait_until(lambda: status_of(world, run_id) == "cancelled", "it has stopped")
    progress = world.victor("GET", f"/runs/{run_id}/stop").body
    assert (progress["requested_by"], progress["reason"], progress["stopped"]) == ("olga", "wrong file", True)
    assert world.olga("POST", f"/runs/{run_id}/stop", {}).status == 200
    (entry,) = world.victor("GET", f"/audit?run_id={run_id}&type=run.cancel_requested").body["items"]
    assert (entry["actor_type"], entry["actor"]) == ("operator", "olga")
    of_olga = world.victor("GET", "/audit?actor=olga").body["items"]
    assert [each["type"] for each in of_olga] == ["run.created", "run.queued", "run.cancel_requested"]


def test_who_is_nobody_gets_nothing_and_a_viewer_changes_nothing(world: World) -> None:
    name, _, secret = world.tokens["olga"].partition(".")
    for token in (None, "", "olga", f"{name}.", f"{name}.x{secret}", f"nobody.{secret}", f"victor.{secret}"):
        for method, path in (("GET", "/runs"), ("GET", "/audit"), ("POST", "/runs")):
            answer = Client(world.port, token)(method, path, {"job": "good"} if method == "POST" else None)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert secret not in json.dumps(answer.body)
    refused = world.victor("POST", "/runs", {"job": "good"})
    assert (refused.status, refused.body["error"]) == (403, "RoleMissing")
    assert world.victor("GET", "/audit").body["items"] == []
    run_id = submitted(world, "good")
    assert world.victor("POST", f"/runs/{run_id}/stop", {}).status == 403


def test_a_removed_account_is_nobodys_and_the_table_has_no_token(world: World) -> None:
    assert world.victor("GET", "/runs").status == 200
    with Ledger.open(world.url) as ledger, ledger.database.engine.connect() as connection:
        kept = [str(row) for row in connection.execute(ACCOUNTS.select())]
    with Ledger.open(world.url) as ledger:
        Accounts(ledger.database.engine).remove("victor")
    assert len(kept) == 2
    assert not [row for row in kept for token in world.tokens.values() if token.partition(".")[2] in row]
    assert world.victor("GET", "/runs").status == 401


def test_a_writer_under_way_keeps_no_viewer_out(world: World) -> None:
    with Ledger.open(world.url) as ledger, ledger.database.engine.begin() as connection:
        ledger.create(actor=Actor.user("ana"), task="under way", connection=connection)
        assert world.victor("GET", "/runs").status == 200


def test_what_is_not_there_or_cannot_be_used_is_said(world: World) -> None:
    with Ledger.open(world.url) as ledger:
        foreign = ledger.create(actor=Actor.user("ana"), task="of another system").run.run_id
    for method, path, body, status, error in (
        ("GET", "/runs/00000000-0000-7000-8000-000000000000", None, 404, "RunNotFound"),
        ("GET", f"/runs/{foreign}", None, 404, "RunNotFound"),
        ("POST", f"/runs/{foreign}/stop", {}, 404, "RunNotFound"),
        ("GET", "/runs/no-id", None, 422, "MalformedId"),
        ("GET", "/runs?after=no-cursor", None, 422, "InvalidCursor"),
        ("POST", "/runs", {"job": "rm -rf"}, 422, "InvalidValue"),
    ):
        answer = world.olga(method, path, body)
        assert (answer.status, answer.body["error"]) == (status, error)
    assert world.olga("POST", "/runs", {"command": ["true"]}).status == 422


@pytest.mark.parametrize(
    ("error", "status", "wait"),
    [
        (DatabaseUnreachable("it is gone"), 503, "1"),
        (OperationalError("SELECT", {}, Exception("locked")), 503, "1"),
        (LegacyRun("00000000-0000-7000-8000-000000000000"), 403, None),
    ],
)
def test_a_family_of_errors_is_a_status_and_what_may_pass_is_worth_another_try(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, wait: str | None
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Ledger, "runs", fail)
    answer = world.victor("GET", "/runs")
    assert (answer.status, answer.body["error"]) == (status, type(error).__name__)
    assert answer.headers["Retry-After"] == wait
    assert "SELECT" not in answer.body["message"]


def test_a_worker_beside_it_hosts_what_it_submits(tmp_path: Path, marked: Marked) -> None:
    assert marked.living() == set()
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    tokens = accounts_at(url)
    with served(Service(url, jobs_in(tmp_path), concurrency=0)) as port:
        world = World(url, tmp_path, port, tokens)
        run_id = submitted(world, "good")
        subprocess.run([*COMMAND, "work", "--once"], env=environment(url), check=True, capture_output=True)
        assert status_of(world, run_id) == "succeeded"


class Serving:
    """``python -m runs_api serve`` in a process of its own."""

    def __init__(self, place: Path) -> None:
        self._log = place / f"server.{len(list(place.glob('server.*')))}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "runs_api", "serve", "--port", "0"],
                env=environment() | {"PYTHONPATH": PATHS},
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def port(self) -> int:
        """Wait until it serves, and give its port."""
        wait_until(lambda: self._said() or self.process.poll() is not None, "it serves")
        said = self._said()
        assert said is not None, self._log.read_text()
        return int(said[1])

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal it, and give its exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def _said(self) -> re.Match[str] | None:
        return re.search(r"running on http://127\.0\.0\.1:(\d+)", self._log.read_text())


def account(place: Path, *arguments: str) -> str:
    made = subprocess.run(
        [sys.executable, "-W", "error", "-m", "runs_api", *arguments],
        env=environment() | {"PYTHONPATH": PATHS},
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


def test_what_ran_when_the_service_was_killed_is_known_to_the_next_one(tmp_path: Path, marked: Marked) -> None:
    assert marked.living() == set()
    jobs = jobs_in(tmp_path)
    (tmp_path / "jobs.toml").write_text(
        "[jobs]\n" + "".join(f"{name} = {json.dumps(command)}\n" for name, command in jobs.items())
    )
    token = account(tmp_path, "add", "olga", "--role", "operator")
    killed = Serving(tmp_path)
    try:
        run_id = Client(killed.port(), token)("POST", "/runs", {"job": "long"}).body["run_id"]
        wait_until((tmp_path / "up").exists, "it runs")
    finally:
        assert killed.end() == -signal.SIGKILL
    next_one = Serving(tmp_path)
    try:
        client = Client(next_one.port(), token)
        assert client("GET", f"/runs/{run_id}").body["status"] == "running"
        (tmp_path / "go").touch()
        wait_until(lambda: client("GET", f"/runs/{run_id}").body["status"] == "failed", "its receipt is recorded")
        assert [each["exit_code"] for each in client("GET", f"/runs/{run_id}").body["attempts"]] == [4]
    finally:
        # uvicorn ends itself by the signal that it was sent, once everything is closed.
        assert next_one.end(signal.SIGTERM) in {0, -signal.SIGTERM}


def test_the_core_loads_no_web_framework() -> None:
    script = "import sys, runfacts; runfacts.Ledger; print({'fastapi', 'starlette', 'uvicorn'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
