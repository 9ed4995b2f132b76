"""What tests of the command, and of workers in processes of their own, share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process_watch import Marked, marked_environment
from real_time import RealTime
from runfacts.testing.plugin import DATABASES
from runfacts.testing.postgres import PostgresServer
from told import Told


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own, and no settings from outside."""
    for name in ("RUNFACTS_DB", "RUNFACTS_AS", "RUNFACTS_MACHINE_ID"):
        monkeypatch.delenv(name, raising=False)
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    return state


@pytest.fixture
def told(capfd: pytest.CaptureFixture[str]) -> Told:
    """The command in this process."""
    return Told(capfd)


@pytest.fixture
def ledger_told(told: Told, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The command in this process, on a fresh database of each kind."""
    monkeypatch.setenv("RUNFACTS_DB", database_url)
    return told


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Nothing that a test starts outlives it. Asked for last: a server that others use must not get the mark."""
    with marked_environment() as mark:
        yield mark


@pytest.fixture(params=DATABASES)
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealTime]:
    """Fresh databases of one kind, whose time passes by itself."""
    server: PostgresServer | None = None
    if request.param != "sqlite":
        server = request.getfixturevalue(request.param.replace("postgresql-", "postgres_"))
    made = RealTime(tmp_path, server)
    yield made
    made.drop()
