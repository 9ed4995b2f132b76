"""What tests of the command share."""

from __future__ import annotations

from pathlib import Path

import pytest

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
