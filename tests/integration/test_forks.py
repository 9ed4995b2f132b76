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
from runfacts import Actor, DatabaseUnreachable, Ledger

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
    # SQLite's was closed before the fork.
    assert (connection.connection.dbapi_connection is kept) == (ledger.database.dialect == "postgresql")
assert ledger.create(actor=ana, task="after").run.task == "after"
"""

PARENT_CLOSES = """
written, closed = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    ledger.create(actor=ana, task="with the parent's open")
    os.write(written[1], b"!")
    os.read(closed[0], 1)
    ledger.create(actor=ana, task="with the parent's closed")
    os._exit(0)
os.read(written[0], 1)
ledger.close()
os.write(closed[1], b"!")
assert os.waitpid(child, 0)[1] == 0
"""

# Arguments: the URL, how many milliseconds a fork waits at most, and how many the other thread uses the ledger.
USED_BY_A_THREAD = """
import os, sys, threading
from runfacts import Actor, DatabaseUnreachable, Ledger
from runfacts.infrastructure.database import forks

ana = Actor.user("ana")
ledger = Ledger.open(sys.argv[1], create=True)
forks._PATIENCE_S = int(sys.argv[2]) / 1_000
begun, over = threading.Event(), threading.Event()

def read():
    with ledger.database.snapshot():
        begun.set()
        over.wait(int(sys.argv[3]) / 1_000)

reading = threading.Thread(target=read)
reading.start()
begun.wait()
child = os.fork()
if child == 0:
    try:
        ledger.create(actor=ana, task="child")
    except DatabaseUnreachable as error:
        assert "forked" in str(error)
        try:
            Ledger.open(sys.argv[1])
        except DatabaseUnreachable:
            os._exit(3)
    os._exit(0)
over.set()
reading.join()
ledger.create(actor=ana, task="parent")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

WITHIN_A_TRANSACTION = """
with ledger.database.transaction():
    child = os.fork()
    if child == 0:
        try:
            Ledger.open(sys.argv[1])
        except DatabaseUnreachable:
            os._exit(3)
        os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (3 if ledger.database.dialect == "sqlite" else 0)
ledger.create(actor=ana, task="parent")
"""

STORM = """
import threading
over = threading.Event()

def write():
    while not over.is_set():
        ledger.create(actor=ana, task="thread")

threads = [threading.Thread(target=write) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        for _ in range(5):
            ledger.create(actor=ana, task="child")
        ledger.close()
        os._exit(0)
    children.append(child)
over.set()
for thread in threads:
    thread.join()
ledger.close()
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


def forking(url: str, program: str, *arguments: str) -> int:
    """Run a program that forks; its exit code, which is none of Python's own."""
    code = subprocess.run([sys.executable, "-c", program, url, *arguments], check=False, timeout=DEADLINE_S).returncode
    assert code in {0, 3}
    return code


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


def test_what_a_child_commits_outlives_its_parents_closing(database_url: str) -> None:
    """R4.4: a child that inherited SQLite's knowledge of locks would write into a journal that is gone."""
    forking(database_url, OPEN.replace("child = os.fork()", "") + PARENT_CLOSES)
    with Ledger.open(database_url) as ledger:
        tasks = [run.task for run in ledger.runs().items]
        assert sorted(tasks) == ["before", "with the parent's closed", "with the parent's open"]
        assert ledger.verify().clean


def test_a_fork_waits_for_threads_that_use_the_ledger(database_url: str) -> None:
    assert forking(database_url, USED_BY_A_THREAD, "30000", "100") == 0
    with Ledger.open(database_url) as ledger:
        assert sorted(run.task for run in ledger.runs().items) == ["child", "parent"]


def test_a_child_that_was_forked_in_the_middle_of_a_use_is_refused_by_sqlite(database_url: str) -> None:
    sqlite = database_url.startswith("sqlite")
    assert forking(database_url, USED_BY_A_THREAD, "50", "30000") == (3 if sqlite else 0)
    with Ledger.open(database_url) as ledger:
        assert sorted(run.task for run in ledger.runs().items) == (["parent"] if sqlite else ["child", "parent"])
        assert ledger.verify().clean


def test_a_child_that_was_forked_within_a_transaction_is_refused_by_sqlite(database_url: str) -> None:
    forking(database_url, OPEN.replace("child = os.fork()", "") + WITHIN_A_TRANSACTION)
    with Ledger.open(database_url) as ledger:
        assert sorted(run.task for run in ledger.runs().items) == ["before", "parent"]


def test_children_of_a_parent_that_writes_with_many_threads(database_url: str) -> None:
    forking(database_url, OPEN.replace("child = os.fork()", "") + STORM)
    with Ledger.open(database_url) as ledger:
        with ledger.database.engine.connect() as connection:
            count = "SELECT count(*) FROM runs WHERE task = 'child'"
            assert connection.exec_driver_sql(count).scalar() == 50
        assert ledger.verify().clean
