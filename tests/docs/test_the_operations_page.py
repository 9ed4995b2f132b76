"""The operations guide says of every reason in the operators' queues what to do (R6.2, R13.1)."""

from __future__ import annotations

import re

from pages import ROOT, prose, rows, section
from runfacts.domain.cancellation.operators import DIAGNOSES
from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.recovery.claims import ManualReason
from runfacts.infrastructure.stores.operator_queues import LEGACY, ON_A_WORD, unproven_reason

PAGE = ROOT / "docs" / "operations.md"


def reasons(heading: str) -> set[str]:
    """Give the reasons that a table of the page has."""
    return {name for cells in rows(section(PAGE, heading)) for name in re.findall(r"^`(\w+)`$", cells[0])}


def test_every_reason_of_a_blocked_delivery_is_on_the_page_and_no_other() -> None:
    # What was abandoned is out of the queue.
    assert reasons("Blocked") == set(DIAGNOSES) - {DispatchResult.ABANDONED.value}


def test_every_reason_of_an_unproven_stop_is_on_the_page_and_no_other() -> None:
    without_result = [None, *(status.value for status in DispatchStatus if status is not DispatchStatus.BLOCKED)]
    under_way = {unproven_reason(status, None)[0] for status in without_result}
    assert reasons("Unproven") == under_way | {LEGACY} | set(ON_A_WORD)


def test_every_reason_of_a_recovery_that_waits_for_an_operator_is_on_the_page_and_no_other() -> None:
    assert reasons("Manual") == {reason.value for reason in ManualReason}


def test_the_states_that_show_has_words_for_are_explained() -> None:
    text = prose(PAGE)
    for words in ("its worker vanished", "signalled, still running", "lost on proof", "waits for an operator"):
        assert words in text
