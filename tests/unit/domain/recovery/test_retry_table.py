"""The retry authority over all combinations of what can be known (R12.1).

The table is written by hand from the rule. What is asked from outside before the verdict stands in brackets: ``f``
what the provider finds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.recovery.claims import ItemKind, ManualReason
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.retrying import judge_retry
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.recovery.verdict import Known, Need, Verdict, VerdictKind
from snapshots import ANSWERS, NOW_MS, snapshot
from verdict_tables import Case, Table

GROUPS: Final = {
    "ENDED": "succeeded,failed,cancelled,timed_out",
    "WITH": "dispatching,running,waiting_approval",
    "ACTIVE": "claimed,starting,running",
}
FINDINGS: Final = {
    "runs": ANSWERS["running"],
    "gone": ANSWERS["not_running"],
    "away": ANSWERS["provider_unavailable"],
    "unsure": ANSWERS["identity_unverifiable"],
    "conflict": ANSWERS["conflicting_evidence"],
}
COLUMNS: Final[dict[str, list[str]]] = {
    "run": list(RunStatus),
    "attempt": [*AttemptStatus, "none"],
    # Whether it was asked to stop; whether the retry is due; whether the Attempt before left its group behind.
    "stop": ["yes", "no"],
    "due": ["yes", "no"],
    "left": ["yes", "no"],
    "found": list(FINDINGS),
    # Whether the scope is not the holder's.
    "far": ["yes", "no"],
}
TABLE: Final = Table(
    COLUMNS,
    GROUPS,
    """
# run            attempt           stop due left found     far

# 2: neither lost nor waiting for a retry, or R12.2's.
  created,queued *                 *    *   *    *         *   =>  2 resolved []
  WITH,ENDED     *                 *    *   *    *         *   =>  2 resolved []
  retry_wait     *                 yes  *   *    *         *   =>  2 resolved []

# 3: nothing that could be tried again.
  lost           none,ACTIVE,ENDED *    *   *    *         *   =>  3 manual inconsistent []
  retry_wait     none,ACTIVE       no   *   *    *         *   =>  3 manual inconsistent []

# 5: the policy says what becomes of it.
  lost           lost              *    *   *    *         *   =>  5 moved_on []

# 6: not due.
  retry_wait     ENDED,lost        no   no  *    *         *   =>  6 retry []

# 7: due, and nothing is left of the Attempt before.
  retry_wait     ENDED,lost        no   yes no   *         *   =>  7 moved_on []

# 8 to 10: its group was left, and nobody of it may live.
  retry_wait     ENDED,lost        no   yes yes  gone      *   =>  8 moved_on [f]
  retry_wait     ENDED,lost        no   yes yes  runs,away *   =>  9 retry [f]
  retry_wait     ENDED,lost        no   yes yes  unsure    no  => 10 manual identity_unverifiable [f]
  retry_wait     ENDED,lost        no   yes yes  unsure    yes => 10 manual scope_unserved [f]
  retry_wait     ENDED,lost        no   yes yes  conflict  *   => 10 manual conflicting_evidence [f]
""",
)


def seen(case: Case) -> Snapshot:
    """The snapshot that a case says."""
    attempt = None if case["attempt"] == "none" else case["attempt"]
    other: dict[str, Any] = {
        "group_left": case["left"] == "yes",
        "retry_due_at_ms": NOW_MS if case["due"] == "yes" else NOW_MS + 1,
    }
    if case["stop"] == "yes":
        other |= {"intent_kind": IntentKind.USER, "intent_at_ms": 1}
    return snapshot(case["run"], attempt, **other)


def known_of(of: Snapshot | None, *, ours: bool = True, foreign: bool = False) -> Known:
    return Known(ours=ours, kind=ItemKind.RUN, foreign=foreign, snapshot=of)


def judged(known: Known, case: Case) -> str:
    """What comes out in the end, in the table's words, and what was asked on the way."""
    asked = ""
    while isinstance(answer := judge_retry(known), Need):
        assert answer is Need.FINDING
        asked += "f"
        known = replace(known, finding=Finding(FINDINGS[case["found"]]))
    words = (answer.row, answer.kind, answer.reason, answer.evidence, answer.provider_type)
    return " ".join(str(word) for word in (*words, f"[{asked}]") if word is not None)


@pytest.mark.parametrize("run", COLUMNS["run"])
def test_every_combination_has_the_verdict_that_the_rule_gives_it(run: str) -> None:
    for case, expected in TABLE.cases(run=run):
        assert judged(known_of(seen(case), foreign=case["far"] == "yes"), case) == expected, case


@pytest.mark.parametrize("run", list(RunStatus))
def test_a_claim_that_is_no_longer_ours_is_fenced_whatever_is_known(run: RunStatus) -> None:
    assert judge_retry(known_of(snapshot(run, "lost"), ours=False)) == Verdict(1, VerdictKind.FENCED)


@pytest.mark.parametrize("run", list(RunStatus))
def test_a_run_that_is_gone_or_another_systems_is_resolved(run: RunStatus) -> None:
    legacy = snapshot(run, "lost", execution_owner=ExecutionOwner.LEGACY)
    assert judge_retry(known_of(legacy)) == Verdict(2, VerdictKind.RESOLVED)
    assert judge_retry(known_of(None)) == Verdict(2, VerdictKind.RESOLVED)


@pytest.mark.parametrize("run", ["lost", "retry_wait"])
def test_a_run_with_facts_of_a_later_release_is_an_operators(run: str) -> None:
    unexpected = Verdict(4, VerdictKind.MANUAL, ManualReason.UNEXPECTED)
    assert judge_retry(known_of(snapshot(run, "lost", unknown_types=True))) == unexpected


def test_a_retry_that_is_not_due_waits_until_it_is() -> None:
    waits = snapshot("retry_wait", "failed", retry_due_at_ms=NOW_MS + 700)
    assert judge_retry(known_of(waits)) == Verdict(6, VerdictKind.RETRY, wait_ms=700)
