"""
Recorded histories in tests: a history of real life as the given, as a golden file, and put before today's code (R14.3).

A recorded history is what ``runfacts export`` writes: commit such a file beside your tests, and it stays what was
recorded, whatever later releases do. ``recorded`` reads one; ``today_decides`` puts it before the code of today,
moment by moment; ``assert_golden`` compares what a test recorded with a file, in words that show what changed. Ids,
hashes, positions and, unless they are asked for, times are left out of golden files: they differ with every run.
"""

from __future__ import annotations

import difflib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.archives import NotImported, parse
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.errors import RunfactsError
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.payloads import Payload
from runfacts.domain.replay import PastRun, Replay
from runfacts.infrastructure.ledger import Ledger
from runfacts.testing.given_when_then import Given

UPDATE: Final = "RUNFACTS_UPDATE_GOLDEN"
"""Set this variable to write golden files anew instead of comparing."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The history of one Run, as it was recorded."""

    facts: tuple[Fact, ...]

    @property
    def run_id(self) -> str:
        """The Run's id."""
        return self.facts[0].run_id

    def state(self, sequence: int | None = None) -> PastRun:
        """Give the Run as it stood after a fact, or after all of them."""
        return Replay.of(self.facts[: self._end(sequence)]).state()

    def given(self, sequence: int | None = None) -> Given:
        """Give the history up to a fact, or all of it, for a decision: ``run.given(5).when(…).then(…)``."""
        return Given(History.of(self.facts[: self._end(sequence)]))

    def _end(self, sequence: int | None) -> int:
        end = len(self.facts) if sequence is None else sequence
        if not 1 <= end <= len(self.facts):
            msg = f"the recorded run has facts 1 to {len(self.facts)}, not {sequence}"
            raise ValueError(msg)
        return end


def recorded(file: Path | str) -> dict[str, RecordedRun]:
    """Read the Runs of an archive by id, in its order (``ValueError`` names a line that is no fact)."""
    runs: dict[str, list[Fact]] = {}
    with Path(file).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                fact = parse(line).fact
            except ValueError as error:
                msg = f"{file}, line {number}: {error}"
                raise ValueError(msg) from None
            runs.setdefault(fact.run_id, []).append(fact)
    return {run_id: RecordedRun(tuple(facts)) for run_id, facts in runs.items()}


def recorded_run(file: Path | str) -> RecordedRun:
    """Read an archive of one Run (``ValueError`` where it has none or several)."""
    runs = list(recorded(file).values())
    if len(runs) != 1:
        msg = f"{file} has {len(runs)} runs, not one"
        raise ValueError(msg)
    return runs[0]


def import_recorded(ledger: Ledger, file: Path | str) -> tuple[str, ...]:
    """Take an archive into a ledger, also Runs that had not ended, and give their ids (``ValueError`` if refused)."""
    found = []
    for answer in ledger.import_runs(
        io.BytesIO(Path(file).read_bytes()), actor=Actor.system("recorded"), as_archive=True
    ):
        if isinstance(answer, NotImported):
            msg = f"{file}, line {answer.line}: {answer.reason}"
            raise ValueError(msg)  # noqa: TRY004 - the file is wrong, not a type
        found.append(answer.run_id)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Decided:
    """What today's code decides at one moment of a recorded history."""

    sequence: int
    """The moment: right after this fact."""
    recorded: tuple[Payload, ...]
    """What it would record."""
    refusal: Refusal | None
    error: RunfactsError | None
    """What it would raise."""

    @property
    def words(self) -> str:
        """It in one line, for a golden file or a person."""
        if self.error is not None:
            return f"{self.sequence}: raises {type(self.error).__name__}"
        said = ", ".join(payload.TYPE for payload in self.recorded) or "nothing"
        return (
            f"{self.sequence}: {said}"
            if self.refusal is None
            else f"{self.sequence}: {said}, refused as {self.refusal}"
        )


def today_decides(
    run: RecordedRun, decide: Callable[[History, int], Decision], *, sequences: Iterable[int] | None = None
) -> Iterator[Decided]:
    """Put a recorded history before a decision of today, after each of its facts or after those of ``sequences``.

    ``decide`` is given the history up to there and the time of its last fact; what it raises of ours is an answer.
    """
    for sequence in sequences or range(1, len(run.facts) + 1):
        history = run.given(sequence).history
        try:
            decision = decide(history, history.recorded_at_ms)
        except RunfactsError as error:
            yield Decided(sequence, (), None, error)
        else:
            yield Decided(sequence, tuple(draft.payload for draft in decision.drafts), decision.refusal, None)


def golden_lines(facts: Iterable[Fact], *, times: bool = False) -> list[str]:
    """Give facts as lines that are the same for every run of a test: ids are numbered in the order in which they come.

    With ``times``, a line also says how many milliseconds after the first fact it was recorded.
    """
    names: dict[str, str] = {}
    lines = []
    first_ms: int | None = None
    for fact in facts:
        first_ms = fact.recorded_at_ms if first_ms is None else first_ms
        names.setdefault(fact.run_id, f"run-{sum(name.startswith('run') for name in names.values()) + 1}")
        if fact.attempt_id is not None:
            names.setdefault(
                fact.attempt_id, f"attempt-{sum(name.startswith('attempt') for name in names.values()) + 1}"
            )
        line: dict[str, object] = {
            "run": names[fact.run_id],
            "sequence": fact.sequence,
            "type": fact.type,
            "actor": str(fact.actor.type),
            "attempt": None if fact.attempt_id is None else names[fact.attempt_id],
            "after_ms": fact.recorded_at_ms - first_ms if times else None,
            "payload": _named(fact.payload_text, names),
        }
        lines.append(json.dumps({name: value for name, value in line.items() if value is not None}, ensure_ascii=False))
    return lines


def assert_golden(facts: Iterable[Fact], file: Path | str, *, times: bool = False) -> None:
    """Insist that facts are those of a golden file; else show which were recorded and which were expected.

    With the variable ``RUNFACTS_UPDATE_GOLDEN`` set, the file is written instead; a file that is not there fails.
    """
    path = Path(file)
    lines = golden_lines(facts, times=times)
    if os.environ.get(UPDATE):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return
    if not path.exists():
        msg = f"there is no golden file {path}; run once with {UPDATE}=1 and look at what it says"
        raise AssertionError(msg)
    expected = path.read_text(encoding="utf-8").splitlines()
    if lines != expected:
        shown = difflib.unified_diff(expected, lines, "expected", "recorded", lineterm="", n=2)
        msg = "\n".join((f"{path} tells another history ({UPDATE}=1 writes it anew):", *shown))
        raise AssertionError(msg)


def _named(payload: str, names: Mapping[str, str]) -> object:
    """Give a payload with the ids of the history by their names."""
    for known, name in names.items():
        payload = payload.replace(known, name)
    try:
        return json.loads(payload)
    except ValueError:
        return payload
