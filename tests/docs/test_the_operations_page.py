"""The operations guide says of every reason in the operators' queues what to do (R6.2, R13.1)."""

from __future__ import annotations

import re

from pages import ROOT, rows, section
from runfacts.domain.cancellation.operators import DIAGNOSES
from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.infrastructure.stores.operator_queues import ATTESTED, unproven_reason

PAGE = ROOT / "docs" / "operations.md"


def reasons(heading: str) -> set[str]:
    """Give the reasons that a table of the page has."""
    return {name for cells in rows(section(PAGE, heading)) for name in re.findall(r"^`(\w+)`$", cells[0])}


def test_every_reason_of_a_blocked_delivery_is_on_the_page_and_no_other() -> None:
    # What was abandoned is out of the queue.
    assert reasons("Blocked") == set(DIAGNOSES) - {DispatchResult.ABANDONED.value}


def test_every_reason_of_an_unproven_stop_is_on_the_page_and_no_other() -> None:
    without_result = [None, *(status.value for status in DispatchStatus if status is not DispatchStatus.BLOCKED)]
    assert reasons("Unproven") == {unproven_reason(status, None)[0] for status in without_result} | {ATTESTED}
