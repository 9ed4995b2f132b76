"""A process that forks with an open ledger: parent and child write side by side, and nothing is mixed up or lost."""

from __future__ import annotations

import subprocess
import sys

from runfacts import Ledger

DEADLINE_S = 60

OPEN = """
import os, sys
from runfacts import Actor, Ledger

ana = Actor.user("ana")
ledger = Ledger.open(sys.argv[1])
checkpoint = ledger.create(actor=ana, task="before") and ledger.feed().checkpoint
child = os.fork()
"""

BOTH_WRITE = """
for _ in range(20):
    run = ledger.create(actor=ana, task="child" if child == 0 else "parent").run
    assert ledger.run(run.run_id) == run
    checkpoint = ledger.feed(checkpoint).checkpoint
ledger.close()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

CHILD_CLOSES = """
if child == 0:
    ledger.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
with ledger.database.engine.connect() as connection:
    assert connection.connection.dbapi_connection is kept
"""


def forking(url: str, program: str) -> None:
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=DEADLINE_S)


def test_parent_and_child_write_on_connections_of_their_own(database_url: str) -> None:
    forking(database_url, OPEN + BOTH_WRITE)
    with Ledger.open(database_url) as ledger:
        tasks = [run.task for run in ledger.runs().items]
        assert sorted(tasks) == ["before"] + ["child"] * 20 + ["parent"] * 20
        assert ledger.verify().clean


def test_a_child_that_closes_the_ledger_leaves_its_parents_connections_open(database_url: str) -> None:
    keep = "with ledger.database.engine.connect() as connection:\n    kept = connection.connection.dbapi_connection\n"
    forking(database_url, OPEN.replace("child = os.fork()", keep + "child = os.fork()") + CHILD_CLOSES)
