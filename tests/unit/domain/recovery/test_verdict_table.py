"""The verdict of recovery over all combinations of what can be known (R11.4, R8.2).

The table is written by hand from the rule: each of its lines names the rule's row. What is asked from outside before
the verdict stands in brackets: ``r`` whether there is a receipt, ``f`` what the provider finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.recovery.claims import ItemKind, ManualReason
from runfacts.domain.recovery.evidence import Evidence
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.recovery.verdict import Known, Need, Verdict, VerdictKind, judge
from snapshots import ANSWERS, execution, snapshot
from verdict_tables import Case, Table

GROUPS: Final = {
    "ENDED": "succeeded,failed,cancelled,timed_out",
    "WITH": "dispatching,running,waiting_approval",
    "ACTIVE": "claimed,starting,running",
    # Starting, and a process may have been let run.
    "PROBED": "GH,OH,O-",
}
KINDS: Final = {"att": ItemKind.ATTEMPT, "run": ItemKind.RUN}
FINDINGS: Final = {
    "runs": Finding(ANSWERS["running"]),
    "gone": Finding(ANSWERS["not_running"]),
    "away": Finding(ANSWERS["provider_unavailable"]),
    "unsure": Finding(ANSWERS["identity_unverifiable"]),
    "conflict": Finding(ANSWERS["conflicting_evidence"]),
    # The receipt appears while the provider is asked.
    "published": Finding(ANSWERS["not_running"], receipt=True),
}
COLUMNS: Final[dict[str, list[str]]] = {
    # Recovery of an Attempt, or of a Run without one.
    "of": ["att", "run"],
    "run": list(RunStatus),
    "attempt": [*AttemptStatus, "none"],
    "lease": ["ok", "over"],
    # Whether it was asked to stop; whether a receipt is found before the provider is asked.
    "stop": ["yes", "no"],
    "rcpt": ["yes", "no"],
    # Whether the executor has a gate or is open, and whether the handle is recorded.
    "gate": ["GH", "G-", "OH", "O-"],
    "found": list(FINDINGS),
    # Whether the scope is not the holder's.
    "far": ["yes", "no"],
}
TABLE: Final = Table(
    COLUMNS,
    GROUPS,
    """
# of  run               attempt             lease stop rcpt gate   found     far

# 2: Run and Attempt ended consistently, or the Run has moved on from the Attempt.
  *   queued,ENDED      none                *     *    *    *      *         *   =>  2 resolved []
  *   succeeded         succeeded           *     *    *    *      *         *   =>  2 resolved []
  *   failed            failed,lost         *     *    *    *      *         *   =>  2 resolved []
  *   cancelled         cancelled           *     *    *    *      *         *   =>  2 resolved []
  *   cancelled         failed,lost         *     *    *    *      *         *   =>  2 resolved []
  *   timed_out         cancelled,timed_out *     *    *    *      *         *   =>  2 resolved []
  *   timed_out         failed,lost         *     *    *    *      *         *   =>  2 resolved []
  *   queued,retry_wait failed,lost         *     *    *    *      *         *   =>  2 resolved []
  *   lost              lost                *     *    *    *      *         *   =>  2 resolved []

# 3: an active Attempt whose Run has none, or a Run whose latest Attempt ended otherwise than lost.
  *   created,ENDED     ACTIVE              *     *    *    *      *         *   =>  3 manual inconsistent []
  *   queued,retry_wait ACTIVE              *     *    *    *      *         *   =>  3 manual inconsistent []
  *   lost              ACTIVE              *     *    *    *      *         *   =>  3 manual inconsistent []
  *   WITH              ENDED               *     *    *    *      *         *   =>  3 manual inconsistent []

# 4: the execution lease is valid again; a Run that was claimed without an Attempt has one now.
  att WITH              ACTIVE              ok    *    *    *      *         *   =>  4 resolved []
  run WITH              ACTIVE              *     *    *    *      *         *   =>  4 resolved []

# 5: an intent has appeared; R12.2 owns the Run from now on.
  att WITH              ACTIVE              over  yes  *    *      *         *   =>  5 retry []
  *   WITH              lost,none           *     yes  *    *      *         *   =>  5 retry []
  *   created           none                *     yes  *    *      *         *   =>  5 retry []
  *   retry_wait,lost   none                *     yes  *    *      *         *   =>  5 retry []
  *   created           ENDED,lost          *     yes  *    *      *         *   =>  5 retry []
  *   queued,retry_wait succeeded           *     yes  *    *      *         *   =>  5 retry []
  *   queued,retry_wait cancelled,timed_out *     yes  *    *      *         *   =>  5 retry []
  *   lost              ENDED               *     yes  *    *      *         *   =>  5 retry []

# 6: a completion receipt, found before anybody is asked, or published meanwhile.
  att WITH              ACTIVE              over  no   yes  *      *         *   =>  6 receipt [r]
  att WITH              starting            over  no   no   PROBED published *   =>  6 receipt [rf]
  att WITH              running             over  no   no   *      published *   =>  6 receipt [rf]

# 7: the Attempt is lost already and the Run not.
  *   WITH              lost                *     no   *    *      *         *   =>  7 run_lost []

# 8 and 9: it never started.
  att WITH              claimed             over  no   no   *      *         *   =>  8 lost pre_start [r]
  att WITH              starting            over  no   no   G-     *         *   =>  9 lost pre_start [r]

# 10: proven gone.
  att WITH              starting            over  no   no   PROBED gone      *   => 10 lost not_running batch [rf]
  att WITH              running             over  no   no   *      gone      *   => 10 lost not_running batch [rf]

# 11: it runs, or nobody could be asked.
  att WITH              starting            over  no   no   PROBED runs,away *   => 11 retry [rf]
  att WITH              running             over  no   no   *      runs,away *   => 11 retry [rf]

# 12: it cannot be told, or contradicts itself; what another scope cannot tell is unserved (R8.2).
  att WITH              starting            over  no   no   PROBED unsure    no  => 12 manual identity_unverifiable [rf]
  att WITH              running             over  no   no   *      unsure    no  => 12 manual identity_unverifiable [rf]
  att WITH              starting            over  no   no   PROBED unsure    yes => 12 manual scope_unserved [rf]
  att WITH              running             over  no   no   *      unsure    yes => 12 manual scope_unserved [rf]
  att WITH              starting            over  no   no   PROBED conflict  *   => 12 manual conflicting_evidence [rf]
  att WITH              running             over  no   no   *      conflict  *   => 12 manual conflicting_evidence [rf]

# 13: created, without its Attempt, and whatever no rule names.
  *   created           none                *     no   *    *      *         *   => 13 manual stuck_created []
  *   WITH              none                *     no   *    *      *         *   => 13 manual unexpected []
  *   retry_wait,lost   none                *     no   *    *      *         *   => 13 manual unexpected []
  *   created           ENDED,lost          *     no   *    *      *         *   => 13 manual unexpected []
  *   queued,retry_wait succeeded           *     no   *    *      *         *   => 13 manual unexpected []
  *   queued,retry_wait cancelled,timed_out *     no   *    *      *         *   => 13 manual unexpected []
  *   lost              ENDED               *     no   *    *      *         *   => 13 manual unexpected []
  *   succeeded         failed,lost         *     *    *    *      *         *   => 13 manual unexpected []
  *   succeeded         cancelled,timed_out *     *    *    *      *         *   => 13 manual unexpected []
  *   failed            succeeded           *     *    *    *      *         *   => 13 manual unexpected []
  *   failed            cancelled,timed_out *     *    *    *      *         *   => 13 manual unexpected []
  *   cancelled         succeeded,timed_out *     *    *    *      *         *   => 13 manual unexpected []
  *   timed_out         succeeded           *     *    *    *      *         *   => 13 manual unexpected []
""",
)


def seen(case: Case) -> Snapshot:
    """The snapshot that a case says."""
    attempt = None if case["attempt"] == "none" else case["attempt"]
    other: dict[str, Any] = {"lease_valid": case["lease"] == "ok"}
    if attempt is not None:
        other["execution"] = execution(
            gated=case["gate"].startswith("G"), handle="handle" if case["gate"].endswith("H") else None
        )
    if case["stop"] == "yes":
        other |= {"intent_kind": IntentKind.USER, "intent_at_ms": 1}
    return snapshot(case["run"], attempt, **other)


def judged(known: Known, case: Case, judge_it: Callable[[Known], Verdict | Need] = judge) -> str:
    """What comes out in the end, in the table's words, and what was asked on the way."""
    asked = ""
    while isinstance(answer := judge_it(known), Need):
        if answer is Need.RECEIPT:
            asked += "r"
            known = replace(known, receipt=case["rcpt"] == "yes")
        else:
            asked += "f"
            known = replace(known, finding=FINDINGS[case["found"]])
    words = (answer.row, answer.kind, answer.reason, answer.evidence, answer.provider_type)
    return " ".join(str(word) for word in (*words, f"[{asked}]") if word is not None)


@pytest.mark.parametrize("attempt", COLUMNS["attempt"])
@pytest.mark.parametrize("run", COLUMNS["run"])
def test_every_combination_has_the_verdict_that_the_rule_gives_it(run: str, attempt: str) -> None:
    for case, expected in TABLE.cases(run=run, attempt=attempt):
        known = Known(ours=True, kind=KINDS[case["of"]], foreign=case["far"] == "yes", snapshot=seen(case))
        assert judged(known, case) == expected, case


def known_of(of: Snapshot | None, *, ours: bool = True, kind: ItemKind = ItemKind.ATTEMPT) -> Known:
    return Known(ours=ours, kind=kind, foreign=False, snapshot=of)


@pytest.mark.parametrize("run", list(RunStatus))
@pytest.mark.parametrize("kind", list(ItemKind))
def test_a_claim_that_is_no_longer_ours_is_fenced_whatever_is_known(run: RunStatus, kind: ItemKind) -> None:
    assert judge(known_of(snapshot(run), ours=False, kind=kind)) == Verdict(1, VerdictKind.FENCED)
    assert judge(known_of(None, ours=False, kind=kind)) == Verdict(1, VerdictKind.FENCED)


@pytest.mark.parametrize("run", list(RunStatus))
def test_a_run_that_is_gone_or_another_systems_is_resolved_whatever_its_status(run: RunStatus) -> None:
    assert judge(known_of(None)) == Verdict(2, VerdictKind.RESOLVED)
    legacy = snapshot(run, execution_owner=ExecutionOwner.LEGACY)
    assert judge(known_of(legacy)) == Verdict(2, VerdictKind.RESOLVED)


@pytest.mark.parametrize("attempt", ["succeeded", "failed", "cancelled", "timed_out", "lost"])
@pytest.mark.parametrize("run", list(RunStatus))
def test_an_ended_attempt_with_a_later_one_is_of_no_concern(run: RunStatus, attempt: str) -> None:
    assert judge(known_of(snapshot(run, attempt, attempt_latest=False))) == Verdict(2, VerdictKind.RESOLVED)


@pytest.mark.parametrize("attempt", ["claimed", "starting", "running"])
def test_an_active_attempt_with_a_later_one_is_inconsistent(attempt: str) -> None:
    inconsistent = Verdict(3, VerdictKind.MANUAL, ManualReason.INCONSISTENT)
    assert judge(known_of(snapshot("running", attempt, attempt_latest=False))) == inconsistent


@pytest.mark.parametrize("attempt", ["claimed", "starting", "running", "lost", None])
def test_a_run_with_facts_of_a_later_release_is_an_operators_and_nobody_is_asked(attempt: str | None) -> None:
    # R3.7: commands on it are refused, so nothing that is found out could be recorded.
    unexpected = Verdict(13, VerdictKind.MANUAL, ManualReason.UNEXPECTED)
    assert judge(known_of(snapshot("running", attempt, unknown_types=True))) == unexpected
    assert judge(known_of(snapshot("created", None, unknown_types=True))) == unexpected


def test_facts_of_a_later_release_do_not_keep_a_valid_lease_or_an_ended_run_in_the_queue() -> None:
    valid = snapshot("running", "running", unknown_types=True, lease_valid=True)
    assert judge(known_of(valid)) == Verdict(4, VerdictKind.RESOLVED)
    assert judge(known_of(snapshot("failed", "failed", unknown_types=True))) == Verdict(2, VerdictKind.RESOLVED)


def test_an_active_attempt_without_its_execution_is_an_operators() -> None:
    unexpected = Verdict(13, VerdictKind.MANUAL, ManualReason.UNEXPECTED)
    assert judge(known_of(snapshot("running", "running", execution=None))) == unexpected


def test_a_receipt_that_appears_while_the_provider_sees_the_group_is_recorded() -> None:
    # R6.5: without an intent the outcome stands; what is left of the group is noted with it.
    known = replace(known_of(snapshot()), receipt=False, finding=Finding(Evidence.running(), receipt=True))
    assert judge(known) == Verdict(6, VerdictKind.RECEIPT)
