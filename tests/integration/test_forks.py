"""A process that forks with an open ledger: parent and child write side by side, and nothing is mixed up or lost."""

from __future__ import annotations

import subprocess
import sys

from runfacts import Ledger

DEADLINE_S = 60

SUPERVISING = """
import os, sys, time
from runfacts import Ledger

ledger = Ledger.open(sys.argv[1], create=True)
supervision = ledger.supervise(local=False, interval_ms=250)
owner = supervision.owner
supervision.start()
child = os.fork()
if child == 0:
    begun_s = time.monotonic()
    assert not supervision.running and supervision.owner != owner
    assert supervision.stop(60_000)
    supervision.start()
    assert supervision.running and supervision.stop(60_000)
    ledger.close()
    assert time.monotonic() - begun_s < 30
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert supervision.running and supervision.owner == owner
assert supervision.stop(60_000)
ledger.close()
"""

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


def test_a_child_of_a_worker_has_not_started_yet_and_is_another_worker(database_url: str) -> None:
    """R7.3, R9.3: the thread that runs its parent's cycles is not in the child."""
    forking(database_url, SUPERVISING)
