"""
The registry of evidence providers: who is asked about which executor type, and for how long (R11.3).

A provider may be anybody's code. It may hang, raise or lie, and none of that may hold up a worker or pass for a proof:

* It runs in a thread of its own, which keeps no process alive. Whoever asked waits for the time limit and no longer.
* One inspection is under way per executor type. Whoever comes meanwhile waits for it, within a time limit of his own.
* One that is late was told that nobody waits, and keeps its place until it really ends. Until then the executor type
  answers ``provider_unavailable`` at once, and ``hanging`` names it: no pile of threads grows behind it.
* An exception is ``provider_unavailable``, an answer that is none ``conflicting_evidence``. What an answer says
  beyond the answer is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from runfacts.domain.errors import InvalidSetting, InvalidValue
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.evidence import Evidence, EvidenceProvider, EvidenceTarget, Liveness, Unknown
from runfacts.domain.texts import NAME_MAX, is_plain_name
from runfacts.infrastructure.database.forks import part_at_forks

PROVIDERS_MAX: Final = 32
"""The most providers that a registry takes."""
EVIDENCE_MARGIN_MS: Final = 250
"""What an inspection must be shorter than the claim under which it is made."""

_LOG: Final = logging.getLogger("runfacts")
_FIELDS: Final = frozenset(field.name for field in fields(EvidenceTarget))
_UNAVAILABLE: Final = Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
_UNVERIFIABLE: Final = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
_CONFLICTING: Final = Evidence.unknown(Unknown.CONFLICTING_EVIDENCE)


@dataclass(frozen=True, slots=True)
class HangingProvider:
    """A provider whose answer is late."""

    executor_type: str
    late_ms: int
    """How long ago its time limit was over."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the registry, for whoever measures."""

    executor_type: str
    evidence: Evidence
    took_ms: int
    late: bool
    """Whether this very inspection ran out of time, so that its provider hangs from now on."""


class EvidenceRegistry:
    """The providers that a worker has, by exact executor type; copied when they are registered. Thread-safe."""

    def __init__(
        self,
        providers: Iterable[EvidenceProvider] = (),
        *,
        timeout_ms: int = 5_000,
        on_answer: Callable[[Answered], None] = lambda _: None,
    ) -> None:
        """Register at most ``PROVIDERS_MAX``, one per executor type (``InvalidValue``).

        ``timeout_ms`` is within the bounds of the setting ``evidence_timeout_ms`` (``InvalidSetting``); ``on_answer``
        is told of each answer that a provider gave or owed, by the thread that asked.
        """
        _, lowest, highest = Settings.bounds()["evidence_timeout_ms"]
        if not lowest <= timeout_ms <= highest:
            raise InvalidSetting("evidence_timeout_ms", f"is not between {lowest} and {highest}")
        found: dict[str, _Desk] = {}
        for provider in providers:
            desk = _Desk(provider)
            if desk.executor_type in found:
                raise InvalidValue("evidence providers", f"have two for executor type {desk.executor_type!r}")
            found[desk.executor_type] = desk
            if len(found) > PROVIDERS_MAX:
                raise InvalidValue("evidence providers", f"are more than {PROVIDERS_MAX}")
        self._desks: Mapping[str, _Desk] = MappingProxyType(found)
        self._timeout_ms = timeout_ms
        self._on_answer = on_answer
        part_at_forks(self)

    @property
    def executor_types(self) -> frozenset[str]:
        """The executor types that have a provider."""
        return frozenset(self._desks)

    @property
    def timeout_ms(self) -> int:
        """How long one ``inspect`` takes at most."""
        return self._timeout_ms

    def inspect(self, target: EvidenceTarget, *, within_ms: int | None = None) -> Evidence:
        """Ask the provider of the target's executor type; ``within_ms`` is for whoever has less time than the limit.

        Never raises for what a provider does. Without a provider, or without a field that it requires, it is
        ``identity_unverifiable``.
        """
        desk = self._desks.get(target.executor_type)
        if desk is None or any(getattr(target, name) is None for name in desk.required):
            return _UNVERIFIABLE
        limit_ms = self._timeout_ms if within_ms is None else min(within_ms, self._timeout_ms)
        began_s = time.monotonic()
        evidence, late = desk.inspect(target, began_s + limit_ms / 1_000)
        if late:
            _LOG.warning("the evidence provider of executor type %s is late and may hang", desk.executor_type)
        took_ms = int((time.monotonic() - began_s) * 1_000)
        self._on_answer(Answered(desk.executor_type, evidence, took_ms, late))
        return evidence

    def hanging(self) -> tuple[HangingProvider, ...]:
        """Name the providers whose answers are late, by executor type."""
        found = ((name, desk.late_since_s) for name, desk in sorted(self._desks.items()))
        now_s = time.monotonic()
        return tuple(
            HangingProvider(name, max(0, int((now_s - since_s) * 1_000)))
            for name, since_s in found
            if since_s is not None
        )

    def forked(self) -> list[object]:
        """Go on in a child, where the threads of the parent are not: nothing is under way there."""
        for desk in self._desks.values():
            desk.clear()
        return []


@dataclass(slots=True, eq=False)
class _Inspection:
    """One question, in the hands of its thread."""

    target: EvidenceTarget
    cancelled: threading.Event
    answer: Evidence | None = None
    late_since_s: float | None = None


class _Desk:
    """Where one provider is asked: one question at a time."""

    def __init__(self, provider: EvidenceProvider) -> None:
        # Read once: what a provider says of itself later changes nothing.
        self.executor_type = _executor_type(provider)
        self.required = _required(provider)
        self._provider = provider
        self.clear()

    def clear(self) -> None:
        """Have nobody at the desk."""
        self._changed = threading.Condition()
        self._under_way: _Inspection | None = None

    @property
    def late_since_s(self) -> float | None:
        """Since when the inspection under way is late."""
        inspection = self._under_way
        return None if inspection is None else inspection.late_since_s

    def inspect(self, target: EvidenceTarget, deadline_s: float) -> tuple[Evidence, bool]:
        """Give the answer, and whether it is this inspection that ran out of time."""
        with self._changed:
            if not self._changed.wait_for(self._is_decided, deadline_s - time.monotonic()):
                return _UNAVAILABLE, False
            left_ms = int((deadline_s - time.monotonic()) * 1_000)
            if self._under_way is not None or left_ms <= 0:
                return _UNAVAILABLE, False
            # A copy of its own: whatever becomes of it, the caller's stays what it was.
            inspection = self._under_way = _Inspection(replace(target), threading.Event())
        try:
            self._start(inspection, left_ms)
            with self._changed:
                self._changed.wait_for(lambda: inspection.answer is not None, deadline_s - time.monotonic())
        finally:
            # Also when whoever waits is interrupted.
            with self._changed:
                answer = inspection.answer
                if answer is None:
                    inspection.late_since_s = time.monotonic()
                    inspection.cancelled.set()
                    self._changed.notify_all()
        return (_UNAVAILABLE, True) if answer is None else (answer, False)

    def _start(self, inspection: _Inspection, timeout_ms: int) -> None:
        thread = threading.Thread(
            target=self._run, args=(inspection, timeout_ms), name="runfacts-evidence", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads
            self._leave(inspection, _UNAVAILABLE)

    def _is_decided(self) -> bool:
        """Tell whether it is the next one's turn, or known that it will not be."""
        return self._under_way is None or self._under_way.late_since_s is not None

    def _run(self, inspection: _Inspection, timeout_ms: int) -> None:
        try:
            said = self._provider.inspect(inspection.target, timeout_ms=timeout_ms, cancelled=inspection.cancelled)
        except BaseException:  # noqa: BLE001 - whatever a provider raises, nobody is answered by it (R11.3)
            answer = _UNAVAILABLE
        else:
            answer = _understood(said)
        self._leave(inspection, answer)

    def _leave(self, inspection: _Inspection, answer: Evidence) -> None:
        with self._changed:
            inspection.answer = answer
            self._under_way = None
            self._changed.notify_all()


def _understood(said: object) -> Evidence:
    """Give the plain answer that was meant; what is none contradicts itself."""
    try:
        # Its type, since an object can claim any class; and each field once, since the next look may find another.
        if not issubclass(type(said), Evidence) or not isinstance(said, Evidence):
            return _CONFLICTING
        liveness, reason = said.liveness, said.reason
    except BaseException:  # noqa: BLE001 - a field that raises is no answer
        return _CONFLICTING
    if type(liveness) is not Liveness:
        return _CONFLICTING
    if liveness is Liveness.UNKNOWN:
        return Evidence.unknown(reason) if type(reason) is Unknown else _CONFLICTING
    return Evidence(liveness) if reason is None else _CONFLICTING


def _executor_type(provider: EvidenceProvider) -> str:
    executor_type = provider.executor_type
    if type(executor_type) is not str or not is_plain_name(executor_type, NAME_MAX):
        raise InvalidValue("evidence provider", "has no executor type")
    return executor_type


def _required(provider: EvidenceProvider) -> frozenset[str]:
    required = frozenset(provider.required)
    if not required <= _FIELDS:
        raise InvalidValue("evidence provider", f"of {provider.executor_type!r} requires fields that no target has")
    return required
