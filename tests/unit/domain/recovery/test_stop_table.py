"""Stop confirmation over all combinations of what can be known (R12.2, R6.5, R8.2).

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
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.recovery.stopping import judge_stop, stop_candidate_in_ms
from runfacts.domain.recovery.verdict import Known, Need, Verdict, VerdictKind
from snapshots import ANSWERS, LEASE_MS, NOW_MS, execution, snapshot
from verdict_tables import Case, Table

GRACE_MS = 5_000
GROUPS: Final = {
    "ENDED": "succeeded,failed,cancelled,timed_out",
    "WITH": "dispatching,running,waiting_approval",
    "ACTIVE": "claimed,starting,running",
    "UNHELD": "none,fresh,done",
    # Starting, and a process may have been let run.
    "PROBED": "GH,OH,O-",
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
    "lease": ["ok", "over"],
    # The dispatch: not finished, held by a worker, finished just now, finished for as long as the grace.
    "disp": ["none", "leased", "fresh", "done"],
    # Whether the executor has a gate or is open, and whether the handle is recorded.
    "gate": ["GH", "G-", "OH", "O-"],
    "found": list(FINDINGS),
    # Whether a receipt is found with it.
    "rcpt": ["yes", "no"],
    # Whether the scope is not the holder's.
    "far": ["yes", "no"],
}
FINISHED: Final = {"none": None, "leased": None, "fresh": NOW_MS - GRACE_MS + 1, "done": NOW_MS - GRACE_MS}
ASKED: Final[dict[str, Any]] = {"intent_kind": IntentKind.USER, "intent_at_ms": 1}
TABLE: Final = Table(
    COLUMNS,
    GROUPS,
    """
# run             attempt   lease disp       gate   found     rcpt far

# 2: the Run has ended.
  ENDED           *         *     *          *      *         *    *   =>  2 resolved []

# 3: an active Attempt whose Run has none.
  created,queued  ACTIVE    *     *          *      *         *    *   =>  3 manual inconsistent []
  retry_wait,lost ACTIVE    *     *          *      *         *    *   =>  3 manual inconsistent []

# 5: there never was an Attempt, or the latest is lost: what is recorded is the proof.
  WITH            none,lost *     *          *      *         *    *   =>  5 stopped []
  created,queued  none,lost *     *          *      *         *    *   =>  5 stopped []
  retry_wait,lost none,lost *     *          *      *         *    *   =>  5 stopped []

# 6: a worker holds the dispatch and settles it first.
  WITH            ACTIVE    *     leased     *      *         *    *   =>  6 retry []

# 7: the host lives, and the delivery is under way or fresh.
  WITH            ACTIVE    ok    none,fresh *      *         *    *   =>  7 retry []

# 8: the host lives and is about to meet the intent.
  WITH            claimed   ok    done       *      *         *    *   =>  8 retry []
  WITH            starting  ok    done       G-     *         *    *   =>  8 retry []

# 9: it never started, and will not.
  WITH            claimed   over  UNHELD     *      *         *    *   =>  9 stopped pre_start []
  WITH            starting  over  UNHELD     G-     *         *    *   =>  9 stopped pre_start []

# 10: a receipt, and nobody left.
  WITH            starting  ok    done       PROBED gone      yes  *   => 10 receipt [f]
  WITH            running   ok    done       *      gone      yes  *   => 10 receipt [f]
  WITH            starting  over  UNHELD     PROBED gone      yes  *   => 10 receipt [f]
  WITH            running   over  UNHELD     *      gone      yes  *   => 10 receipt [f]

# 11: proven gone. An Attempt that reported its end is recorded already.
  WITH            starting  ok    done       PROBED gone      no   *   => 11 stopped not_running batch [f]
  WITH            running   ok    done       *      gone      no   *   => 11 stopped not_running batch [f]
  WITH            starting  over  UNHELD     PROBED gone      no   *   => 11 stopped not_running batch [f]
  WITH            running   over  UNHELD     *      gone      no   *   => 11 stopped not_running batch [f]
  WITH            ENDED     *     *          *      gone      *    *   => 11 stopped not_running batch [f]
  created,queued  ENDED     *     *          *      gone      *    *   => 11 stopped not_running batch [f]
  retry_wait,lost ENDED     *     *          *      gone      *    *   => 11 stopped not_running batch [f]

# 12: it runs, whatever the receipt says, or nobody could be asked.
  WITH            starting  ok    done       PROBED runs,away *    *   => 12 retry [f]
  WITH            running   ok    done       *      runs,away *    *   => 12 retry [f]
  WITH            starting  over  UNHELD     PROBED runs,away *    *   => 12 retry [f]
  WITH            running   over  UNHELD     *      runs,away *    *   => 12 retry [f]
  WITH            ENDED     *     *          *      runs,away *    *   => 12 retry [f]
  created,queued  ENDED     *     *          *      runs,away *    *   => 12 retry [f]
  retry_wait,lost ENDED     *     *          *      runs,away *    *   => 12 retry [f]

# 13: it cannot be told, or contradicts itself; what another scope cannot tell is unserved (R8.2).
  WITH            starting  ok    done       PROBED unsure    *    no  => 13 manual identity_unverifiable [f]
  WITH            starting  ok    done       PROBED unsure    *    yes => 13 manual scope_unserved [f]
  WITH            starting  ok    done       PROBED conflict  *    *   => 13 manual conflicting_evidence [f]
  WITH            running   ok    done       *      unsure    *    no  => 13 manual identity_unverifiable [f]
  WITH            running   ok    done       *      unsure    *    yes => 13 manual scope_unserved [f]
  WITH            running   ok    done       *      conflict  *    *   => 13 manual conflicting_evidence [f]
  WITH            starting  over  UNHELD     PROBED unsure    *    no  => 13 manual identity_unverifiable [f]
  WITH            starting  over  UNHELD     PROBED unsure    *    yes => 13 manual scope_unserved [f]
  WITH            starting  over  UNHELD     PROBED conflict  *    *   => 13 manual conflicting_evidence [f]
  WITH            running   over  UNHELD     *      unsure    *    no  => 13 manual identity_unverifiable [f]
  WITH            running   over  UNHELD     *      unsure    *    yes => 13 manual scope_unserved [f]
  WITH            running   over  UNHELD     *      conflict  *    *   => 13 manual conflicting_evidence [f]
  WITH            ENDED     *     *          *      unsure    *    no  => 13 manual identity_unverifiable [f]
  WITH            ENDED     *     *          *      unsure    *    yes => 13 manual scope_unserved [f]
  WITH            ENDED     *     *          *      conflict  *    *   => 13 manual conflicting_evidence [f]
  created,queued  ENDED     *     *          *      unsure    *    no  => 13 manual identity_unverifiable [f]
  created,queued  ENDED     *     *          *      unsure    *    yes => 13 manual scope_unserved [f]
  created,queued  ENDED     *     *          *      conflict  *    *   => 13 manual conflicting_evidence [f]
  retry_wait,lost ENDED     *     *          *      unsure    *    no  => 13 manual identity_unverifiable [f]
  retry_wait,lost ENDED     *     *          *      unsure    *    yes => 13 manual scope_unserved [f]
  retry_wait,lost ENDED     *     *          *      conflict  *    *   => 13 manual conflicting_evidence [f]
""",
)


def seen(case: Case) -> Snapshot:
    """The snapshot that a case says."""
    attempt = None if case["attempt"] == "none" else case["attempt"]
    other = ASKED | {
        "lease_valid": case["lease"] == "ok",
        "dispatch_finished_at_ms": FINISHED[case["disp"]],
        "dispatch_leased": case["disp"] == "leased",
    }
    if attempt is not None:
        other["execution"] = execution(
            gated=case["gate"].startswith("G"),
            handle="handle" if case["gate"].endswith("H") else None,
            lease_expires_at_ms=NOW_MS + 9_000 if case["lease"] == "ok" else NOW_MS,
        )
    return snapshot(case["run"], attempt, **other)


def known_of(of: Snapshot | None, *, ours: bool = True, foreign: bool = False) -> Known:
    return Known(ours=ours, kind=ItemKind.RUN, foreign=foreign, snapshot=of)


def judged(known: Known, case: Case) -> str:
    """What comes out in the end, in the table's words, and what was asked on the way."""
    asked = ""
    while isinstance(answer := judge_stop(known, grace_ms=GRACE_MS), Need):
        assert answer is Need.FINDING
        asked += "f"
        known = replace(known, finding=Finding(FINDINGS[case["found"]], receipt=case["rcpt"] == "yes"))
    words = (answer.row, answer.kind, answer.reason, answer.evidence, answer.provider_type)
    return " ".join(str(word) for word in (*words, f"[{asked}]") if word is not None)


@pytest.mark.parametrize("attempt", COLUMNS["attempt"])
@pytest.mark.parametrize("run", COLUMNS["run"])
def test_every_combination_has_the_verdict_that_the_rule_gives_it(run: str, attempt: str) -> None:
    for case, expected in TABLE.cases(run=run, attempt=attempt):
        assert judged(known_of(seen(case), foreign=case["far"] == "yes"), case) == expected, case


def verdict(of: Snapshot | None, *, ours: bool = True) -> Verdict | Need:
    return judge_stop(known_of(of, ours=ours), grace_ms=GRACE_MS)


@pytest.mark.parametrize("run", list(RunStatus))
def test_a_claim_that_is_no_longer_ours_is_fenced_whatever_is_known(run: RunStatus) -> None:
    assert verdict(snapshot(run, **ASKED), ours=False) == Verdict(1, VerdictKind.FENCED)


@pytest.mark.parametrize("run", list(RunStatus))
@pytest.mark.parametrize("attempt", [*AttemptStatus, None])
def test_a_run_that_nobody_asked_to_stop_is_no_candidate(run: RunStatus, attempt: str | None) -> None:
    assert verdict(snapshot(run, attempt)) == Verdict(2, VerdictKind.RESOLVED)
    assert verdict(snapshot(run, attempt, execution_owner=ExecutionOwner.LEGACY, **ASKED)) == Verdict(
        2, VerdictKind.RESOLVED
    )
    assert verdict(None) == Verdict(2, VerdictKind.RESOLVED)


@pytest.mark.parametrize("attempt", ["claimed", "starting", "running", "failed", "lost"])
def test_facts_of_a_later_release_and_a_missing_execution_are_an_operators(attempt: str) -> None:
    unexpected = Verdict(4, VerdictKind.MANUAL, ManualReason.UNEXPECTED)
    assert verdict(snapshot("running", attempt, unknown_types=True, **ASKED)) == unexpected
    assert verdict(snapshot("running", attempt, execution=None, **ASKED)) == unexpected
    assert verdict(snapshot("queued", None, unknown_types=True, **ASKED)) == unexpected


@pytest.mark.parametrize(
    ("finished_at_ms", "expires_at_ms", "wait_ms"),
    [
        # The lease ends first; the grace ends first; only the lease is known.
        (NOW_MS, NOW_MS + 3_000, 3_000),
        (NOW_MS - 1_000, NOW_MS + 9_000, 4_000),
        (None, NOW_MS + 9_000, 9_000),
        # Valid by the clock of this boot, although the wall's jumped past its expiry (R5.2).
        (None, NOW_MS - 1, 1),
    ],
)
def test_what_is_no_candidate_yet_waits_until_it_is_one(
    finished_at_ms: int | None, expires_at_ms: int, wait_ms: int
) -> None:
    leased = execution(lease_expires_at_ms=expires_at_ms)
    of = snapshot(execution=leased, lease_valid=True, dispatch_finished_at_ms=finished_at_ms, **ASKED)
    assert verdict(of) == Verdict(7, VerdictKind.RETRY, wait_ms=wait_ms)
    assert stop_candidate_in_ms(of, grace_ms=GRACE_MS) == wait_ms


def test_what_never_started_waits_for_its_living_host_no_longer_than_its_lease() -> None:
    leased = execution(lease_expires_at_ms=NOW_MS + LEASE_MS)
    of = snapshot("dispatching", "claimed", execution=leased, lease_valid=True, dispatch_finished_at_ms=1, **ASKED)
    assert verdict(of) == Verdict(8, VerdictKind.RETRY, wait_ms=LEASE_MS)


def test_without_a_valid_lease_a_run_is_a_candidate_at_once() -> None:
    assert stop_candidate_in_ms(snapshot(**ASKED), grace_ms=GRACE_MS) is None
