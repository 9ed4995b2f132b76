"""No token, handle, PID or path in any fact, log line, view or repr (R3.6, R7.1)."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest

from deliveries import OPERATOR, asked_to_stop, held_by
from runfacts import Claimed, Ledger, Outcome, TokenRefused
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking, Unknown
from runfacts.infrastructure.processes.hosted import Command
from runfacts.testing.ledgers import contents_of
from stages import EXECUTOR, WORKER, claim_of, queued

HANDLE = "handle-of-the-process"
PID = 1_234_577
PATHS = ("/secret/log", "/secret/receipt")


def test_a_whole_life_gives_nothing_away(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run_id = queued(ledger)
    claimed = ledger.claim(run_id, actor=WORKER, executor_type="batch", gated=True, scope="secret-scope")
    assert isinstance(claimed, Claimed)
    claim = claimed.claim
    said: list[object] = [claimed, claim]
    said.append(ledger.start(claim, actor=WORKER, log_path=PATHS[0], receipt_path=PATHS[1]))
    said.append(ledger.running(claim, actor=WORKER, handle=HANDLE, pid=PID))
    said.append(ledger.renew(claim))
    for wrong in (claim.lease_token, "rft_wrong"):
        with pytest.raises(TokenRefused) as refused:
            ledger.go_on(replace(claim, callback_token=wrong), actor=WORKER)
        said += [refused.value, repr(refused.value)]
    said.append(ledger.wait_for_approval(claim, actor=WORKER, reason=f"for {claim.callback_token}"))
    said.append(ledger.finish(claim, Outcome.failed(exit_code=1, error_summary=claim.lease_token), actor=WORKER))
    said += [ledger.run(run_id), ledger.runs(), ledger.facts(), ledger.verify(), ledger, ledger.refused]
    facts = ledger.history(run_id)
    said += [facts, *(fact.payload_text for fact in facts), caplog.text]
    secrets = [claim.lease_token, claim.callback_token, HANDLE, str(PID), *PATHS, "secret-scope", "rft_wrong"]
    assert claim.lease_token.startswith("rft_")
    assert [
        (secret, thing) for thing in said for secret in secrets if secret in str(thing) or secret in repr(thing)
    ] == []
    assert facts[-2].payload_text == facts[-1].payload_text
    assert "[redacted]" in facts[-1].payload_text
    assert claim.attempt_id in caplog.text


def test_what_is_handed_to_who_looks_after_processes_prints_neither_handle_nor_number_nor_command(
    ledger: Ledger,
) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    execution = ledger.execution(asked.attempt_id)
    assert (held.target.handle, held.target.pid) == (execution.handle, execution.pid) == ("handle-1", 4_711)
    provider = Asked()
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="saw it", version=8, provider=provider)
    (target,) = provider.targets
    assert (target.handle, target.pid) == ("handle-1", 4_711)
    command = Command(("pay", "--with", "s3cret"), env={"PASSWORD": "s3cret"})
    for thing in (held, held.target, execution, target, command):
        printed = re.sub(r"[0-9a-f-]{36}", "", repr(thing) + str(thing))
        for secret in ("handle-1", "4711", held.token, "s3cret"):
            assert secret not in printed, type(thing)


class Asked:
    """Knows nothing, and remembers whom it was asked about. See ``EvidenceProvider``."""

    executor_type = EXECUTOR
    required: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.targets: list[EvidenceTarget] = []

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del timeout_ms, cancelled
        self.targets.append(target)
        return Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)


def test_no_table_has_a_token(ledger: Ledger) -> None:
    claim = claim_of(ledger, queued(ledger))
    ledger.start(claim, actor=WORKER)
    stored = str(contents_of(ledger))
    assert claim.attempt_id in stored
    assert claim.lease_token not in stored
    assert claim.callback_token not in stored


def test_facts_and_current_state_have_no_handle(ledger: Ledger) -> None:
    claim = claim_of(ledger, queued(ledger))
    ledger.start(claim, actor=WORKER, log_path=PATHS[0])
    ledger.running(claim, actor=WORKER, handle=HANDLE, pid=PID)
    contents = contents_of(ledger)
    with_handle = {name for name, rows in contents.items() if HANDLE in str(rows) or str(PID) in str(rows)}
    assert with_handle == {"executions"}
    assert {name for name, rows in contents.items() if PATHS[0] in str(rows)} == {"executions"}


def test_the_tokens_of_two_claims_differ(ledger: Ledger) -> None:
    claims = [claim_of(ledger, queued(ledger)) for _ in range(3)]
    tokens = {token for claim in claims for token in (claim.lease_token, claim.callback_token)}
    assert len(tokens) == 6
