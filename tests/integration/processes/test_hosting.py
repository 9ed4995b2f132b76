"""R10.1 to R10.3, R10.5, R6.4, R6.5: one attempt from its claim to its end."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from journal_ledger import JournalLedger
from process_bench import Bench
from process_watch import kill, state_of, wait_until
from runfacts.domain.actors import Actor
from runfacts.domain.answers import Finished, LateCallback, Renewed, Repeated, StartRefused
from runfacts.domain.errors import Contended, DatabaseUnreachable, InvalidValue, OutcomeUnknown, RunfactsError
from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.processes.collect import CollectedReceipts, collect_receipts
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import (
    Command,
    Detached,
    Ended,
    HostedOutcome,
    KeeperLost,
    NeverRan,
    NotHosted,
    NotStarted,
)
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.infrastructure.processes.lease import HeldLease
from runfacts.infrastructure.steps import NO_STEPS, Steps

ACTOR = Actor.executor("local")
RUN = "019316d5-0000-7000-8000-000000000001"


@pytest.fixture
def ledger(tmp_path: Path) -> JournalLedger:
    """A ledger that notes what it is asked."""
    return JournalLedger(tmp_path / "journal")


def host_of(bench: Bench, ledger: JournalLedger, *, steps: Steps = NO_STEPS, lease_ms: int = 30_000) -> LocalHost:
    return LocalHost(ledger, bench.launcher, bench.places, steps=steps, lease_ms=lease_ms)


def sh(script: str) -> Command:
    return Command(("sh", "-c", script))


def collect(bench: Bench, ledger: JournalLedger) -> CollectedReceipts:
    return collect_receipts(ledger, machine=bench.launcher.machine, places=bench.places, actor=ACTOR)


class AtStep:
    """Does something at one named step."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name = name
        self.act = act

    def reached(self, name: str) -> None:
        """See Steps."""
        if name == self.name:
            self.act()


class OnceMore:
    """A profile function that lets a signal come at every call and return of whoever handles it."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        self.times = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Be told of everything that is called and returns."""
        if event in {"call", "return"} and frame.f_code.co_name in {"detach", "set", "notify_all"}:
            self.times += 1
            signal.raise_signal(self.number)


class Both:
    """Two listeners."""

    def __init__(self, *listeners: Steps) -> None:
        self.listeners = listeners

    def reached(self, name: str) -> None:
        """See Steps."""
        for listener in self.listeners:
            listener.reached(name)


class AllSteps:
    """Notes every step."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def reached(self, name: str) -> None:
        """See Steps."""
        self.names.append(name)


class InBackground:
    """Hosts one run in a thread."""

    def __init__(self, host: LocalHost, command: Command) -> None:
        self.outcome: HostedOutcome | None = None
        self.thread = threading.Thread(target=self._run, args=(host, command))
        self.thread.start()

    def _run(self, host: LocalHost, command: Command) -> None:
        self.outcome = host.run(RUN, command, actor=ACTOR)

    def join(self) -> HostedOutcome | None:
        """Wait for the end."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.outcome


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("exit 0", Outcome.succeeded(exit_code=0)),
        ("exit 7", Outcome.failed(exit_code=7)),
        ("kill -9 $$", Outcome.failed(signal=9)),
    ],
)
def test_the_end_of_the_command_is_recorded(bench: Bench, ledger: JournalLedger, script: str, outcome: Outcome) -> None:
    ended = host_of(bench, ledger).run(RUN, sh(script), actor=ACTOR)
    assert isinstance(ended, Ended)
    assert (ended.outcome, type(ended.answer)) == (outcome, Finished)
    [attempt] = ledger.attempts().values()
    assert (attempt["exit_code"], attempt["signal"], attempt["status"]) == (
        outcome.exit_code, outcome.signal, outcome.kind.value,
    )  # fmt: skip


def test_what_is_recorded_before_the_gate_names_the_process_that_runs(bench: Bench, ledger: JournalLedger) -> None:
    host_of(bench, ledger).run(RUN, sh(f"grep -c '\"pid\": '$$'[,}}]' {ledger.path}"), actor=ACTOR)
    [attempt] = ledger.attempts().values()
    assert Path(bench.places.of(attempt["attempt_id"]).stdout).read_text() == "1\n"
    handle = ProcessHandle.decode(attempt["handle"])
    assert (handle.pid, handle.group, handle.scope) == (attempt["pid"], attempt["pid"], attempt["scope"])


def test_after_the_end_only_the_logs_are_left(bench: Bench, ledger: JournalLedger) -> None:
    host_of(bench, ledger).run(RUN, sh("echo out"), actor=ACTOR)
    [attempt_id] = ledger.attempts()
    left = {path.name for path in Path(bench.places.directory).iterdir()}
    assert left == {f"{attempt_id}.err", f"{attempt_id}.out"}


def test_the_steps_of_a_launch_come_in_order(bench: Bench, ledger: JournalLedger) -> None:
    steps = AllSteps()
    launcher = Launcher(bench.launcher.machine, steps=steps)
    LocalHost(ledger, launcher, bench.places, steps=steps).run(RUN, sh("true"), actor=ACTOR)
    what = ("start", "keeper", "running", "gate", "finish", "receipt-removed")
    assert steps.names == [f"launch:{when}:{name}" for name in what for when in ("before", "after")]


def test_a_command_that_is_not_there_is_a_failure_with_its_reason(bench: Bench, ledger: JournalLedger) -> None:
    ended = host_of(bench, ledger).run(RUN, Command(("no-such-command-anywhere",)), actor=ACTOR)
    assert isinstance(ended, Ended)
    assert (ended.outcome.exit_code, ended.outcome.error_code) == (127, "command_not_found")


def test_a_run_that_cannot_be_claimed_is_not_hosted(bench: Bench, ledger: JournalLedger) -> None:
    host = host_of(bench, ledger)
    assert isinstance(host.run(RUN, sh(f"echo ran >> {bench.root}/ran"), actor=ACTOR), Ended)
    assert isinstance(host.run(RUN, sh(f"echo ran >> {bench.root}/ran"), actor=ACTOR), NotHosted)
    assert (bench.root / "ran").read_text() == "ran\n"


@pytest.mark.parametrize("step", ["launch:before:start", "launch:before:running"])
def test_an_intent_before_the_gate_lets_nothing_run(bench: Bench, ledger: JournalLedger, step: str) -> None:
    trace = bench.root / "ran"
    steps = AtStep(step, lambda: ledger.cancel(RUN))
    outcome = host_of(bench, ledger, steps=steps).run(RUN, Command(("touch", str(trace))), actor=ACTOR)
    assert isinstance(outcome, NotStarted)
    assert isinstance(outcome.answer, StartRefused)
    assert not trace.exists()
    assert list(Path(bench.places.directory).iterdir()) == []


def test_an_intent_after_the_commit_comes_too_late_for_the_gate(bench: Bench, ledger: JournalLedger) -> None:
    steps = AtStep("launch:after:running", lambda: ledger.cancel(RUN))
    outcome = host_of(bench, ledger, steps=steps).run(RUN, sh("exit 7"), actor=ACTOR)
    assert isinstance(outcome, Ended)
    assert (outcome.outcome.exit_code, ledger.attempts()[outcome.attempt_id]["status"]) == (7, "cancelled")


@pytest.mark.parametrize("committed", [True, False])
def test_the_gate_stays_shut_until_the_commit_is_known(bench: Bench, tmp_path: Path, *, committed: bool) -> None:
    ledger = JournalLedger(tmp_path / "journal", unknown_running=(committed, False))
    outcome = host_of(bench, ledger).run(RUN, sh(f"echo ran >> {bench.root}/ran; exit 7"), actor=ACTOR)
    assert isinstance(outcome, Ended)
    assert outcome.outcome.exit_code == 7
    assert (bench.root / "ran").read_text() == "ran\n"
    assert [line["op"] for line in ledger.lines()].count("running") == 1


def test_a_commit_that_stays_unknown_lets_nothing_run(bench: Bench, tmp_path: Path) -> None:
    ledger = JournalLedger(tmp_path / "journal", unknown_running=(True, *[False] * 1_000))
    launcher = Launcher(bench.launcher.machine, gate_timeout_ms=1_000)
    outcome = LocalHost(ledger, launcher, bench.places).run(RUN, sh(f"touch {bench.root}/ran"), actor=ACTOR)
    assert isinstance(outcome, NeverRan)
    assert outcome.reason == "commit_unknown"
    assert not (bench.root / "ran").exists()


def test_a_failed_commit_lets_nothing_run(bench: Bench, ledger: JournalLedger) -> None:
    def fail() -> None:
        raise DatabaseUnreachable("it is gone")

    with pytest.raises(DatabaseUnreachable):
        host_of(bench, ledger, steps=AtStep("launch:before:running", fail)).run(
            RUN, sh(f"touch {bench.root}/ran"), actor=ACTOR
        )
    assert not (bench.root / "ran").exists()
    assert bench.marked.living() == set()
    assert ledger.attempts().popitem()[1]["status"] == "starting"


def test_an_error_after_the_gate_leaves_the_command_to_its_keeper(bench: Bench, ledger: JournalLedger) -> None:
    def fail() -> None:
        raise OutcomeUnknown("the connection broke")

    with pytest.raises(OutcomeUnknown):
        host_of(bench, ledger, steps=AtStep("launch:after:gate", fail)).run(RUN, sh("exit 7"), actor=ACTOR)
    bench.marked.wait_until_gone()
    assert collect(bench, ledger) == CollectedReceipts(found=1, recorded=1)
    assert ledger.attempts().popitem()[1]["exit_code"] == 7


def test_a_process_ended_at_its_gate_is_recorded_as_never_run(bench: Bench, ledger: JournalLedger) -> None:
    def end_the_process() -> None:
        pid = ledger.attempts().popitem()[1]["pid"]
        kill(pid)
        wait_until(lambda: state_of(pid) is None, "the process is gone")

    steps = AtStep("launch:before:gate", end_the_process)
    outcome = host_of(bench, ledger, steps=steps).run(RUN, sh(f"touch {bench.root}/ran"), actor=ACTOR)
    assert isinstance(outcome, NeverRan)
    assert (outcome.reason, outcome.detail) == ("gate_closed", "the process ended at its gate")
    [attempt] = ledger.attempts().values()
    assert (attempt["status"], attempt["error_code"], attempt["exit_code"]) == ("failed", "gate_closed", None)
    assert not (bench.root / "ran").exists()


def test_a_launch_that_fails_is_recorded_as_never_run(bench: Bench, ledger: JournalLedger) -> None:
    launcher = Launcher(bench.launcher.machine, interpreter="/nonexistent/python")
    outcome = LocalHost(ledger, launcher, bench.places).run(RUN, sh("true"), actor=ACTOR)
    assert isinstance(outcome, NeverRan)
    assert ledger.attempts().popitem()[1]["error_code"] == "launch_failed"


def test_an_end_that_cannot_be_recorded_now_is_collected_later(bench: Bench, tmp_path: Path) -> None:
    ledger = JournalLedger(tmp_path / "journal", unreachable_finish=1)
    with pytest.raises(DatabaseUnreachable):
        host_of(bench, ledger).run(RUN, sh("exit 7"), actor=ACTOR)
    assert collect(bench, ledger) == CollectedReceipts(found=1, recorded=1)
    assert ledger.attempts().popitem()[1]["exit_code"] == 7


def test_a_receipt_that_a_collector_took_first_is_no_lost_end(bench: Bench, ledger: JournalLedger) -> None:
    steps = AtStep("launch:before:finish", lambda: None)
    host = host_of(bench, ledger, steps=steps)
    running = InBackground(host, sh(f"echo begun; read line < {bench.root}/fifo; exit 7"))
    os.mkfifo(bench.root / "fifo")
    wait_until(lambda: ledger.attempts() and "pid" in next(iter(ledger.attempts().values())), "it runs")
    # The host sleeps through its look while somebody else consumes the receipt.
    host._poll_s = 1.0
    (bench.root / "fifo").write_text("go on\n")
    wait_until(lambda: collect(bench, ledger).found or not running.thread.is_alive(), "somebody takes the receipt")
    outcome = running.join()
    assert isinstance(outcome, Ended)
    assert outcome.outcome == Outcome.failed(exit_code=7)
    assert isinstance(outcome.answer, Finished | Repeated)
    assert [line["op"] for line in ledger.lines()].count("finish") == 1


def test_a_host_whose_keeper_is_killed_records_nothing_and_says_so(bench: Bench, ledger: JournalLedger) -> None:
    os.mkfifo(bench.root / "fifo")
    running = InBackground(host_of(bench, ledger), sh(f"read line < {bench.root}/fifo; touch {bench.root}/ran"))
    wait_until(lambda: any(line["op"] == "running" for line in ledger.lines()), "it runs")
    pid = ledger.attempts().popitem()[1]["pid"]
    keeper_pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sh\0"), "the command runs")
    kill(keeper_pid)
    assert running.thread.is_alive()
    (bench.root / "fifo").write_text("go on\n")
    outcome = running.join()
    assert isinstance(outcome, KeeperLost)
    assert outcome.reason == "the keeper was ended by signal 9 and left no receipt"
    assert (bench.root / "ran").exists()
    assert [line["op"] for line in ledger.lines()] == ["claim", "start", "running"]


def test_the_lease_is_renewed_while_the_command_runs(bench: Bench, ledger: JournalLedger) -> None:
    os.mkfifo(bench.root / "fifo")
    running = InBackground(host_of(bench, ledger, lease_ms=300), sh(f"read line < {bench.root}/fifo"))
    wait_until(lambda: ledger.renewals >= 3, "three renewals")
    (bench.root / "fifo").write_text("go on\n")
    assert isinstance(running.join(), Ended)


def test_a_host_that_is_asked_to_go_leaves_the_command_alone(bench: Bench, ledger: JournalLedger) -> None:
    os.mkfifo(bench.root / "fifo")
    host = host_of(bench, ledger)
    host._steps = AtStep("launch:after:gate", host.detach)
    outcome = host.run(RUN, sh(f"read line < {bench.root}/fifo; exit 7"), actor=ACTOR)
    assert isinstance(outcome, Detached)
    assert collect(bench, ledger) == CollectedReceipts()
    (bench.root / "fifo").write_text("go on\n")
    bench.marked.wait_until_gone()
    assert collect(bench, ledger) == CollectedReceipts(found=1, recorded=1)
    assert ledger.attempts()[outcome.attempt_id]["exit_code"] == 7


class Noted:
    """Looks after nothing, and notes when it is asked to look. See ``Stops``."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        self.hosted: list[str] = []
        self.ended: list[str] = []
        self.woken = 0
        self.act = act

    @contextmanager
    def hosting(self, attempt_id: str) -> Iterator[None]:
        """See ``Stops``."""
        self.hosted.append(attempt_id)
        try:
            yield
        finally:
            self.ended.append(attempt_id)

    def wake(self) -> None:
        """See ``Stops``."""
        self.woken += 1
        self.act()


def leaving_a_child(bench: Bench) -> Command:
    """A command that ends at once and leaves a child in its group, until the fifo is written to."""
    os.mkfifo(bench.root / "fifo")
    return sh(f"(trap '' HUP; read line < {bench.root}/fifo) & exit 7")


def test_with_an_intent_the_host_outlasts_the_group(bench: Bench, ledger: JournalLedger) -> None:
    command = leaving_a_child(bench)
    noted = Noted()
    steps = AtStep("launch:after:gate", lambda: ledger.cancel(RUN))
    host = LocalHost(ledger, bench.launcher, bench.places, stops=noted, steps=steps)
    running = InBackground(host, command)
    # Asked when the command itself has ended, and others of its group have not.
    wait_until(lambda: noted.woken, "somebody is asked to stop the rest")
    assert running.thread.is_alive()
    assert noted.ended == []
    # A supervisor that looks meanwhile leaves the receipt where it is.
    assert collect(bench, ledger) == CollectedReceipts(found=1, kept=1)
    (bench.root / "fifo").write_text("go on\n")
    outcome = running.join()
    assert isinstance(outcome, Ended)
    assert isinstance(outcome.answer, Finished)
    attempt = ledger.attempts()[outcome.attempt_id]
    assert (attempt["status"], attempt["exit_code"], attempt["group_left"]) == ("cancelled", 7, False)
    assert noted.hosted == noted.ended == [outcome.attempt_id]
    assert collect(bench, ledger) == CollectedReceipts()


def test_a_host_that_outlasts_a_group_can_be_asked_to_go(bench: Bench, ledger: JournalLedger) -> None:
    command = leaving_a_child(bench)
    steps = AtStep("launch:after:gate", lambda: ledger.cancel(RUN))
    noted = Noted()
    host = LocalHost(ledger, bench.launcher, bench.places, stops=noted, steps=steps)
    noted.act = host.detach
    outcome = host.run(RUN, command, actor=ACTOR)
    assert isinstance(outcome, Detached)
    assert collect(bench, ledger) == CollectedReceipts(found=1, kept=1)
    (bench.root / "fifo").write_text("go on\n")
    bench.marked.wait_until_gone()
    assert collect(bench, ledger) == CollectedReceipts(found=1, recorded=1)
    attempt = ledger.attempts()[outcome.attempt_id]
    assert (attempt["status"], attempt["exit_code"], attempt["group_left"]) == ("cancelled", 7, False)


def test_a_host_outlasts_no_group_whose_attempt_somebody_else_has_ended(bench: Bench, ledger: JournalLedger) -> None:
    command = leaving_a_child(bench)

    def end_it() -> None:
        attempt_id = next(iter(ledger.attempts()))
        ledger._append(op="stopped", attempt_id=attempt_id, status="cancelled")

    steps = AtStep("launch:after:gate", lambda: ledger.cancel(RUN))
    outcome = LocalHost(ledger, bench.launcher, bench.places, stops=Noted(end_it), steps=steps).run(
        RUN, command, actor=ACTOR
    )
    assert isinstance(outcome, Ended)
    assert isinstance(outcome.answer, LateCallback)
    (bench.root / "fifo").write_text("go on\n")


def test_a_renewal_that_tells_of_an_intent_wakes_who_looks_after_it(bench: Bench, ledger: JournalLedger) -> None:
    os.mkfifo(bench.root / "fifo")

    def end_it() -> None:
        (bench.root / "fifo").write_text("go on\n")
        noted.act = lambda: None

    noted = Noted(end_it)
    steps = AtStep("launch:after:gate", lambda: ledger.cancel(RUN))
    host = LocalHost(ledger, bench.launcher, bench.places, stops=noted, steps=steps, lease_ms=300)
    outcome = host.run(RUN, sh(f"read line < {bench.root}/fifo"), actor=ACTOR)
    assert isinstance(outcome, Ended)
    assert ledger.attempts()[outcome.attempt_id]["status"] == "cancelled"
    assert noted.woken


def test_without_an_intent_a_living_group_is_only_noted(bench: Bench, ledger: JournalLedger) -> None:
    outcome = host_of(bench, ledger).run(RUN, sh("sleep 60 & exit 0"), actor=ACTOR)
    assert isinstance(outcome, Ended)
    assert ledger.attempts()[outcome.attempt_id]["group_left"] is True


def test_an_attempt_that_ended_otherwise_gets_a_late_callback(bench: Bench, ledger: JournalLedger) -> None:
    def end_it() -> None:
        attempt_id = next(iter(ledger.attempts()))
        ledger._append(op="lost", attempt_id=attempt_id, status="lost")

    steps = AtStep("launch:after:gate", end_it)
    outcome = host_of(bench, ledger, steps=steps).run(RUN, sh("exit 7"), actor=ACTOR)
    assert isinstance(outcome, Ended)
    assert isinstance(outcome.answer, LateCallback)
    assert not Path(bench.places.of(outcome.attempt_id).receipt).exists()


def test_all_output_is_shown_and_stays_in_the_logs(bench: Bench, ledger: JournalLedger) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    host = LocalHost(ledger, bench.launcher, bench.places, stdout=out, stderr=err)
    outcome = host.run(RUN, sh("head -c 3000000 /dev/urandom; printf 'a\\377\\000b' >&2"), actor=ACTOR)
    assert isinstance(outcome, Ended)
    files = bench.places.of(outcome.attempt_id)
    assert len(out.getvalue()) == 3_000_000
    assert out.getvalue() == Path(files.stdout).read_bytes()
    assert err.getvalue() == b"a\xff\0b"


def test_the_directory_and_environment_are_the_given_ones(bench: Bench, ledger: JournalLedger) -> None:
    out = io.BytesIO()
    host = LocalHost(ledger, bench.launcher, bench.places, stdout=out)
    command = Command(("/bin/sh", "-c", 'pwd; echo "$COLOUR $HOME"'), cwd="/", env={"COLOUR": "blue"})
    host.run(RUN, command, actor=ACTOR)
    assert out.getvalue() == b"/\nblue \n"
    assert "blue" not in repr(command)


def test_an_unusable_command_is_refused_before_anything_is_recorded(bench: Bench, ledger: JournalLedger) -> None:
    for command in (Command(()), Command(("a\0",)), Command(("true",), env={"": "x"})):
        with pytest.raises(InvalidValue):
            host_of(bench, ledger).run(str(uuid.uuid4()), command, actor=ACTOR)
    assert ledger.lines() == []


def test_a_lease_that_is_over_before_the_gate_lets_nothing_run(
    bench: Bench, ledger: JournalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_claim: object, *, lease_ms: int | None = None) -> Renewed:
        del lease_ms
        raise DatabaseUnreachable("it is gone")

    monkeypatch.setattr(ledger, "renew", unreachable)
    # A lease of a millisecond is over whenever the gate is reached.
    outcome = host_of(bench, ledger, lease_ms=1).run(RUN, sh(f"touch {bench.root}/ran"), actor=ACTOR)
    assert isinstance(outcome, NeverRan)
    assert outcome.reason == "lease_over"
    assert not (bench.root / "ran").exists()


def test_a_lease_that_was_late_is_renewed_before_the_gate(bench: Bench, ledger: JournalLedger) -> None:
    taken: list[int] = []
    steps = AtStep("launch:before:gate", lambda: taken.append(ledger.renewals))
    host = host_of(bench, ledger, steps=steps, lease_ms=2_000)
    slow = AtStep("launch:after:running", lambda: time.sleep(2.1))
    host._steps = Both(steps, slow)
    assert isinstance(host.run(RUN, sh("true"), actor=ACTOR), Ended)
    assert taken == [1]


@pytest.mark.parametrize("error", [DatabaseUnreachable("it is gone"), Contended(RUN, 9)], ids=["away", "contended"])
def test_a_database_that_is_away_for_a_while_stops_no_command(
    bench: Bench,
    ledger: JournalLedger,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: RunfactsError,
) -> None:
    os.mkfifo(bench.root / "fifo")
    calls: list[int] = []

    def unreachable(_claim: object, *, lease_ms: int | None = None) -> Renewed:
        del lease_ms
        calls.append(1)
        raise error

    monkeypatch.setattr(ledger, "renew", unreachable)
    host = host_of(bench, ledger, lease_ms=600)
    # The gate is passed with a lease that is trusted, however slow this machine is.
    monkeypatch.setattr(HeldLease, "is_trusted", property(lambda _: not calls))
    running = InBackground(host, sh(f"read line < {bench.root}/fifo; exit 7"))
    wait_until(lambda: len(calls) >= 3, "it is tried again and again")
    (bench.root / "fifo").write_text("go on\n")
    outcome = running.join()
    assert isinstance(outcome, Ended)
    assert outcome.outcome.exit_code == 7
    assert [record.message for record in caplog.records if "left alone" in record.message] == [
        f"attempt {outcome.attempt_id}: its lease could not be renewed; its process is left alone"
    ]


def test_one_host_runs_several_commands_at_a_time(bench: Bench, ledger: JournalLedger) -> None:
    host = host_of(bench, ledger)
    runs = [f"019316d5-0000-7000-8000-00000000002{number}" for number in range(8)]
    outcomes: dict[str, HostedOutcome] = {}

    def host_one(number: int) -> None:
        outcomes[runs[number]] = host.run(runs[number], sh(f"exit {number}"), actor=ACTOR)

    threads = [threading.Thread(target=host_one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    ended = {run_id: outcome.outcome.exit_code for run_id, outcome in outcomes.items() if isinstance(outcome, Ended)}
    assert ended == {run_id: number for number, run_id in enumerate(runs)}


def test_a_reader_that_stalls_keeps_neither_the_end_from_the_ledger_nor_the_host(
    bench: Bench, ledger: JournalLedger
) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0) as stalled:
        host = LocalHost(ledger, bench.launcher, bench.places, stdout=stalled)
        running = InBackground(host, sh("head -c 1000000 /dev/zero; exit 7"))
        wait_until(lambda: any(line["op"] == "finish" for line in ledger.lines()), "the end is recorded")
        assert running.thread.is_alive()
        host.detach()
        outcome = running.join()
        assert isinstance(outcome, Ended)
        assert outcome.outcome.exit_code == 7
        # Lets the copying thread end before its pipe is closed.
        wait_until(lambda: _drained(read), "nothing is written any more")


def _drained(descriptor: int) -> bool:
    while select.select([descriptor], [], [], 0.2)[0]:
        os.read(descriptor, 1 << 16)
    return not any(thread.name == "runfacts-tail" for thread in threading.enumerate())


@pytest.mark.timeout(30)
def test_a_host_may_be_asked_to_go_within_being_asked_to_go(bench: Bench, ledger: JournalLedger) -> None:
    """R10.5: a signal can come while the handler of the one before is under way."""
    host = host_of(bench, ledger)
    before = signal.signal(signal.SIGUSR2, lambda *_: host.detach())
    once_more = OnceMore(signal.SIGUSR2)
    profile = sys.getprofile()
    try:
        sys.setprofile(once_more)
        host.detach()
    finally:
        sys.setprofile(profile)
        signal.signal(signal.SIGUSR2, before)
    assert once_more.times >= 2
