"""
The command that crash tests run: says once whether its own process was committed before it began, and exits with 7.

Usage: ``python counting_command.py URL FILE``. A line is appended to FILE each time that it runs.
"""

from __future__ import annotations

import os
import sys

EXECUTION = (
    "SELECT pid, handle, status FROM executions JOIN attempts ON attempts.attempt_id = executions.attempt_id"
    " WHERE executions.attempt_id = "
)


def main() -> int:
    """Look, say, exit."""
    url, file = sys.argv[1:]
    key = (os.environ["RUNFACTS_ATTEMPT_ID"],)
    if url.startswith("sqlite"):
        import sqlite3

        row = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30).execute(EXECUTION + "?", key).fetchone()
    else:
        import psycopg

        with psycopg.connect(url) as connection:
            row = connection.execute(f"{EXECUTION}%s", key).fetchone()
    committed = row is not None and row[0] == os.getpid() and row[1] is not None and row[2] == "running"
    with open(file, "a", encoding="ascii") as runs:  # noqa: PTH123 - quick to start
        runs.write("recorded\n" if committed else f"unrecorded: {row}\n")
    return 7


if __name__ == "__main__":
    sys.exit(main())
