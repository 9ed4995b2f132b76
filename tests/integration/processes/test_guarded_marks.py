"""What tests start ends with them, also where the test process is killed and cleans up nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from process_watch import DEADLINE_S, Marked, wait_until

DOUBLES = Path(__file__).parents[2] / "doubles"
SIGNAL_LOG = DOUBLES / "signal_log.py"
TESTS = """
import subprocess, sys, time
from process_watch import marked_environment
with marked_environment() as marked:
    script = "trap '' TERM HUP; (trap '' TERM HUP; echo up; sleep 600) & wait"
    child = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(marked.mark, flush=True)
    sys.stdin.read()
"""
"""Stands for a test that has processes under way."""


def test_what_bears_a_mark_ends_with_a_test_process_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TESTS],
        env=os.environ | {"PYTHONPATH": str(DOUBLES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        marked = Marked(tests.stdout.readline().strip())
        # The shell, what it forked, and the sleep.
        assert len(marked.living()) >= 2
        tests.send_signal(signal.SIGKILL)
        tests.wait()
    wait_until(lambda: not marked.living(), "the guard has ended them")


def test_a_signal_log_without_a_mark_ends_with_a_test_process_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as tests:
        log = subprocess.Popen([sys.executable, "-I", "-S", SIGNAL_LOG, path, "stays", str(tests.pid)], env={})
        try:
            wait_until(lambda: path.exists() and path.read_text() == "ready\n", "it notes its signals")
            assert log.poll() is None
            tests.send_signal(signal.SIGKILL)
            assert log.wait(DEADLINE_S) == 0
        finally:
            log.kill()
            log.wait()
    assert path.read_text() == "ready\n"
