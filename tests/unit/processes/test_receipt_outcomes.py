"""R10.2: what a receipt says about the end of a command."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.processes.completion import outcome_of
from runfacts.infrastructure.processes.receipts import Receipt

FIELDS: dict[str, object] = {
    "version": 1,
    "run_id": "019316d5-0000-7000-8000-000000000001",
    "attempt_id": "019316d5-0000-7000-8000-000000000002",
    "sequence": 2147483647,
    "token": "rft_the-token",
    "started_at_ms": 1,
    "ended_at_ms": 2,
    "exit_code": 0,
    "signal": None,
    "not_executed": None,
    "group_left": False,
}


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, Outcome.succeeded(exit_code=0)),
        ({"exit_code": 137}, Outcome.failed(exit_code=137)),
        ({"exit_code": None, "signal": 9}, Outcome.failed(signal=9)),
        (
            {"exit_code": 127, "not_executed": "command:ENOENT"},
            Outcome.failed(exit_code=127, error_code="command_not_found", error_summary="the command was not found"),
        ),
        (
            {"exit_code": 126, "not_executed": "command:ELOOP"},
            Outcome.failed(
                exit_code=126,
                error_code="command_not_executed",
                error_summary="the command could not be executed (command:ELOOP)",
            ),
        ),
    ],
)
def test_exit_code_0_is_success_and_everything_else_is_not(change: dict[str, object], outcome: Outcome) -> None:
    assert outcome_of(Receipt.model_validate(FIELDS | change)) == outcome


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": None},
        {"signal": 9},
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": None, "signal": 0},
        {"exit_code": True},
        {"version": 2},
        {"sequence": 0},
        {"sequence": 2**31},
        {"command": "sh"},
        {"group_left": "no"},
        {"started_at_ms": 1.5},
    ],
)
def test_a_receipt_is_closed_and_bounded(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Receipt.model_validate(FIELDS | change)


def test_the_token_is_not_shown() -> None:
    assert "rft_" not in repr(Receipt.model_validate(FIELDS))
