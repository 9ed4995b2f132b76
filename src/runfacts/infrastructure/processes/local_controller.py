"""
The controller of local processes (R8.4 to R8.6).

::

    prove ─> TERM ─> look until the grace is over ─> prove again ─> KILL ─> look again

Every signal goes through a descriptor that was opened before the proof, so that a process which ends in between is
missed and its number's next owner is never hit. Where a proof is missing, nothing is sent. There are three ways to
reach a group:

* its leader lives and is proven: with the group flag, through the leader's descriptor;
* its leader is dead and members live: only when each of them is proven ours, or through a descriptor that the host
  holds since before the gate opened, which is itself the identity;
* without the group flag: each member through its own descriptor, repeated until none is new.

A stopped process is not continued: TERM waits for it and KILL ends it.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals
from typing import Final

from runfacts.domain.cancellation.controllers import Monotonic, OutOfTime, StopResult, StopTarget, TimeLeft
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.errors import UnsupportedPlatform
from runfacts.domain.measures import NO_MEASURES, SIGNALS, Measures
from runfacts.domain.payloads import Escalation
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.members import GroupMembers, Member
from runfacts.infrastructure.processes.pidfds import Pidfds, Sent, has_group_signals, shows_our_namespace
from runfacts.infrastructure.processes.procfs import ProcFs, require_linux
from runfacts.infrastructure.processes.proof import Leader, open_leader, prove_leader, prove_record
from runfacts.infrastructure.steps import NO_STEPS, Steps

AFTER_KILL_MS: Final = 400
"""How long KILL is given before what outlives it is reported."""
SIGNAL_MS: Final = 50
"""How much time a proof and its signal are reckoned with."""

_WORDS: Final = {SIGTERM: Escalation.TERM.value, SIGKILL: Escalation.KILL.value}
_UNPROVEN_LOOKS: Final = 5
_UNPROVEN_WAIT_MS: Final = 10


class LocalController:
    """Stops what this machine's own executor runs. See ``ExecutionController``. Thread-safe."""

    def __init__(
        self,
        machine: MachineIdentity,
        *,
        grace_ms: int = 5_000,
        poll_ms: int = 50,
        held: HeldPidfds | None = None,
        steps: Steps = NO_STEPS,
        measures: Measures = NO_MEASURES,
        procfs: ProcFs | None = None,
        pidfds: Pidfds | None = None,
        group_signals: bool | None = None,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """``held`` are the descriptors of this process's own hosts.

        ``group_signals`` says whether the kernel's group flag is used; ``None``: where the kernel has it.
        """
        self.machine = machine
        self.grace_ms = grace_ms
        self.poll_ms = poll_ms
        self.held = held or HeldPidfds()
        self.steps = steps
        self.measures = measures
        self.procfs = procfs or ProcFs()
        self.pidfds = pidfds or Pidfds()
        self.monotonic = monotonic
        self._group_signals = group_signals

    @property
    def executor_type(self) -> str:
        """See ``ExecutionController``."""
        return EXECUTOR_TYPE

    @property
    def scopes(self) -> frozenset[str]:
        """The scope of this process, and no other."""
        return frozenset({self.machine.scope})

    @property
    def worst_case_ms(self) -> int:
        """The grace, the look after KILL, and a signal's time for each of the two signals."""
        return self.grace_ms + AFTER_KILL_MS + 2 * SIGNAL_MS

    @property
    def group_signals(self) -> bool:
        """Whether a group is reached with the kernel's group flag, and not member by member."""
        return has_group_signals() if self._group_signals is None else self._group_signals

    def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
        """See ``ExecutionController``."""
        try:
            require_linux("stopping a process")
        except UnsupportedPlatform:
            return StopResult(DispatchResult.UNSUPPORTED)
        handle = prove_record(target.handle, target.pid, target.scope, self.machine)
        if isinstance(handle, DispatchResult):
            return StopResult(handle)
        if not shows_our_namespace(self.procfs):
            return StopResult(DispatchResult.UNSUPPORTED)
        with ExitStack() as stack:
            held = stack.enter_context(self.held.borrow(target.attempt_id, handle))
            members = stack.enter_context(
                GroupMembers(handle.group, attempt_id=target.attempt_id, procfs=self.procfs, pidfds=self.pidfds)
            )
            stopping = _Stopping(self, handle, members, time_left, stack)
            return stopping.through(held)


@dataclass(frozen=True, slots=True)
class _Aim:
    """Whom the next signal goes to, all of them proven."""

    group_of: int | None
    """The leader's descriptor, with the group flag; ``None``: each member by its own."""
    members: tuple[Member, ...] = ()
    leader_lives: bool = False


@dataclass(slots=True)
class _Shot:
    """What came of one signal to all."""

    number: Signals
    accepted: bool = False
    refused: bool = False
    unproven: bool = False
    missed: bool = False
    """Whether somebody who was seen did not get it: there was no time, or there are more than can be held."""

    @property
    def failure(self) -> DispatchResult | None:
        """Why nobody, or not everybody, may get it."""
        if self.unproven:
            return DispatchResult.GROUP_SURVIVORS
        if self.refused and not self.accepted:
            return DispatchResult.NOT_PERMITTED
        return None


class _Stopping:
    """One ``stop`` of one group."""

    def __init__(
        self,
        controller: LocalController,
        handle: ProcessHandle,
        members: GroupMembers,
        time_left: TimeLeft,
        stack: ExitStack,
    ) -> None:
        self._by_group = controller.group_signals
        self._controller = controller
        self._handle = handle
        self._members = members
        self._pidfds = controller.pidfds
        self._procfs = controller.procfs
        self._time_left = time_left
        self._stack = stack
        self._pidfd: int | None = None
        self._is_held = False

    def through(self, held: int | None) -> StopResult:
        """Stop the group, through a descriptor that is held since before the gate opened if there is one."""
        self._pidfd, self._is_held = held, held is not None
        if self._pidfd is None:
            opened = open_leader(self._handle, self._procfs, self._pidfds)
            if opened is Leader.STRANGER:
                return StopResult(DispatchResult.IDENTITY_MISMATCH)
            if isinstance(opened, int):
                self._pidfd = opened
                self._stack.callback(os.close, opened)
        reached = self._controller.steps.reached
        aim = self._prove()
        if isinstance(aim, DispatchResult):
            return StopResult(aim)
        reached("stop:after:proof")
        reached("stop:before:term")
        # Whoever has no time left for KILL does not begin.
        shot = self._send(aim, SIGTERM, self._controller.grace_ms + SIGNAL_MS)
        reached("stop:after:term")
        escalation = Escalation.TERM if shot.accepted else Escalation.NONE
        if shot.failure is not None:
            return StopResult(shot.failure, escalation)
        if not shot.accepted:
            return StopResult(DispatchResult.ALREADY_EXITED)
        if self._ends_within(self._controller.grace_ms):
            return StopResult(DispatchResult.TERMINATION_REQUESTED, escalation)
        return self._kill()

    def _kill(self) -> StopResult:
        reached = self._controller.steps.reached
        aim = self._prove()
        if aim is DispatchResult.ALREADY_EXITED:
            return StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.TERM)
        if isinstance(aim, DispatchResult):
            return StopResult(aim, Escalation.TERM)
        reached("stop:after:proof")
        reached("stop:before:kill")
        shot = self._send(aim, SIGKILL, SIGNAL_MS)
        reached("stop:after:kill")
        escalation = Escalation.KILL if shot.accepted else Escalation.TERM
        if shot.failure is not None:
            return StopResult(shot.failure, escalation)
        if not self._ends_within(AFTER_KILL_MS):
            members = self._members.look()
            # A group takes a signal when one of it does; whoever was not permitted to get it is still there.
            if any(self._pidfds.ask(member.pidfd) is Sent.NOT_PERMITTED for member in members):
                return StopResult(DispatchResult.NOT_PERMITTED, escalation)
            if shot.missed:
                # Another try goes on with who is left.
                return StopResult(DispatchResult.DISPATCH_ERROR, escalation)
        return StopResult(DispatchResult.TERMINATION_REQUESTED, escalation)

    def _prove(self) -> _Aim | DispatchResult:
        """Prove everything anew (R8.4), or say why nothing may be sent."""
        match self._leader():
            case Leader.ALIVE:
                if self._by_group:
                    return _Aim(self._pidfd)
                members = self._members.look()
                # Still not reaped after the look: the group's number is its own.
                if self._leader() in {Leader.ALIVE, Leader.ZOMBIE}:
                    return _Aim(None, members, leader_lives=True)
                return self._prove_members()
            case Leader.ZOMBIE | Leader.REAPED:
                return self._prove_members()
            case Leader.STRANGER | Leader.MOVED:
                return DispatchResult.IDENTITY_MISMATCH
            case Leader.UNSEEN:
                return DispatchResult.UNSUPPORTED

    def _prove_members(self) -> _Aim | DispatchResult:
        """The leader is dead: prove every member, or the group by a held descriptor (R8.6)."""
        if self._is_gone():
            return DispatchResult.ALREADY_EXITED
        members = self._members.look()
        for _ in range(_UNPROVEN_LOOKS):
            if self._all_ours(members):
                break
            # One that is just becoming another program shows no environment for a moment.
            self._pidfds.wait_for_an_end((member.pidfd for member in members), _UNPROVEN_WAIT_MS)
            members = self._members.look()
        if not members:
            # Where others' processes are hidden, that none is seen says nothing.
            if self._procfs.hides_processes():
                return DispatchResult.UNSUPPORTED
            proven = self._members.nobody_is_proven
            return DispatchResult.ALREADY_EXITED if proven else DispatchResult.GROUP_SURVIVORS
        by_group = self._pidfd if self._by_group else None
        if self._is_held and by_group is not None:
            return _Aim(by_group)
        if self._all_ours(members):
            return _Aim(by_group, members)
        if self._is_gone():
            return DispatchResult.ALREADY_EXITED
        return DispatchResult.GROUP_SURVIVORS

    def _all_ours(self, members: tuple[Member, ...]) -> bool:
        return self._members.rest_is_ours and all(member.ours for member in members)

    def _leader(self) -> Leader:
        if self._pidfd is None:
            return Leader.REAPED
        return prove_leader(self._handle, self._pidfd, self._procfs, self._pidfds)

    def _is_gone(self) -> bool:
        """Tell whether it is certain that the group has no member at all, zombies included."""
        if self._by_group and self._pidfd is not None:
            return self._pidfds.ask(self._pidfd, group=True) is Sent.GONE
        # A number is not used again while it is a group's: what has it now came after the whole group.
        return self._leader() is Leader.REAPED and self._procfs.stat(self._handle.pid) is not None

    def _send(self, aim: _Aim, number: Signals, wanted_ms: int) -> _Shot:
        """Send to everybody aimed at (``OutOfTime``)."""
        shot = _Shot(number)
        if aim.group_of is not None:
            self._require_time(wanted_ms)
            self._note(shot, self._pidfds.send(aim.group_of, number, group=True))
            return shot
        # By object: a descriptor that is closed gives its number to the next one.
        sent_to: set[Member] = set()
        members = aim.members
        # A group that forks for ever is not chased for ever; what is left after KILL is reported.
        deadline = self._controller.monotonic() + SIGNAL_MS / 1_000
        while True:
            new = [member for member in members if member not in sent_to]
            if not new or (sent_to and self._controller.monotonic() > deadline):
                shot.missed = bool(new) or self._members.too_many
                break
            for member in new:
                self._require_time(wanted_ms)
                sent_to.add(member)
                self._note(shot, self._pidfds.send(member.pidfd, number))
            members = self._members.look()
            all_proven = self._members.rest_is_ours and all(member.ours or member in sent_to for member in members)
            if not all_proven and not (aim.leader_lives and self._leader() in {Leader.ALIVE, Leader.ZOMBIE}):
                shot.unproven = not self._is_gone()
                break
        return shot

    def _note(self, shot: _Shot, sent: Sent) -> None:
        if sent is Sent.ACCEPTED and not shot.accepted:
            shot.accepted = True
            self._controller.measures.record(SIGNALS, signal=_WORDS[shot.number])
        shot.refused = shot.refused or sent is Sent.NOT_PERMITTED

    def _require_time(self, wanted_ms: int) -> None:
        if not self._time_left.allows(wanted_ms):
            raise OutOfTime

    def _ends_within(self, limit_ms: int) -> bool:
        """Look until nobody of the group lives, at most ``limit_ms``; tell whether that came."""
        deadline = self._controller.monotonic() + limit_ms / 1000
        while True:
            living = self._who_lives()
            left_ms = (deadline - self._controller.monotonic()) * 1000
            if living is None or left_ms <= 0:
                return living is None
            self._pidfds.wait_for_an_end(living, min(self._controller.poll_ms, left_ms))

    def _who_lives(self) -> tuple[int, ...] | None:
        """Give descriptors whose ends are worth waiting for; ``None`` when nobody of the group lives."""
        if self._pidfd is not None and not self._pidfds.has_ended(self._pidfd):
            return (self._pidfd,)
        if self._is_gone():
            return None
        members = self._members.look()
        if self._members.nobody_is_proven and not self._procfs.hides_processes():
            return None
        return tuple(member.pidfd for member in members)
