"""
A process that writes down every signal it gets, one name a line, after the line ``ready``.

Usage: ``python signal_log.py LOG ends|stays PID``; it ends on SIGTERM, or only on SIGKILL. It ends with the process of
that number as well: nobody else finds one whose environment was taken away, when the tests are killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def main() -> None:
    """Write down signals for as long as the other process lives."""
    other = select.poll()
    other.register(os.pidfd_open(int(sys.argv[3])), select.POLLIN)
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(number: int, _frame: object) -> None:
        os.write(log, f"{signal.Signals(number).name}\n".encode())
        if number == signal.SIGTERM and sys.argv[2] == "ends":
            os._exit(0)

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, note)
    os.write(log, b"ready\n")
    other.poll()


if __name__ == "__main__":
    main()
