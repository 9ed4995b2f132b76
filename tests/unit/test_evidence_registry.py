"""R11.3: providers that hang, raise and lie; exact executor types, bounds, and one inspection at a time."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from evidence_doubles import Hanging, Raising, Saying, target_for
from process_watch import DEADLINE_S, wait_until
from runfacts.domain.errors import InvalidSetting, InvalidValue
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Liveness, StopAsking, Unknown
from runfacts.infrastructure.evidence import PROVIDERS_MAX, Answered, EvidenceRegistry

UNAVAILABLE = Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
CONFLICTING = Evidence.unknown(Unknown.CONFLICTING_EVIDENCE)
SHORT_MS = 20
LONG_MS = 30_000
SOON_S = 20.0
"""Less than the long limit: whoever is back so soon has not waited for it."""


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """A provider that hangs until the test is over, or lets it go."""
    provider = Hanging()
    yield provider
    provider.let_go.set()


# What a provider says.


@pytest.mark.parametrize("said", [Evidence.running(), Evidence.not_running(), UNAVAILABLE, UNVERIFIABLE, CONFLICTING])
def test_what_a_provider_says_is_the_answer(said: Evidence) -> None:
    assert EvidenceRegistry([Saying(said)]).inspect(target_for()) == said


@pytest.mark.parametrize(
    "error", [RuntimeError("secret"), OSError(), SystemExit(3), KeyboardInterrupt(), MemoryError()]
)
def test_a_provider_that_raises_is_unavailable(error: BaseException) -> None:
    registry = EvidenceRegistry([Raising(error)])
    assert registry.inspect(target_for()) == UNAVAILABLE
    assert registry.hanging() == ()


class Pretending:
    """Claims to be what it is not."""

    liveness = Liveness.NOT_RUNNING
    reason = None

    @property  # type: ignore[misc]  # it lies
    def __class__(self) -> Any:  # noqa: ANN401 - the same
        return Evidence


@dataclass(frozen=True)
class Detailed(Evidence):
    """An answer with more than was asked for."""

    detail: str = "secret"


class Shifting(Evidence):
    """An answer that is another one at each look."""

    looks = 0

    @property
    def liveness(self) -> Liveness:
        """Running at first, and then not."""
        type(self).looks += 1
        return Liveness.RUNNING if type(self).looks == 1 else Liveness.NOT_RUNNING

    @property
    def reason(self) -> None:
        """None at all."""
        return


class Breaking(Evidence):
    """An answer that cannot be read."""

    @property
    def liveness(self) -> Liveness:
        """Never anything."""
        raise ZeroDivisionError


def unlike(**said: object) -> Evidence:
    """Make an answer that no maker makes."""
    return Evidence(**said)  # type: ignore[arg-type]  # that is what lying is


@pytest.mark.parametrize(
    "said",
    [
        None,
        True,
        "not_running",
        Liveness.NOT_RUNNING,
        (Liveness.NOT_RUNNING, None),
        {"liveness": "not_running"},
        Evidence,
        Pretending(),
        object.__new__(Breaking),
        unlike(liveness="not_running"),
        unlike(liveness=None),
        unlike(liveness=Liveness.NOT_RUNNING, reason=Unknown.PROVIDER_UNAVAILABLE),
        unlike(liveness=Liveness.RUNNING, reason="it was seen"),
        unlike(liveness=Liveness.UNKNOWN),
        unlike(liveness=Liveness.UNKNOWN, reason="provider_unavailable"),
        unlike(liveness=Unknown.PROVIDER_UNAVAILABLE),
    ],
    ids=lambda said: type(said).__name__,
)
def test_an_answer_that_is_none_contradicts_itself(said: object) -> None:
    assert EvidenceRegistry([Saying(said)]).inspect(target_for()) == CONFLICTING


def test_what_an_answer_says_beyond_the_answer_is_dropped() -> None:
    found = EvidenceRegistry([Saying(Detailed(Liveness.NOT_RUNNING))]).inspect(target_for())
    assert found == Evidence.not_running()
    assert type(found) is Evidence
    assert "secret" not in repr(found)


def test_an_answer_is_looked_at_once() -> None:
    found = EvidenceRegistry([Saying(object.__new__(Shifting))]).inspect(target_for())
    assert (found.liveness, found.liveness) == (Liveness.RUNNING, Liveness.RUNNING)


# Who is asked.


@pytest.mark.parametrize("executor_type", ["other", "Batch", "batc", "batch ", ""])
def test_only_the_exact_executor_type_has_a_provider_and_there_is_no_default(executor_type: str) -> None:
    provider = Saying()
    assert EvidenceRegistry([provider]).inspect(target_for(executor_type)) == UNVERIFIABLE
    assert EvidenceRegistry().inspect(target_for()) == UNVERIFIABLE
    assert provider.asked == 0


def without(*names: str) -> EvidenceTarget:
    """Give a target that lacks fields."""
    absent: dict[str, Any] = dict.fromkeys(names)
    return replace(target_for(), **absent)


@pytest.mark.parametrize("name", ["handle", "pid", "worker_id", "last_seen_at_ms"])
def test_without_a_field_that_it_requires_a_provider_is_not_asked(name: str) -> None:
    provider = Saying(required=frozenset({"run_id", name}))
    registry = EvidenceRegistry([provider])
    assert registry.inspect(without(name)) == UNVERIFIABLE
    assert provider.asked == 0
    assert registry.inspect(target_for()) == Evidence.running()
    others = {"handle", "pid", "worker_id", "last_seen_at_ms"} - {name}
    assert registry.inspect(without(*others)) == Evidence.running()


def test_a_registration_is_a_copy() -> None:
    provider = Saying()
    providers = [provider]
    registry = EvidenceRegistry(providers)
    providers.append(Saying(executor_type="other"))
    provider.executor_type = "other"
    provider.required = frozenset({"handle"})
    assert registry.executor_types == {"batch"}
    assert registry.inspect(target_for("other")) == UNVERIFIABLE
    assert registry.inspect(replace(target_for(), handle=None)) == Evidence.running()


def test_two_providers_for_one_executor_type_are_refused() -> None:
    with pytest.raises(InvalidValue, match="two for executor type 'batch'"):
        EvidenceRegistry([Saying(), Saying()])


def test_a_registry_takes_32_providers_and_no_more() -> None:
    providers = [Saying(executor_type=f"batch-{number}") for number in range(33)]
    assert PROVIDERS_MAX == 32
    assert len(EvidenceRegistry(providers[:32]).executor_types) == 32
    with pytest.raises(InvalidValue, match="more than 32"):
        EvidenceRegistry(providers)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 10_000, None, 7, b"batch"])
def test_a_provider_without_a_name_is_refused(name: Any) -> None:  # noqa: ANN401 - what is no name
    with pytest.raises(InvalidValue, match="no executor type"):
        EvidenceRegistry([Saying(executor_type=name)])


def test_a_provider_that_requires_what_no_target_has_is_refused() -> None:
    with pytest.raises(InvalidValue, match="requires fields"):
        EvidenceRegistry([Saying(required=frozenset({"lease_token"}))])


@pytest.mark.parametrize("timeout_ms", [0, -1, 30_001])
def test_a_time_limit_out_of_its_bounds_is_refused(timeout_ms: int) -> None:
    with pytest.raises(InvalidSetting, match="evidence_timeout_ms"):
        EvidenceRegistry([Saying()], timeout_ms=timeout_ms)


def test_without_a_word_the_time_limit_is_five_seconds() -> None:
    provider = Saying()
    EvidenceRegistry([provider]).inspect(target_for())
    assert 0 < provider.limits_ms[0] <= 5_000


def test_whoever_has_less_time_than_the_limit_says_so_and_nobody_has_more() -> None:
    provider = Saying()
    registry = EvidenceRegistry([provider], timeout_ms=10_000)
    registry.inspect(target_for(), within_ms=3_000)
    registry.inspect(target_for(), within_ms=LONG_MS)
    assert 0 < provider.limits_ms[0] <= 3_000
    assert 3_000 < provider.limits_ms[1] <= 10_000


class Scribbling(Saying):
    """Writes on what it is given."""

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See EvidenceProvider."""
        object.__setattr__(target, "handle", "another")
        return super().inspect(target, timeout_ms=timeout_ms, cancelled=cancelled)


def test_a_provider_gets_a_copy_of_its_own() -> None:
    target = target_for()
    registry = EvidenceRegistry([Scribbling()])
    registry.inspect(target)
    assert target == target_for()


# Who hangs.


def test_a_provider_that_hangs_is_unavailable_and_named_until_it_really_ends(hanging: Hanging) -> None:
    registry = EvidenceRegistry([hanging], timeout_ms=LONG_MS)
    assert registry.inspect(target_for(), within_ms=SHORT_MS) == UNAVAILABLE
    [named] = registry.hanging()
    assert named.executor_type == "batch"
    assert named.late_ms >= 0
    # It is told that nobody waits any more; that it does not listen changes nothing.
    assert hanging.told[0].is_set()
    began_s = time.monotonic()
    for _ in range(50):
        assert registry.inspect(target_for()) == UNAVAILABLE
    assert time.monotonic() - began_s < SOON_S
    assert hanging.asked == 1
    hanging.let_go.set()
    wait_until(lambda: registry.hanging() == (), "it has ended")
    # What it said so late is nobody's answer; the next question is a new one.
    assert registry.inspect(target_for()) == Evidence.not_running()
    assert hanging.asked == 2


def test_others_are_asked_while_one_hangs(hanging: Hanging) -> None:
    registry = EvidenceRegistry([hanging, Saying(executor_type="other")], timeout_ms=LONG_MS)
    assert registry.inspect(target_for(), within_ms=SHORT_MS) == UNAVAILABLE
    assert registry.inspect(target_for("other")) == Evidence.running()
    assert [named.executor_type for named in registry.hanging()] == ["batch"]


def test_one_inspection_is_under_way_at_a_time_and_each_caller_gets_an_answer() -> None:
    provider = Hanging()
    provider.let_go.set()
    registry = EvidenceRegistry([provider], timeout_ms=LONG_MS)
    ready = threading.Barrier(8)

    def ask() -> set[Evidence]:
        ready.wait(DEADLINE_S)
        return {registry.inspect(target_for()) for _ in range(20)}

    with ThreadPoolExecutor(8) as pool:
        found = [future.result(DEADLINE_S) for future in [pool.submit(ask) for _ in range(8)]]
    assert found == [{Evidence.not_running()}] * 8
    assert (provider.asked, provider.most_at_once) == (160, 1)


def test_who_waits_for_his_turn_hears_at_once_that_it_will_not_come(hanging: Hanging) -> None:
    registry = EvidenceRegistry([hanging], timeout_ms=LONG_MS)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(registry.inspect, target_for(), within_ms=500)
        assert hanging.begun.wait(DEADLINE_S)
        began_s = time.monotonic()
        second = pool.submit(registry.inspect, target_for())
        assert (first.result(DEADLINE_S), second.result(DEADLINE_S)) == (UNAVAILABLE, UNAVAILABLE)
        assert time.monotonic() - began_s < SOON_S
    assert hanging.asked == 1


def test_waiting_for_a_turn_is_part_of_the_time_limit(hanging: Hanging) -> None:
    told: list[Answered] = []
    registry = EvidenceRegistry([hanging], timeout_ms=LONG_MS, on_answer=told.append)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(registry.inspect, target_for())
        assert hanging.begun.wait(DEADLINE_S)
        assert registry.inspect(target_for(), within_ms=SHORT_MS) == UNAVAILABLE
        # The one under way is not late: it has time left, and nobody says that its provider hangs.
        assert registry.hanging() == ()
        assert not hanging.told[0].is_set()
        hanging.let_go.set()
        assert first.result(DEADLINE_S) == Evidence.not_running()
    assert [(answer.evidence, answer.late) for answer in told] == [
        (UNAVAILABLE, False),
        (Evidence.not_running(), False),
    ]


def test_whoever_measures_is_told_of_every_answer_and_of_what_is_late(hanging: Hanging) -> None:
    told: list[Answered] = []
    registry = EvidenceRegistry([hanging, Saying(executor_type="other")], timeout_ms=LONG_MS, on_answer=told.append)
    registry.inspect(target_for("other"))
    registry.inspect(target_for(), within_ms=SHORT_MS)
    registry.inspect(target_for())
    registry.inspect(target_for("nobody's"))
    assert [(answer.executor_type, answer.evidence, answer.late) for answer in told] == [
        ("other", Evidence.running(), False),
        ("batch", UNAVAILABLE, True),
        ("batch", UNAVAILABLE, False),
    ]
    assert told[1].took_ms >= SHORT_MS - 1


def test_whoever_is_interrupted_while_waiting_leaves_a_question_that_nobody_waits_for(hanging: Hanging) -> None:
    hanging.first = _thread.interrupt_main
    registry = EvidenceRegistry([hanging], timeout_ms=LONG_MS)
    with pytest.raises(KeyboardInterrupt):
        registry.inspect(target_for())
    assert hanging.told[0].is_set()
    assert [named.executor_type for named in registry.hanging()] == ["batch"]


def test_in_a_child_nothing_of_the_parents_is_under_way(hanging: Hanging) -> None:
    registry = EvidenceRegistry([hanging], timeout_ms=LONG_MS)
    registry.inspect(target_for(), within_ms=SHORT_MS)
    hanging.let_go.set()
    assert registry.forked() == []
    assert registry.hanging() == ()
    assert registry.inspect(target_for()) == Evidence.not_running()


def test_where_no_thread_can_be_had_nobody_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Saying()
    registry = EvidenceRegistry([provider])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more_threads)
        assert registry.inspect(target_for()) == UNAVAILABLE
    assert registry.hanging() == ()
    assert registry.inspect(target_for()) == Evidence.running()


def no_more_threads(_: threading.Thread) -> None:
    msg = "can't start new thread"
    raise RuntimeError(msg)


def test_a_provider_that_hangs_keeps_no_process_alive() -> None:
    program = (
        "from evidence_doubles import Hanging, target_for\n"
        "from runfacts.infrastructure.evidence import EvidenceRegistry\n"
        "registry = EvidenceRegistry([Hanging()], timeout_ms=20)\n"
        "registry.inspect(target_for())\n"
        "print(registry.hanging()[0].executor_type)\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{root / 'src'}:{root / 'tests/doubles'}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S / 2,
        check=True,
    )
    assert ended.stdout == "batch\n"
