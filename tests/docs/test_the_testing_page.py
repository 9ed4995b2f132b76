"""The page on testing names every step of commands, launches and stops, and every part of the kit (R14.3)."""

from __future__ import annotations

import inspect
import re

import pytest

from every_command import ALONE, COMMANDS
from pages import ROOT, section
from runfacts import Ledger
from runfacts.testing import (
    clock,
    controller_contract,
    evidence_contract,
    given_when_then,
    ledgers,
    plugin,
    recorded,
    steps,
)
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import RecordedSteps, listening
from stages import running

PAGE = ROOT / "docs" / "testing.md"
DATABASE = section(PAGE, "The steps of the database")
PROCESSES = section(PAGE, "The steps of a launch") + section(PAGE, "The steps of a stop")
REACHED = re.compile(r'reached\(\s*"([a-z:-]+)"')


def named(text: str) -> set[str]:
    """Give the words in code style of a text."""
    return set(re.findall(r"`([a-z0-9_:-]+)`", text))


def test_every_step_of_every_command_is_on_the_page(ledger: Ledger, ledger_factory: ThrowAwayLedgers) -> None:
    other = ledger_factory()
    acts = [prepare(other) for prepare in COMMANDS + ALONE]
    recorded = RecordedSteps()
    with listening(ledger, recorded), ledger.database.engine.connect() as caller:
        for act in acts:
            act(ledger, None)
        for act in [prepare(other) for prepare in COMMANDS]:
            act(ledger, caller)
            caller.commit()
        ledger.run(running(ledger).run_id)
        ledger.renew(running(ledger))
        ledger.history(running(ledger).run_id)
    statements = {name.split(":")[2] for name in recorded.names} - {"commit"}
    assert statements - named(DATABASE) == set()
    assert {f"sql:{when}:commit" for when in ("before", "after")} <= named(DATABASE)


def test_every_step_of_a_launch_and_of_a_stop_is_on_the_page_and_no_other() -> None:
    sources = (ROOT / "src" / "runfacts" / "infrastructure" / "processes").glob("*.py")
    reached = {name for source in sources for name in REACHED.findall(source.read_text())}
    assert {name for name in named(PROCESSES) if name.count(":") == 2} == reached


MODULES = [clock, controller_contract, evidence_contract, given_when_then, ledgers, recorded, steps]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_class_and_function_of_the_kit_is_documented(module: object) -> None:
    public = [
        thing
        for name, thing in inspect.getmembers(module)
        if not name.startswith("_")
        and (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__module__ == getattr(module, "__name__", "")
    ]
    assert public
    assert [thing for thing in public if not inspect.getdoc(thing)] == []


def test_every_fixture_is_on_the_page() -> None:
    fixtures = re.findall(r"@pytest\.fixture.*\ndef (\w+)", inspect.getsource(plugin))
    assert {"ledger", "manual_clock", "postgres_16"} <= set(fixtures)
    private = {name for name in fixtures if name.endswith("_template")}
    assert set(fixtures) - private <= named(section(PAGE, "Fixtures"))
