"""
The keeper: the small process that starts a command, waits for it and leaves its receipt (R10.1, R10.2).

It is run as a script by a bare interpreter (``python -I -S keeper.py``), so it imports nothing of this package and
little of the standard library. It has a session of its own, is the only parent of the command, and outlives the host
that started it.

::

    host ──spawns──> keeper ──forks──> child: setsid, says its number, waits at the gate, becomes the command
      └────────── line (a socket) ───────┘

The **gate** is one byte on the line. The child goes on only when that byte has come. It ends without running the
command when the line closes (the host is gone or does not want it), when the keeper is gone (the keeper alone holds
the other end of a pipe that the child watches; unlike a parent-death signal this ends with the gate, so a keeper
killed later takes no command with it), or when the gate's time is over. ``exec`` happens in place: number, start
ticks and group are those that the host recorded before the byte.

The **lock** on ``<attempt>.lock`` is held from before the child exists until after the receipt is published; neither
the child nor the command has it. So "lock free and no receipt" means that no keeper will ever publish one.

The **receipt** is written to a file that was made, with room for it, before the gate: a disk that is full by then
still takes it. It is complete or not there: fsync, rename, fsync of the directory. There is no receipt when the gate
never opened.

The exit code of the keeper tells a host that is still there what became of it (``PUBLISHED`` and the following
constants).

Tests stop the keeper at named steps. When the launch has the key ``steps``, which production never sets, a process that
reaches a step listed in its ``stop_at`` writes its number to a file of the step's name in ``directory`` and stops
itself with SIGSTOP. The test then kills it, or lets it go on with SIGCONT. In their order the steps are
``keeper:before:lock``, ``keeper:after:lock``, ``keeper:before:fork``, ``keeper:after:fork``; in the child
``child:before:report``, ``child:before:gate``, ``child:after:gate``, ``child:before:exec``; then ``keeper:after:exec``,
``keeper:before:reap`` (the command has ended), ``keeper:before:publish`` and ``keeper:after:publish``.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # without the import of typing, which a bare start would wait for
if TYPE_CHECKING:
    from typing import Any, Final, NoReturn

LINE: Final = 3
"""The descriptor of the line to the host: reports out, the gate's byte in."""
LAUNCH: Final = 4
"""The descriptor that the launch is read from, as JSON."""

GATE_OPENS: Final = b"G"
"""What the host sends to open the gate."""

PUBLISHED: Final = 0
"""The command ran, or could not be executed, and its receipt is there."""
NEVER_OPENED: Final = 3
"""The gate never opened: the command did not run and never will."""
NOT_PUBLISHED: Final = 4
"""The command ran, but no receipt could be written."""
NOT_PREPARED: Final = 5
"""Nothing was started: logs, lock or room for the receipt could not be had."""

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127

RECEIPT_VERSION: Final = 1
RECEIPT_MAX: Final = 4_096

_OPENED = b"O"
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# Python ignores these for itself; a command expects the default.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_LOCK_TRIES_FOR_S = 2.0
_LOOKS_MAX = 256
_PUBLISH_TRIES_FOR_S = 600.0


class NotPrepared(Exception):
    """Something that the launch needs could not be had."""

    def __init__(self, what: str, error: OSError) -> None:
        self.what = what
        self.code = errno.errorcode.get(error.errno or 0, "EUNKNOWN")
        super().__init__(f"{what}: {self.code}")


class _Steps:
    """The named steps at which a test stops the keeper or its child."""

    def __init__(self, hook: dict[str, Any] | None) -> None:
        self._directory = hook["directory"] if hook else ""
        self._stop_at = frozenset(hook["stop_at"]) if hook else frozenset[str]()

    def reached(self, name: str) -> None:
        """Stop here when a test asked for it."""
        if name in self._stop_at:
            path = os.path.join(self._directory, name)
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
            os.rename(path + ".new", path)
            os.kill(os.getpid(), signal.SIGSTOP)


class Keeper:
    """One launch: a command, its log files, its lock and its receipt."""

    def __init__(self, launch: dict[str, Any]) -> None:
        self.launch = launch
        self.steps = _Steps(launch.get("steps"))
        # What the host ignores (nohup, a shell's "&") the command ignores as well.
        self.kept_ignored = [number for number in _IGNORED if signal.getsignal(number) is signal.SIG_IGN]
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self.stdout = self.stderr = self.lock = self.room = -1

    def prepare(self) -> None:
        """Take the lock, open the logs and make room for the receipt (``NotPrepared``)."""
        self.steps.reached("keeper:before:lock")
        if os.path.lexists(self.launch["receipt"]):
            raise NotPrepared("receipt", FileExistsError(errno.EEXIST, "there is one"))
        try:
            self.lock = _take_lock(self.launch["lock"])
        except OSError as error:
            raise NotPrepared("lock", error) from None
        self.steps.reached("keeper:after:lock")
        try:
            append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self.stdout = os.open(self.launch["stdout"], append, 0o600)
            self.stderr = os.open(self.launch["stderr"], append, 0o600)
        except OSError as error:
            raise NotPrepared("logs", error) from None
        try:
            self.room = _open_new(self._new_receipt)
            os.posix_fallocate(self.room, 0, RECEIPT_MAX)
        except OSError as error:
            raise NotPrepared("receipt", error) from None

    def clear(self) -> None:
        """Take away what an attempt that never ran has no use for."""
        for path in (self._new_receipt, self.launch["stdout"], self.launch["stderr"], self.launch["lock"]):
            try:  # noqa: SIM105 - without the import of contextlib
                os.unlink(path)
            except FileNotFoundError:
                pass

    def keep(self) -> int:
        """Start the child, wait for its end and publish the receipt; the result is the exit code (``NotPrepared``)."""
        alive_read, alive_write = os.pipe()
        said_read, said_write = os.pipe()
        self.steps.reached("keeper:before:fork")
        try:
            child = os.fork()
        except OSError as error:
            raise NotPrepared("process", error) from None
        if child == 0:
            try:
                # Without the lock before anything else: it must end with the keeper.
                for descriptor in (self.lock, self.room, alive_write, said_read):
                    os.close(descriptor)
                self._become_the_command(alive_read, said_write)
            finally:
                os._exit(NEVER_OPENED)
        # Nothing that another end of is waited for may stay open here.
        for descriptor in (alive_read, said_write, LINE, self.stdout, self.stderr):
            os.close(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.steps.reached("keeper:after:fork")
        said = _read_all(said_read)  # ends when the child has become the command, or has ended
        started_at_ms = _now_ms()
        self.steps.reached("keeper:after:exec")
        # The zombie keeps its number, so the group in /proc cannot be another one yet.
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        ended_at_ms = _now_ms()
        self.steps.reached("keeper:before:reap")
        group_left = said[:1] == _OPENED and _has_other_members(child)
        _, status = os.waitpid(child, 0)
        if said[:1] != _OPENED:
            self.clear()
            return NEVER_OPENED
        code = os.waitstatus_to_exitcode(status)
        receipt = {
            "version": RECEIPT_VERSION,
            "run_id": self.launch["run_id"],
            "attempt_id": self.launch["attempt_id"],
            "sequence": self.launch["sequence"],
            "token": self.launch["token"],
            "started_at_ms": started_at_ms,
            "ended_at_ms": max(started_at_ms, ended_at_ms),
            "exit_code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "not_executed": said[1:].decode("ascii") or None,
            "group_left": group_left,
        }
        return self._publish(json.dumps(receipt).encode("ascii"))

    @property
    def _new_receipt(self) -> str:
        return str(self.launch["receipt"]) + ".new"

    def _become_the_command(self, alive: int, said: int) -> NoReturn:
        for number in _IGNORED + _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_IGN if number in self.kept_ignored else signal.SIG_DFL)
        os.setsid()
        os.dup2(self.stdout, 1)
        os.dup2(self.stderr, 2)
        self.steps.reached("child:before:report")
        # From here on the host knows the number, and the session and group are its own.
        _report({"pid": os.getpid()})
        self.steps.reached("child:before:gate")
        if not _gate_opens(alive, self.launch["gate_timeout_ms"]):
            os._exit(NEVER_OPENED)
        self.steps.reached("child:after:gate")
        os.write(said, _OPENED)
        self.steps.reached("child:before:exec")
        argv, environment = self.launch["argv"], self.launch["environment"]
        try:
            what = "directory"
            os.chdir(self.launch["directory"])
            what = "command"
            os.execvpe(argv[0], argv, environment)  # noqa: S606 - the command, as it was given
        except ValueError:  # a text that no system call takes
            os.write(said, f"{what}:EINVAL".encode("ascii"))
            os._exit(NOT_EXECUTABLE)
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "EUNKNOWN")
            os.write(said, f"{what}:{code}".encode("ascii"))
            missing = what == "command" and error.errno in {errno.ENOENT, errno.ENOTDIR}
            os._exit(NOT_FOUND if missing else NOT_EXECUTABLE)

    def _publish(self, receipt: bytes) -> int:
        deadline = time.monotonic() + _PUBLISH_TRIES_FOR_S
        room = self.room
        while True:
            try:
                if room < 0:
                    try:
                        room = _open_new(self._new_receipt)
                    except FileNotFoundError:  # the directory is gone
                        return NOT_PUBLISHED
                os.pwrite(room, receipt, 0)
                os.ftruncate(room, len(receipt))
                os.fsync(room)
                self.steps.reached("keeper:before:publish")
                os.rename(self._new_receipt, self.launch["receipt"])
                self.steps.reached("keeper:after:publish")
                _fsync_directory(os.path.dirname(self.launch["receipt"]))
                return PUBLISHED
            except OSError:
                # A disk can get room again, and nobody else knows the exit code.
                if time.monotonic() > deadline:
                    return NOT_PUBLISHED
                if room >= 0:
                    os.close(room)
                    room = -1
                time.sleep(1)


def main() -> int:
    """Read the launch and keep it; the result is the exit code."""
    _close_what_is_not_ours()
    launch = json.loads(_read_all(LAUNCH))
    os.chdir("/")
    keeper = Keeper(launch)
    try:
        keeper.prepare()
        return keeper.keep()
    except NotPrepared as refused:
        _report({"refused": refused.what, "error": refused.code})
        if keeper.room >= 0:
            keeper.clear()
        return NOT_PREPARED


def _close_what_is_not_ours() -> None:
    """Close what the host let through, and let the command have nothing but its three streams."""
    try:
        os.fstat(0)
    except OSError:
        # The host has no standard input to give, and what is opened next would become it.
        os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)  # noqa: FBT003 - the system's own signature
    for name in os.listdir("/proc/self/fd"):
        if int(name) > LAUNCH:
            try:
                os.close(int(name))
            except OSError as error:
                if error.errno != errno.EBADF:  # the listing's own
                    raise
    for descriptor in (LINE, LAUNCH):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the system's own signature


def _take_lock(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + _LOCK_TRIES_FOR_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            # Somebody who only looks has it for a moment; another keeper has it for longer.
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise
            time.sleep(0.01)


def _open_new(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)


def _gate_opens(alive: int, timeout_ms: int) -> bool:
    """Wait at the gate: true when the byte came while the keeper was there and time was left."""
    deadline = time.monotonic() + timeout_ms / 1000
    poll = select.poll()
    poll.register(LINE, select.POLLIN)
    poll.register(alive, select.POLLIN)
    while True:
        left_ms = (deadline - time.monotonic()) * 1000
        if left_ms <= 0:
            return False
        ready = {descriptor for descriptor, _ in poll.poll(left_ms)}
        if alive in ready:  # only its end can be read: the keeper is gone, whatever the line says
            return False
        if LINE in ready:
            try:
                return os.read(LINE, 1) == GATE_OPENS
            except ConnectionResetError:
                return False


def _has_other_members(group: int) -> bool:
    """Tell whether the group may have another member that has not ended; what never comes to rest counts as living.

    A scan can miss a group that hands itself over from parent to child: what got a number meanwhile is looked at, too.
    """
    since, numbers = _last_number(), range(0)
    for _ in range(_LOOKS_MAX):
        look_at = numbers or [int(name) for name in os.listdir("/proc") if name.isdigit()]
        if any(_lives_in(group, number) for number in look_at if number != group):
            return True
        latest = _last_number()
        if latest == since:
            return False
        numbers, since = range(since + 1, latest + 1), latest
    return True


def _lives_in(group: int, number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        fields = []
    # A zombie that has a thread besides the first is none.
    return bool(fields) and int(fields[2]) == group and (fields[0] not in {b"Z", b"X", b"x"} or int(fields[17]) > 1)


def _last_number() -> int:
    """The number that was given out last, to a process or thread; 0 where that cannot be known."""
    try:
        with open("/proc/loadavg", "rb") as file:
            return int(file.read().split()[4])
    except (OSError, ValueError, IndexError):
        return 0


def _report(message: dict[str, Any]) -> None:
    os.write(LINE, json.dumps(message).encode("ascii") + b"\n")


def _read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 65_536):
        parts.append(part)
    os.close(descriptor)
    return b"".join(parts)


def _fsync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
