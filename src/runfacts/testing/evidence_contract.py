"""
The contract of evidence providers: what every ``EvidenceProvider`` must pass (R11.3).

A provider of your own is tested by a subclass that says how its executor is set up::

    class TestMyEvidence(EvidenceContract):
        @pytest.fixture
        def workbench(self) -> Iterator[MyWorkbench]:
            with MyWorkbench() as workbench:
                yield workbench

Most of it asks one thing: that "not running" is never said of something that runs, nor on a doubt. A provider that
cannot prove absence at all passes; one that guesses does not. The rest keeps whoever asks from harm: a provider
answers within its time limit, ends when nobody waits any more, and changes neither what it looks at nor what it is
given. The registry that workers use holds it to that, too: what hangs, raises or answers anything else proves nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Protocol

import pytest

from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import Evidence, EvidenceProvider, EvidenceTarget, Liveness, Unknown

_TIMEOUT_MS = 5_000
_SHORT_MS = 250
_LONG_MS = 30_000


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """A place or moment from which nothing can be proven, whatever it looks like from there."""

    name: str
    provider: EvidenceProvider
    target: EvidenceTarget


class EvidenceWorkbench(Protocol):
    """A provider, and what there is to be looked after."""

    @property
    def provider(self) -> EvidenceProvider:
        """The provider under test."""
        ...

    def start(self) -> EvidenceTarget:
        """Start something and give what would be recorded of it, once it runs."""
        ...

    def runs(self, target: EvidenceTarget) -> bool:
        """Tell whether something that was started runs. Not by means of the provider."""
        ...

    def end(self, target: EvidenceTarget) -> None:
        """End something that was started, and return when it is gone."""
        ...

    def replaced(self) -> tuple[EvidenceTarget, EvidenceTarget]:
        """Give the record of something that has ended, and a stranger that took its place and runs.

        The stranger has what names the first one as far as a name can be used again: the same number, host or label.
        """
        ...

    def blind_spots(self) -> Sequence[BlindSpot]:
        """Give what looks like an end and is none: a worker that is offline, a network that times out, another scope.

        There must be one at least; the targets may name what runs and what has ended.
        """
        ...


class EvidenceContract:
    """The tests. Subclass it under a name that pytest collects, and give it a ``workbench``."""

    patience_s: ClassVar[float] = 30.0
    """How long a test waits for what must happen, in seconds."""
    tolerance_s: ClassVar[float] = 5.0
    """By how much an answer may be later than its time limit: a busy machine is no failure."""

    @pytest.fixture
    def workbench(self) -> EvidenceWorkbench:
        """To be overridden: a provider and what it looks after."""
        msg = f"{type(self).__name__} has to override the fixture `workbench`"
        raise NotImplementedError(msg)

    def test_it_names_its_executor_type_and_what_it_requires(self, workbench: EvidenceWorkbench) -> None:
        """An exact name, and fields that a target has."""
        provider = workbench.provider
        assert provider.executor_type
        assert provider.executor_type == provider.executor_type.strip()
        assert isinstance(provider.required, frozenset)
        assert provider.required <= {field.name for field in fields(EvidenceTarget)}
        # Both are read once, when it is registered.
        again = workbench.provider
        assert (again.executor_type, again.required) == (provider.executor_type, provider.required)
        assert workbench.start().executor_type == provider.executor_type

    def test_what_runs_is_running(self, workbench: EvidenceWorkbench) -> None:
        """Asked often, because a guess may be right once."""
        target = workbench.start()
        for _ in range(20):
            assert self._ask(workbench.provider, target) == Evidence.running()
        assert workbench.runs(target)

    def test_what_has_ended_is_not_said_to_run(self, workbench: EvidenceWorkbench) -> None:
        """Whether its end can be proven is the provider's affair."""
        target = workbench.start()
        workbench.end(target)
        deadline = time.monotonic() + self.patience_s
        while self._ask(workbench.provider, target) == Evidence.running():
            assert time.monotonic() < deadline, "it is still said to run"
            time.sleep(0.01)

    def test_looking_changes_nothing(self, workbench: EvidenceWorkbench) -> None:
        """Neither what runs nor its neighbour."""
        target, neighbour = workbench.start(), workbench.start()
        for _ in range(3):
            self._ask(workbench.provider, target)
        assert workbench.runs(target)
        assert workbench.runs(neighbour)

    def test_a_stranger_in_its_place_is_not_taken_for_it(self, workbench: EvidenceWorkbench) -> None:
        """A name that is used again names nobody."""
        record, stranger = workbench.replaced()
        assert self._ask(workbench.provider, record) != Evidence.running()
        assert self._ask(workbench.provider, stranger) == Evidence.running()
        assert workbench.runs(stranger)

    def test_a_blind_spot_never_proves_absence(self, workbench: EvidenceWorkbench) -> None:
        """A process that is not found, a network that times out, a worker that is offline: none of them is an end."""
        spots = workbench.blind_spots()
        assert spots, "name at least one way in which this provider cannot see"
        for spot in spots:
            for timeout_ms in (_TIMEOUT_MS, _SHORT_MS, 1):
                found = self._ask(spot.provider, spot.target, timeout_ms=timeout_ms)
                assert found.liveness is not Liveness.NOT_RUNNING, spot.name

    @pytest.mark.parametrize("timeout_ms", [1, _SHORT_MS])
    def test_too_little_time_never_proves_absence(self, workbench: EvidenceWorkbench, timeout_ms: int) -> None:
        """What runs is running, or nothing is known of it."""
        target = workbench.start()
        assert self._ask(workbench.provider, target, timeout_ms=timeout_ms).liveness is not Liveness.NOT_RUNNING

    def test_that_nobody_waits_never_proves_absence(self, workbench: EvidenceWorkbench) -> None:
        """An inspection that is broken off has seen nothing."""
        cancelled = threading.Event()
        cancelled.set()
        target = workbench.start()
        found = self._ask(workbench.provider, target, cancelled=cancelled)
        assert found.liveness is not Liveness.NOT_RUNNING

    @pytest.mark.parametrize("status", list(AttemptStatus))
    def test_what_was_recorded_of_its_status_proves_nothing(
        self, workbench: EvidenceWorkbench, status: AttemptStatus
    ) -> None:
        """It was recorded by somebody, some time ago; what runs is running."""
        target = replace(workbench.start(), attempt_status=status, lease_expires_at_ms=0, last_seen_at_ms=None)
        assert self._ask(workbench.provider, target).liveness is not Liveness.NOT_RUNNING

    def test_another_scope_never_proves_absence(self, workbench: EvidenceWorkbench) -> None:
        """Also not of what has ended."""
        target = workbench.start()
        elsewhere = replace(target, scope=target.scope + "-elsewhere")
        assert self._ask(workbench.provider, elsewhere).liveness is not Liveness.NOT_RUNNING
        workbench.end(target)
        assert self._ask(workbench.provider, elsewhere).liveness is not Liveness.NOT_RUNNING

    @pytest.mark.parametrize("name", ["handle", "pid", "worker_id"])
    def test_without_what_it_requires_it_knows_nothing(self, workbench: EvidenceWorkbench, name: str) -> None:
        """Of the fields that can be missing (R11.3)."""
        target = workbench.start()
        lacking = {
            "handle": replace(target, handle=None),
            "pid": replace(target, pid=None),
            "worker_id": replace(target, worker_id=None),
        }
        if name in workbench.provider.required:
            found = self._ask(workbench.provider, lacking[name])
            assert found == Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)

    @pytest.mark.parametrize("handle", ["", "{", "null", "\x00", "x" * 513])
    def test_a_handle_that_cannot_be_read_proves_nothing(self, workbench: EvidenceWorkbench, handle: str) -> None:
        """Where the provider goes by handles."""
        target = workbench.start()
        if "handle" in workbench.provider.required:
            assert self._ask(workbench.provider, replace(target, handle=handle)).liveness is Liveness.UNKNOWN

    def test_it_keeps_to_its_time_limit(self, workbench: EvidenceWorkbench) -> None:
        """Also where it cannot see."""
        asked = [(workbench.provider, workbench.start())]
        asked += [(spot.provider, spot.target) for spot in workbench.blind_spots()]
        for provider, target in asked:
            began = time.monotonic()
            self._ask(provider, target, timeout_ms=_SHORT_MS)
            assert time.monotonic() - began <= _SHORT_MS / 1_000 + self.tolerance_s

    def test_it_ends_when_nobody_waits(self, workbench: EvidenceWorkbench) -> None:
        """Asked with the longest limit, and told at once that nobody waits."""
        cancelled = threading.Event()
        cancelled.set()
        began = time.monotonic()
        self._ask(workbench.provider, workbench.start(), timeout_ms=_LONG_MS, cancelled=cancelled)
        assert time.monotonic() - began <= self.tolerance_s

    def test_it_ends_when_nobody_waits_any_more(self, workbench: EvidenceWorkbench) -> None:
        """Told so while it looks, also where it cannot see: what goes on after that keeps its executor type busy."""
        asked = [(workbench.provider, workbench.start())]
        asked += [(spot.provider, spot.target) for spot in workbench.blind_spots()]
        for provider, target in asked:
            cancelled = threading.Event()
            thread = threading.Thread(
                target=provider.inspect,
                args=(target,),
                kwargs={"timeout_ms": _LONG_MS, "cancelled": cancelled},
                daemon=True,
            )
            thread.start()
            cancelled.set()
            thread.join(self.tolerance_s)
            assert not thread.is_alive(), "it still looks, and nobody waits"

    def test_it_may_be_asked_by_several_at_once(self, workbench: EvidenceWorkbench) -> None:
        """Each registry asks one thing at a time; a process may have several."""
        targets = [workbench.start() for _ in range(4)]
        with ThreadPoolExecutor(len(targets)) as pool:
            found = list(pool.map(lambda target: self._ask(workbench.provider, target), targets))
        assert found == [Evidence.running()] * len(targets)

    def _ask(
        self,
        provider: EvidenceProvider,
        target: EvidenceTarget,
        *,
        timeout_ms: int = _TIMEOUT_MS,
        cancelled: threading.Event | None = None,
    ) -> Evidence:
        """Ask; the answer must be well formed, with a reason where nothing is known and only there."""
        given = replace(target)
        found = provider.inspect(given, timeout_ms=timeout_ms, cancelled=cancelled or threading.Event())
        assert given == target, "what is asked about is frozen"
        assert type(found) is Evidence, "what is said beyond the answer is dropped"
        assert isinstance(found.liveness, Liveness)
        if found.liveness is Liveness.UNKNOWN:
            assert isinstance(found.reason, Unknown)
        else:
            assert found.reason is None
        return found
