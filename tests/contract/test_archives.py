"""Archives: whole envelopes out and in again, a Run whole or not at all (R3.1, R3.3, R3.7, R14.2)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import later_release
from runfacts import (
    Actor,
    AlreadyImported,
    ExecutionOwner,
    Imported,
    IntentKind,
    Ledger,
    LegacyRun,
    NotImported,
    Outcome,
    RetryPolicy,
    RunNotFound,
    RunStatus,
    Safety,
)
from runfacts.domain.canonical import canonical_json, chained_hash
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.infrastructure.stores.cancellation_queue import read_cancellation_queue
from runfacts.testing.clock import ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import contents_of, sqlite_ledgers
from stages import ANA, created, finished, queued, running, types, unchanged

BO = Actor.operator("bo")
Line = dict[str, Any]
SUCCEEDED = [
    "run.created",
    "run.queued",
    "run.dispatching",
    "attempt.claimed",
    "attempt.starting",
    "attempt.running",
    "run.running",
    "attempt.succeeded",
    "run.succeeded",
]


@pytest.fixture
def source() -> Iterator[Ledger]:
    """Another ledger, from which archives come."""
    with sqlite_ledgers() as ledgers:
        yield ledgers()


def exported(ledger: Ledger, *run_ids: str) -> list[Line]:
    """Give the lines of an archive."""
    return [json.loads(json.dumps(line)) for line in ledger.export_runs(run_ids)]


def taken(ledger: Ledger, lines: Iterable[Line], *, as_archive: bool = False) -> list[object]:
    """Import lines, and give the answers."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return list(ledger.import_runs(io.BytesIO(text.encode()), actor=BO, as_archive=as_archive))


def refused(ledger: Ledger, lines: Iterable[Line]) -> NotImported:
    """Import the lines of one Run, which must be refused without a trace."""
    with unchanged(ledger):
        (answer,) = taken(ledger, lines)
    assert isinstance(answer, NotImported)
    return answer


def following(line: Line, **changes: Any) -> Line:  # noqa: ANN401 - any field of a line
    """Make a fact that follows on a line, hashed as every fact is."""
    made = line | {"sequence": line["sequence"] + 1, "aggregate_version": line["aggregate_version"] + 1} | changes
    fields = {name: made[name] for name in made if name not in {"position", "payload", "hash", "run_version"}}
    return made | {"hash": chained_hash(line["hash"], fields, canonical_json(made["payload"]))}


def test_a_line_has_every_field_of_the_envelope(ledger: Ledger) -> None:
    run_id = created(ledger, project="books", correlation_id="c-1", causation_id="c-0")
    (line,) = ledger.export_runs([run_id])
    (fact,) = ledger.history(run_id)
    assert line == {
        "position": fact.position,
        "run_id": run_id,
        "sequence": 1,
        "type": "run.created",
        "schema_version": 1,
        "project": "books",
        "attempt_id": None,
        "actor_type": "user",
        "actor_id": "ana",
        "dedupe_key": None,
        "correlation_id": "c-1",
        "causation_id": "c-0",
        "recorded_at_ms": 1_767_225_600_000,
        "payload": {
            "execution_owner": "runtime",
            "policy": json.loads(fact.payload_text)["policy"],
            "task": "report",
        },
        "aggregate_id": run_id,
        "aggregate_version": 1,
        "hash": fact.hash,
        "run_version": 1,
    }


def test_an_export_names_runs_or_takes_all(ledger: Ledger) -> None:
    one, two = created(ledger), queued(ledger)
    assert [(line["run_id"], line["sequence"]) for line in ledger.export_runs()] == [(one, 1), (two, 1), (two, 2)]
    assert [line["sequence"] for line in ledger.export_runs([two.upper(), two])] == [1, 2]
    with pytest.raises(RunNotFound):
        ledger.export_runs([one, "01890000-0000-7000-8000-00000000dead"])


def test_an_ended_run_comes_in_as_it_was(ledger: Ledger, source: Ledger) -> None:
    claim = finished(source, Outcome.failed(exit_code=7, error_summary="Zürich 雪 😀"), timeout_ms=60_000)
    before = created(ledger)
    answers = taken(ledger, exported(source, claim.run_id))
    assert answers == [Imported(claim.run_id, 9)]
    there, here = source.history(claim.run_id), ledger.history(claim.run_id)
    assert [fact.hash for fact in here] == [fact.hash for fact in there]
    assert [fact.payload for fact in here] == [fact.payload for fact in there]
    first = ledger.history(before)[0].position
    assert first is not None
    assert all(fact.position is not None and fact.position > first for fact in here)
    assert ledger.run(claim.run_id).attempts[0].exit_code == 7
    assert ledger.verify().clean


def test_what_comes_in_is_exported_as_it_came(ledger: Ledger, source: Ledger) -> None:
    run_id = finished(source).run_id
    lines = exported(source, run_id)
    taken(ledger, lines)
    for line, again in zip(lines, exported(ledger, run_id), strict=True):
        assert line | {"position": None} == again | {"position": None}


def test_a_second_import_writes_nothing(ledger: Ledger, source: Ledger) -> None:
    ended, alive = finished(source).run_id, running(source).run_id
    lines = exported(source)
    taken(ledger, lines, as_archive=True)
    with unchanged(ledger):
        answers = taken(ledger, lines, as_archive=True)
    assert answers == [AlreadyImported(ended, 9), AlreadyImported(alive, 8)]


def test_an_import_into_the_ledger_itself_writes_nothing(ledger: Ledger) -> None:
    run_id = running(ledger).run_id
    lines = exported(ledger)
    with unchanged(ledger):
        assert taken(ledger, lines) == [AlreadyImported(run_id, 7)]


def test_a_run_that_has_not_ended_is_refused(ledger: Ledger, source: Ledger) -> None:
    answer = refused(ledger, exported(source, running(source).run_id))
    assert (answer.line, answer.reason) == (7, "the run has not ended, it is running")


@pytest.mark.parametrize("stage", [created, queued, running], ids=["created", "queued", "running"])
def test_as_an_archive_it_comes_in_as_a_legacy_run(
    ledger: Ledger, source: Ledger, stage: Callable[[Ledger], Any]
) -> None:
    made = stage(source)
    run_id = made if isinstance(made, str) else made.run_id
    version = source.run(run_id).version
    assert taken(ledger, exported(source, run_id), as_archive=True) == [Imported(run_id, version + 1)]
    last = ledger.history(run_id)[-1]
    assert (last.type, last.actor, last.payload_text) == ("run.imported", BO, '{"execution_owner":"legacy"}')
    assert ledger.run(run_id).execution_owner == ExecutionOwner.LEGACY
    assert ledger.verify().clean
    with pytest.raises(LegacyRun):
        ledger.queue(run_id, actor=ANA)


def test_a_run_that_has_ended_needs_no_mark_in_an_archive(ledger: Ledger, source: Ledger) -> None:
    run_id = finished(source).run_id
    taken(ledger, exported(source), as_archive=True)
    assert types(ledger, run_id) == SUCCEEDED


def test_nobody_looks_after_an_archived_run(ledger: Ledger, source: Ledger, manual_clock: ManualClock) -> None:
    for past in (
        (RunCreated(task="a", policy=RetryPolicy(), deadline_at_ms=1_767_225_600_001),),
        (
            *(RunCreated(task="b", policy=RetryPolicy()), RunQueued(), RunDispatching(number=1)),
            *(AttemptClaimed(number=1, executor_type="local", gated=True), AttemptStarting(deadline_at_ms=1)),
            *(AttemptRunning(), RunRunning()),
        ),
        (
            *(RunCreated(task="c", policy=RetryPolicy()), RunQueued(), RunDispatching(number=1)),
            *(AttemptClaimed(number=1, executor_type="local"), AttemptStarting()),
            RunCancelRequested(kind=IntentKind.USER),
        ),
    ):
        given_in(source, *past)
    answers = taken(ledger, exported(source), as_archive=True)
    assert [type(answer) for answer in answers] == [Imported] * 3
    assert ledger.verify().clean
    manual_clock.advance(31 * 86_400_000)
    before = contents_of(ledger)
    report = ledger.supervise(local=False).cycle()
    after = contents_of(ledger)
    for table in ("facts", "runs", "attempts", "executions", "recovery_claims", "cancellation_dispatches"):
        assert after[table] == before[table]
    assert report.failed == 0


def test_a_stop_that_an_archive_leaves_open_is_called_another_systems(ledger: Ledger, source: Ledger) -> None:
    claim = running(source)
    source.request_cancellation(claim.run_id, actor=ANA)
    asked_ms = source.history(claim.run_id)[-1].recorded_at_ms
    taken(ledger, exported(source), as_archive=True)
    own = running(ledger)
    ledger.request_cancellation(own.run_id, actor=ANA)
    # It is not proven that it stopped (R6.2), and nobody here is about to prove it (R2.10).
    first, second = ledger.unproven().items
    assert (first.run_id, first.attempt_id, first.since_ms, first.reason) == (
        *(claim.run_id, claim.attempt_id),
        *(asked_ms, "legacy"),
    )
    assert "Another system executed it" in first.diagnosis
    assert (second.run_id, second.reason) == (own.run_id, "waiting")
    with pytest.raises(LegacyRun):
        ledger.confirm_stopped(claim.run_id, actor=BO, because="seen", version=first.version)
    # What is measured is what somebody has to do here.
    with ledger.database.reading() as reading:
        assert {place: state.count for place, state in read_cancellation_queue(reading).items()} == {("pending",): 1}


def test_a_lost_run_that_would_be_retried_is_not(ledger: Ledger, source: Ledger) -> None:
    policy = RetryPolicy(max_attempts=3, retry_on_failure=True, safety=Safety.IDEMPOTENT)
    finished(source, Outcome.failed(exit_code=1), policy=policy)
    (line,) = {line["run_id"] for line in exported(source)}
    assert source.run(line).status == RunStatus.RETRY_WAIT
    assert taken(ledger, exported(source), as_archive=True) == [Imported(line, 10)]
    assert ledger.verify().clean


@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        pytest.param(lambda lines: lines[1].update(actor_id="eve"), 2, "fact 2: hash is ", id="a changed actor"),
        pytest.param(lambda lines: lines[7]["payload"].update(exit_code=1), 8, "fact 8: hash is ", id="a payload"),
        pytest.param(lambda lines: lines[0].update(hash="0" * 64), 1, "fact 1: hash is ", id="a changed hash"),
        pytest.param(lambda lines: lines.pop(3), 4, "fact 4: sequence is 5, not 4", id="a missing fact"),
        pytest.param(lambda lines: lines.insert(3, lines[2]), 4, "fact 4: sequence is 3, not 4", id="a doubled fact"),
        pytest.param(lambda lines: lines.pop(0), 1, "fact 1: sequence is 2, not 1", id="no beginning"),
        pytest.param(lambda lines: lines.pop(), 8, "the archive ends after fact 8 of 9", id="no end"),
        pytest.param(lambda lines: lines[4].update(run_version=12), 5, "says another number of facts", id="a count"),
        pytest.param(lambda lines: lines[2].pop("hash"), 3, "the line has no hash", id="a missing field"),
        pytest.param(lambda lines: lines[2].update(actor_type="ghost"), 3, "has as actor_type what", id="an actor"),
        pytest.param(lambda lines: lines[2].update(run_id="x"), 3, "has as run_id what no fact", id="an id"),
        pytest.param(lambda lines: lines[2].update(payload={"a": 0.5}), 3, "no canonical form", id="a float"),
        pytest.param(lambda lines: lines[2].update(payload={"a": "x" * 16_384}), 3, "at most 16384", id="a long one"),
        pytest.param(lambda lines: lines[2].update(colour="red"), 3, "does not know: 'colour'", id="a new field"),
        pytest.param(lambda lines: lines[2].update(sequence=True), 3, "has as sequence what", id="no number"),
    ],
)
def test_what_breaks_a_history_is_refused_without_a_trace(
    ledger: Ledger, source: Ledger, change: Callable[[list[Line]], object], line: int, reason: str
) -> None:
    run_id = finished(source).run_id
    lines = exported(source, run_id)
    change(lines)
    answer = refused(ledger, lines)
    assert (answer.run_id, answer.line) == (run_id, line)
    assert reason in answer.reason


def test_a_history_that_is_chained_anew_must_still_be_one(ledger: Ledger, source: Ledger) -> None:
    # Somebody who can compute hashes writes a fact that no command records.
    lines = exported(source, finished(source).run_id)
    lines.append(following(lines[-1], type="run.queued", payload={}))
    answer = refused(ledger, [line | {"run_version": 10} for line in lines])
    assert answer.reason == "fact 10: type is succeeded to queued, not a transition of the table"


def test_a_run_must_begin_with_its_creation(ledger: Ledger, source: Ledger) -> None:
    (line,) = exported(source, created(source))
    later = following(line | {"hash": "0" * 64, "sequence": 0, "aggregate_version": 0}, schema_version=2)
    answer = refused(ledger, [later])
    assert answer.reason == "the first fact is run.created of version 2, which creates no run here"


def test_another_history_under_the_same_id_is_refused(ledger: Ledger, source: Ledger) -> None:
    run_id = created(source)
    lines = exported(source)
    taken(ledger, lines, as_archive=True)
    source.queue(run_id, actor=ANA)
    source.request_cancellation(run_id, actor=ANA)
    assert refused(ledger, exported(source)).reason == "the run is recorded here with 2 facts only"
    later_release.append(ledger, run_id, "run.noted", "{}")
    later_release.append(ledger, run_id, "run.noted", "{}")
    assert refused(ledger, exported(source)).reason == "the run is recorded here with another history"


def test_a_taken_idempotency_key_is_refused(ledger: Ledger, source: Ledger) -> None:
    created(ledger, idempotency_key="k")
    run_id = created(source, idempotency_key="k")
    source.request_cancellation(run_id, actor=ANA)
    assert refused(ledger, exported(source)).reason == "another run of its project has its idempotency key here"


def test_one_refused_run_keeps_no_other_out(ledger: Ledger, source: Ledger) -> None:
    one, two, three = (finished(source).run_id for _ in range(3))
    lines = exported(source)
    lines[10]["actor_id"] = "eve"
    first, second, third = taken(ledger, lines)
    assert (first, third) == (Imported(one, 9), Imported(three, 9))
    assert isinstance(second, NotImported)
    assert (second.run_id, second.line) == (two, 11)
    with pytest.raises(RunNotFound):
        ledger.run(two)
    assert ledger.verify().clean


def test_runs_that_are_mixed_are_refused(ledger: Ledger, source: Ledger) -> None:
    finished(source)
    finished(source)
    lines = exported(source)
    mixed = [line for pair in zip(lines[:9], lines[9:], strict=True) for line in pair]
    with unchanged(ledger):
        answers = taken(ledger, mixed)
    assert all(isinstance(answer, NotImported) for answer in answers)


def test_facts_of_a_later_release_come_in_and_go_out(ledger: Ledger, source: Ledger) -> None:
    claim = finished(source)
    later_release.append(source, claim.run_id, "run.teleported", '{"to":"mars"}')
    later_release.append(source, claim.run_id, "run.queued", '{"priority":5}', version=2)
    lines = exported(source)
    assert taken(ledger, lines) == [Imported(claim.run_id, 11)]
    assert [line["hash"] for line in exported(ledger)] == [line["hash"] for line in lines]
    report = ledger.verify()
    assert (report.clean, report.unknown_types) == (True, {"run.teleported": 1, "run.queued": 1})


def test_an_attempt_whose_beginning_is_not_understood_is_kept_in_its_facts(ledger: Ledger, source: Ledger) -> None:
    run = given_in(source, RunCreated(task="a", policy=RetryPolicy()), RunQueued(), RunDispatching(number=1))
    lines = exported(source)
    later = following(
        lines[2],
        type="attempt.claimed",
        schema_version=2,
        aggregate_id=lines[2]["attempt_id"],
        aggregate_version=1,
        payload={"place": "moon"},
    )
    lines.append(later)
    archive = [line | {"run_version": 4} for line in lines]
    assert taken(ledger, archive, as_archive=True) == [Imported(run.run_id, 5)]
    assert ledger.verify().clean
    assert ledger.run(run.run_id).status == RunStatus.DISPATCHING
    assert ledger.replay(run.run_id).unknown_types == ("attempt.claimed",)
    assert [line["hash"] for line in exported(ledger)][:4] == [line["hash"] for line in archive]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff\xfe\n", "the line is no UTF-8 text"),
        (b"{\n", "the line is no JSON"),
        (b"[1]\n", "the line is no JSON object"),
        (b"[" * 100_000 + b"\n", "the line is no JSON"),
        (b'{"sequence":' + b"9" * 100_000 + b"}\n", "the line is no JSON"),
        (b"x" * 10_000_000 + b"\n", "the line is longer than 131072 bytes"),
        (b"x" * 200_000, "the line is longer than 131072 bytes"),
        (b"\x00\n", "the line is no JSON"),
        (b"{}\n", "the line has no run_id"),
    ],
    ids=["bytes", "half", "list", "nesting", "number", "huge", "huge without an end", "nul", "empty"],
)
def test_a_line_that_is_none_is_refused_and_the_next_run_comes_in(
    ledger: Ledger, source: Ledger, text: bytes, reason: str
) -> None:
    run_id = finished(source).run_id
    good = "".join(json.dumps(line) + "\n" for line in exported(source)).encode()
    archive = good + b"\n" + text
    first, second = ledger.import_runs(io.BytesIO(archive), actor=BO)
    assert (first, second) == (Imported(run_id, 9), NotImported(None, 11, reason))
    again = list(ledger.import_runs(io.BytesIO(text.rstrip(b"\n") + b"\n" + good), actor=BO))
    assert again == [NotImported(None, 1, reason), AlreadyImported(run_id, 9)]


def test_a_file_that_is_cut_off_anywhere_brings_in_whole_runs_only(ledger: Ledger, source: Ledger) -> None:
    one, two = finished(source).run_id, finished(source).run_id
    text = "".join(json.dumps(line) + "\n" for line in exported(source)).encode()
    lines = text.splitlines(keepends=True)
    for end in (len(text) - 40, len(text) - len(lines[-1]), sum(map(len, lines[:12])) + 1):
        answers = list(ledger.import_runs(io.BytesIO(text[:end]), actor=BO))
        assert [answer.run_id for answer in answers] == [one, two]
        assert isinstance(answers[1], NotImported)
        with pytest.raises(RunNotFound):
            ledger.run(two)
    assert ledger.verify().clean


def test_a_file_without_counts_is_taken_by_what_its_facts_say(ledger: Ledger, source: Ledger) -> None:
    run_id = finished(source).run_id
    lines = [{name: value for name, value in line.items() if name != "run_version"} for line in exported(source)]
    assert refused(ledger, lines[:-1]).reason == "the run has not ended, it is running"
    assert taken(ledger, lines) == [Imported(run_id, 9)]
