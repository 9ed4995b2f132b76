"""R10.1, R10.2, R10.5: a command at its gate, and what its keeper tells of its end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from process_bench import Bench
from process_watch import DEADLINE_S, kill, state_of, stopped_at, wait_until
from runfacts.domain.errors import InvalidValue
from runfacts.infrastructure.processes import keeper
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.infrastructure.processes.prepared import LaunchFailed
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.processes.receipts import keeper_lock_held


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 137, 255])
def test_the_exit_code_is_the_commands_own(bench: Bench, code: int) -> None:
    receipt = bench.ran(bench.spec("sh", "-c", f"exit {code}"))
    assert (receipt.exit_code, receipt.signal, receipt.not_executed) == (code, None, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE])
def test_a_signal_is_no_exit_code(bench: Bench, number: signal.Signals) -> None:
    receipt = bench.ran(bench.spec("sh", "-c", f"kill -{number.value} $$"))
    assert (receipt.exit_code, receipt.signal) == (None, number.value)


def test_a_command_that_is_not_there_is_127_and_said_so(bench: Bench) -> None:
    receipt = bench.ran(bench.spec("no-such-command-anywhere"))
    assert (receipt.exit_code, receipt.not_executed) == (127, "command:ENOENT")


def test_a_command_that_may_not_be_executed_is_126_and_said_so(bench: Bench) -> None:
    plain = bench.root / "plain"
    plain.write_text("echo never\n")
    receipt = bench.ran(bench.spec(str(plain)))
    assert (receipt.exit_code, receipt.not_executed) == (126, "command:EACCES")


def test_a_missing_directory_is_126_and_said_so(bench: Bench) -> None:
    receipt = bench.ran(bench.spec("true", directory=str(bench.root / "nowhere")))
    assert (receipt.exit_code, receipt.not_executed) == (126, "directory:ENOENT")


def test_arguments_beyond_what_the_system_takes_are_126_and_said_so(bench: Bench) -> None:
    receipt = bench.ran(bench.spec("true", "x" * 4_000_000))
    assert (receipt.exit_code, receipt.not_executed) == (126, "command:E2BIG")


def test_long_arguments_and_bytes_that_are_no_text_arrive_unchanged(bench: Bench) -> None:
    odd = "o\udcffdd"
    spec = bench.spec("sh", "-c", 'printf "%s|%s|%s" "$1" "$ODD" "${#2}"', "sh", odd, "x" * 100_000,
                      environment={"ODD": odd, "PATH": os.environ["PATH"]})  # fmt: skip
    bench.ran(spec)
    assert Path(spec.files.stdout).read_bytes() == b"o\xffdd|o\xffdd|100000"


def test_the_command_finds_its_ids_and_nothing_open_but_its_streams(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", 'echo "$RUNFACTS_RUN_ID $RUNFACTS_ATTEMPT_ID"; ls /proc/$$/fd; pwd')
    bench.ran(spec)
    assert Path(spec.files.stdout).read_text().split() == [
        spec.run_id, spec.attempt_id, "0", "1", "2", os.path.realpath(bench.root),
    ]  # fmt: skip


def test_what_a_host_has_open_stays_with_the_host(bench: Bench) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)  # noqa: FBT003 - the system's own signature
    spec = bench.spec("sh", "-c", "ls /proc/$$/fd; echo; ls /proc/$PPID/fd")
    bench.ran(spec)
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
    commands, keepers = Path(spec.files.stdout).read_text().strip().split("\n\n")
    assert commands.split() == ["0", "1", "2"]
    # The streams, its lock, the room for its receipt, the pipe that the child watches, and at first one more pipe.
    assert len(keepers.split()) in {6, 7}


def test_standard_input_is_empty_unless_it_is_asked_for(bench: Bench) -> None:
    read, write = os.pipe()
    os.write(write, b"from the host")
    os.close(write)
    kept = os.dup(0)
    try:
        os.dup2(read, 0)
        without, having = bench.spec("cat"), bench.spec("cat", stdin=True)
        bench.ran(without)
        bench.ran(having)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(read)
    assert Path(without.files.stdout).read_bytes() == b""
    assert Path(having.files.stdout).read_bytes() == b"from the host"


def test_output_goes_to_files_that_only_the_owner_reads(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", "echo out; echo err >&2")
    bench.ran(spec)
    assert Path(spec.files.stdout).read_text() == "out\n"
    assert Path(spec.files.stderr).read_text() == "err\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in Path(bench.places.directory).iterdir()} == {0o600}
    assert stat.S_IMODE(Path(bench.places.directory).stat().st_mode) == 0o700


def test_signals_ignored_by_the_keeper_end_the_command(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", "grep SigIgn /proc/$$/status")
    bench.ran(spec)
    ignored = int(Path(spec.files.stdout).read_text().split()[1], 16)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE):
        if signal.getsignal(number) is not signal.SIG_IGN or number is signal.SIGPIPE:
            assert not ignored & (1 << (number - 1))


def test_the_handle_names_the_command_before_and_after_its_gate(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", "read line < /proc/$$/stat; echo $line; sleep 60")
    with bench.launcher.prepare(spec) as process:
        before = process.handle
        assert (before.pid, before.group) == (process.pid, process.pid)
        waiting = ProcFs().stat(process.pid)
        assert waiting is not None
        assert waiting.session == process.pid
        assert process.open_gate()
        wait_until(lambda: Path(spec.files.stdout).read_text().endswith("\n"), "the command has begun")
        assert ProcessHandle.of(process.pid, bench.launcher.machine) == before
        kill(process.pid)
        assert process.wait(DEADLINE_S)
    assert bench.receipt(spec.files, spec).signal == signal.SIGKILL


def test_nothing_runs_before_the_gate_opens(bench: Bench) -> None:
    trace = bench.root / "ran"
    with bench.launcher.prepare(bench.spec("touch", str(trace))) as process:
        assert process.open_gate()
        assert process.wait(DEADLINE_S)
    assert trace.exists()
    trace.unlink()
    with bench.launcher.prepare(bench.spec("touch", str(trace))) as process:
        process.abandon()
        assert process.keeper_code == keeper.NEVER_OPENED
        assert process.has_ended()
    assert not trace.exists()


def test_an_abandoned_launch_leaves_nothing(bench: Bench) -> None:
    with bench.launcher.prepare(bench.spec("true")) as process:
        numbers = process.pid, process.keeper_pid
    assert [state_of(number) for number in numbers] == [None, None]
    assert list(Path(bench.places.directory).iterdir()) == []
    assert bench.marked.living() == set()


def test_a_gate_opens_once_and_never_after_it_was_closed(bench: Bench) -> None:
    with bench.launcher.prepare(bench.spec("true")) as process:
        assert process.open_gate()
        with pytest.raises(LaunchFailed, match="opened or closed before"):
            process.open_gate()
        with pytest.raises(LaunchFailed, match="is open"):
            process.abandon()
        assert process.wait(DEADLINE_S)
    with bench.launcher.prepare(bench.spec("true")) as process:
        process.abandon()
        with pytest.raises(LaunchFailed, match="opened or closed before"):
            process.open_gate()


def test_a_process_does_not_wait_at_its_gate_for_ever(bench: Bench) -> None:
    launcher = Launcher(bench.launcher.machine, gate_timeout_ms=1_000)
    trace = bench.root / "ran"
    with launcher.prepare(bench.spec("touch", str(trace))) as process:
        assert process.wait(DEADLINE_S)
        assert process.keeper_code == keeper.NEVER_OPENED
        assert not process.open_gate()
    assert not trace.exists()


def test_a_process_ended_at_its_gate_never_runs_the_command(bench: Bench) -> None:
    trace = bench.root / "ran"
    with bench.launcher.prepare(bench.spec("touch", str(trace))) as process:
        kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE_S)
        assert process.keeper_code == keeper.NEVER_OPENED
        assert not process.open_gate()
    assert not trace.exists()


def test_a_keeper_killed_before_the_gate_takes_the_waiting_process_with_it(bench: Bench) -> None:
    trace = bench.root / "ran"
    with bench.launcher.prepare(bench.spec("touch", str(trace))) as process:
        kill(process.keeper_pid)
        assert process.wait(DEADLINE_S)
        wait_until(process.has_ended, "the waiting process has ended")
        assert not process.open_gate()
    assert not trace.exists()


def test_an_open_gate_lets_nothing_run_once_the_keeper_is_gone(bench: Bench) -> None:
    trace = bench.root / "ran"
    stopping = bench.with_steps("child:before:gate")
    with stopping.launcher.prepare(stopping.spec("touch", str(trace))) as process:
        assert stopped_at(bench.root / "steps", "child:before:gate") == process.pid
        # It is stopped and can notice nothing yet, so the byte is taken.
        assert process.open_gate()
        kill(process.keeper_pid)
        assert process.wait(DEADLINE_S)
        kill(process.pid, signal.SIGCONT)
        wait_until(process.has_ended, "the process has ended")
    assert not trace.exists()


def test_a_keeper_killed_after_the_gate_leaves_the_command_alone(bench: Bench) -> None:
    trace = bench.root / "ran"
    spec = bench.spec("sh", "-c", f"echo begun; read line < {bench.root}/fifo; touch {trace}")
    os.mkfifo(bench.root / "fifo")
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        wait_until(lambda: Path(spec.files.stdout).read_text() == "begun\n", "the command has begun")
        kill(process.keeper_pid)
        assert process.wait(DEADLINE_S)
        assert not process.has_ended()
        assert not keeper_lock_held(spec.files.lock)
        (bench.root / "fifo").write_text("go on\n")
        wait_until(process.has_ended, "the command has ended")
    assert trace.exists()
    assert not Path(spec.files.receipt).exists()


def test_killing_the_whole_group_spares_the_keeper(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", "echo begun; trap '' TERM; sleep 60")
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        wait_until(lambda: Path(spec.files.stdout).read_text() == "begun\n", "the command has begun")
        for member in ProcFs().living_members(process.handle.group):
            kill(member.pid)
        assert process.wait(DEADLINE_S)
    receipt = bench.receipt(spec.files, spec)
    assert receipt.signal == signal.SIGKILL


def test_a_keeper_that_is_asked_to_end_waits_for_its_command(bench: Bench) -> None:
    os.mkfifo(bench.root / "fifo")
    spec = bench.spec("sh", "-c", f"echo begun; read line < {bench.root}/fifo; exit 7")
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        wait_until(lambda: Path(spec.files.stdout).read_text() == "begun\n", "the command has begun")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            kill(process.keeper_pid, number)
        (bench.root / "fifo").write_text("go on\n")
        assert process.wait(DEADLINE_S)
    assert bench.receipt(spec.files, spec).exit_code == 7


@pytest.mark.parametrize(("script", "left"), [("sleep 60 & exit 0", True), ("sleep 0 & wait; exit 0", False)])
def test_the_receipt_says_whether_the_group_lives_on(bench: Bench, script: str, *, left: bool) -> None:
    assert bench.ran(bench.spec("sh", "-c", script)).group_left is left


def test_a_descendant_in_a_group_of_its_own_is_not_of_the_group(bench: Bench) -> None:
    os.mkfifo(bench.root / "fifo")
    script = f"setsid sh -c 'echo gone > {bench.root}/fifo; exec sleep 60' & read line < {bench.root}/fifo; exit 0"
    assert bench.ran(bench.spec("sh", "-c", script)).group_left is False


def test_the_lock_is_held_from_before_the_gate_until_the_receipt_is_there(bench: Bench) -> None:
    stopping = bench.with_steps("keeper:before:publish", "keeper:after:publish")
    spec = stopping.spec("sh", "-c", "sleep 60 & exit 0")
    with stopping.launcher.prepare(spec) as process:
        assert keeper_lock_held(spec.files.lock)
        assert process.open_gate()
        for step, published in (("keeper:before:publish", False), ("keeper:after:publish", True)):
            assert stopped_at(bench.root / "steps", step) == process.keeper_pid
            assert Path(spec.files.receipt).exists() is published
            assert keeper_lock_held(spec.files.lock)
            kill(process.keeper_pid, signal.SIGCONT)
        assert process.wait(DEADLINE_S)
    # A survivor of the group does not hold it.
    assert bench.receipt(spec.files, spec).group_left
    assert not keeper_lock_held(spec.files.lock)


def test_the_receipt_says_when_and_for_whom(bench: Bench) -> None:
    before_ms = time.time_ns() // 1_000_000
    spec = bench.spec("true")
    receipt = bench.ran(spec)
    assert (receipt.run_id, receipt.attempt_id, receipt.sequence, receipt.token) == (
        spec.run_id, spec.attempt_id, 7, "rft_the-token",
    )  # fmt: skip
    assert before_ms <= receipt.started_at_ms <= receipt.ended_at_ms <= time.time_ns() // 1_000_000
    assert "rft_the-token" not in repr(receipt)
    assert "rft_the-token" not in repr(spec)


def test_an_attempt_with_a_receipt_is_never_launched_again(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", f"echo ran >> {bench.root}/ran")
    bench.ran(spec)
    with pytest.raises(LaunchFailed, match="receipt cannot be had: File exists"):
        bench.launcher.prepare(spec)
    assert (bench.root / "ran").read_text() == "ran\n"


def test_an_attempt_that_runs_is_never_launched_a_second_time(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", f"echo ran >> {bench.root}/ran; sleep 60")
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        with pytest.raises(LaunchFailed, match="lock cannot be had"):
            bench.launcher.prepare(spec)
        wait_until((bench.root / "ran").exists, "the command has begun")
        kill(process.pid)
        assert process.wait(DEADLINE_S)
    assert (bench.root / "ran").read_text() == "ran\n"


def test_a_place_that_cannot_be_written_is_a_failed_launch(bench: Bench) -> None:
    spec = bench.spec("true")
    Path(bench.places.directory).rmdir()
    with pytest.raises(LaunchFailed, match="No such file"):
        bench.launcher.prepare(spec)
    assert bench.marked.living() == set()


def test_a_keeper_that_does_not_answer_is_given_up(bench: Bench) -> None:
    stopping = bench.with_steps("keeper:before:fork", answer_timeout_ms=1_000)
    with pytest.raises(LaunchFailed, match="in time"):
        stopping.launcher.prepare(stopping.spec("true"))
    assert bench.marked.living() == set()


def test_an_interpreter_that_is_not_there_is_a_failed_launch(bench: Bench) -> None:
    launcher = Launcher(bench.launcher.machine, interpreter=str(bench.root / "python"))
    with pytest.raises(LaunchFailed, match="cannot be started"):
        launcher.prepare(bench.spec("true"))


def test_what_was_left_alone_is_reaped_at_a_later_launch(bench: Bench) -> None:
    process = bench.launcher.prepare(bench.spec("sh", "-c", "exit 3"))
    keeper_pid = process.keeper_pid
    assert process.open_gate()
    bench.launcher.leave(process)
    wait_until(lambda: state_of(keeper_pid) in {"Z", None}, "the keeper has ended")
    bench.ran(bench.spec("true"))
    assert state_of(keeper_pid) is None


def test_a_command_that_no_process_can_be_made_of_is_refused(bench: Bench) -> None:
    for argv in ((), ("",), ("a\0b",)):
        with pytest.raises(InvalidValue):
            bench.spec(*argv)
    with pytest.raises(InvalidValue, match="absolute"):
        bench.spec("true", directory="here")
    with pytest.raises(InvalidValue, match="environment"):
        bench.spec("true", environment={"A=B": "c"})


def test_a_host_that_ignores_its_childrens_ends_still_gets_the_receipt(bench: Bench) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        spec = bench.spec("sh", "-c", "grep SigIgn /proc/$$/status; sh -c 'exit 5'; exit $?")
        assert bench.ran(spec).exit_code == 5
        ignored = int(Path(spec.files.stdout).read_text().split()[1], 16)
        assert not ignored & (1 << (signal.SIGCHLD - 1))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_host_without_standard_input_has_none_to_give(bench: Bench) -> None:
    kept = os.dup(0)
    os.close(0)
    try:
        spec = bench.spec("sh", "-c", "cat; readlink /proc/$$/fd/0; exit 4", stdin=True)
        with bench.launcher.prepare(spec) as process:
            assert keeper_lock_held(spec.files.lock)
            assert process.open_gate()
            assert process.wait(DEADLINE_S)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert bench.receipt(spec.files, spec).exit_code == 4
    assert Path(spec.files.stdout).read_text() == "/dev/null\n"


def test_the_hosts_end_of_a_gate_is_in_no_other_process(bench: Bench) -> None:
    with bench.launcher.prepare(bench.spec("true")) as first:
        assert first._line is not None
        ours = Path(f"/proc/self/fd/{first._line.fileno()}").readlink()
        with bench.launcher.prepare(bench.spec("true")) as second, subprocess.Popen(["sleep", "60"]) as other:
            for pid in (first.pid, first.keeper_pid, second.pid, second.keeper_pid, other.pid):
                descriptors = Path(f"/proc/{pid}/fd").iterdir()
                assert ours not in {descriptor.readlink() for descriptor in descriptors}
            kill(other.pid)


def test_room_for_the_receipt_that_was_taken_away_is_made_again(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", f"rm {bench.places.directory}/*.new; exit 6")
    assert bench.ran(spec).exit_code == 6


def test_a_keeper_whose_directory_is_gone_does_not_stay(bench: Bench) -> None:
    with bench.launcher.prepare(bench.spec("rm", "-r", bench.places.directory)) as process:
        assert process.open_gate()
        assert process.wait(DEADLINE_S)
        assert process.keeper_code == keeper.NOT_PUBLISHED


def test_a_failed_launch_leaves_nothing(bench: Bench) -> None:
    spec = bench.spec("true")
    Path(spec.files.stderr).mkdir()
    with pytest.raises(LaunchFailed, match="logs cannot be had: Is a directory"):
        bench.launcher.prepare(spec)
    assert bench.marked.living() == set()
    assert not keeper_lock_held(spec.files.lock)
    assert not Path(spec.files.receipt).exists()
