"""Texts from outside are made safe, redacted and cut, the same on every database (R2.12, R3.6, case C37)."""

from __future__ import annotations

import json
import logging
from hashlib import sha256

import pytest

from runfacts import Finished, InvalidValue, LateCallback, Ledger, Outcome, Recorded
from runfacts.domain.payloads import AttemptFailed, RunWaitingApproval
from stages import WORKER, finished, running

TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ"
LONG = f"boom \x00 \ud800 {TOKEN} " + "x" * 10_000_000
# By hand: "boom " + U+FFFD + " " + U+FFFD + " [redacted] " are 20 characters, 1,003 of 1,023 are left for x.
STORED = "boom \ufffd \ufffd [redacted] " + "x" * 1_003 + "…"
REDACTED = "boom \ufffd \ufffd [redacted] " + "x" * 10_000_000


def test_ten_megabytes_with_nul_surrogate_and_token(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    claim = running(ledger)
    answer = ledger.finish(claim, Outcome.failed(exit_code=1, error_summary=LONG), actor=WORKER)
    assert isinstance(answer, Finished)
    failed, run_failed = ledger.history(claim.run_id)[-2:]
    assert len(STORED) == 1_024
    expected = {
        "error_summary": STORED,
        "error_summary_length": len(f"boom . . {TOKEN} ") + 10_000_000,
        "error_summary_sha256": sha256(REDACTED.encode()).hexdigest(),
        "exit_code": 1,
    }
    assert failed.payload_text == json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    assert run_failed.payload_text == failed.payload_text
    assert ledger.run(claim.run_id).attempts[0].error_summary == STORED
    assert isinstance(ledger.finish(claim, Outcome.succeeded(), actor=WORKER), LateCallback)
    page = ledger.facts(run_id=claim.run_id)
    assert len(page.items) == 10
    assert sum(len(fact.payload_text.encode()) for fact in page.items) < 10 * 16_384
    assert ledger.verify().clean
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(page)


@pytest.mark.parametrize("letter", ["x", "é", "書", "😀", "\x01", '"', "\n"])
def test_a_text_of_just_the_bound_is_stored_as_it_is(ledger: Ledger, letter: str) -> None:
    code, summary = letter * 128, letter * 1_024
    claim = finished(ledger, Outcome.failed(error_code=code, error_summary=summary))
    assert ledger.history(claim.run_id)[-2].payload == AttemptFailed(error_code=code, error_summary=summary)
    attempt = ledger.run(claim.run_id).attempts[0]
    assert (attempt.error_code, attempt.error_summary) == (code, summary)
    assert ledger.verify().clean


@pytest.mark.parametrize(("name", "longest"), [("error_code", 128), ("error_summary", 1_024)])
def test_one_character_more_is_cut_and_marked(ledger: Ledger, name: str, longest: int) -> None:
    text = "😀" * (longest + 1)
    claim = finished(ledger, Outcome.failed(**{name: text}))  # type: ignore[arg-type]  # one of two names
    assert ledger.history(claim.run_id)[-2].payload == AttemptFailed.model_validate(
        {
            name: "😀" * (longest - 1) + "…",
            f"{name}_length": longest + 1,
            f"{name}_sha256": sha256(text.encode()).hexdigest(),
        }
    )


def test_an_empty_text_is_none(ledger: Ledger) -> None:
    claim = finished(ledger, Outcome.failed(error_code="", error_summary=""))
    assert ledger.history(claim.run_id)[-2].payload_text == "{}"
    assert ledger.run(claim.run_id).attempts[0].error_summary is None
    assert ledger.verify().clean


def test_a_reason_is_bounded_and_redacted(ledger: Ledger) -> None:
    claim = running(ledger)
    reason = "password=hunter2 " + "y" * 300
    answer = ledger.wait_for_approval(claim, actor=WORKER, reason=reason)
    assert isinstance(answer, Recorded)
    redacted = "[redacted] " + "y" * 300
    assert answer.facts[0].payload == RunWaitingApproval(
        reason="[redacted] " + "y" * 244 + "…",
        reason_length=317,
        reason_sha256=sha256(redacted.encode()).hexdigest(),
    )


def test_numbers_that_no_process_ends_with_are_refused() -> None:
    for fields in ({"exit_code": -1}, {"exit_code": 1 << 32}, {"signal": 0}, {"signal": 65}):
        with pytest.raises(InvalidValue):
            Outcome.failed(**fields)  # type: ignore[arg-type]  # numbers under two names
    with pytest.raises(InvalidValue, match="exit code and a signal"):
        Outcome.failed(exit_code=1, signal=9)
