"""
Throw-away PostgreSQL servers for tests.

A server lives in one new folder, in memory where there is room, and is reached by a socket in that folder only. It is
made for speed: nothing is flushed, so it survives its own crash (``stop_immediately``, ``restart``), not the machine's.
``synchronous_commit`` stays on, because the product looks at it (R4.4) and without flushes it costs nothing. For a
bench it can be as durable as a real server.

Nothing is left behind, however the test process ends: beside each server a small shell waits for a line from, or the
end of, a pipe whose other end only the owner holds. The kernel closes it when the owner exits, crashes or is killed;
the shell then stops the server and removes the folder. ``close`` does nothing else than write that line and wait. A
child that a killed owner had forked without exec holds the pipe too: the server then lives as long as the last of them.

The server is signalled by the number in its own pid file, and only after the process of that number was seen to run on
this folder.
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from runfacts.testing.postgres_binaries import PostgresPrograms, PostgresUnavailable, PostgresVersion, programs_for

__all__ = ["PostgresServer", "PostgresUnavailable", "PostgresVersion"]

_SUPERUSER = "postgres"
_STOP_TIMEOUT_S = 30
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it, readable by nobody else
_MEMORY_NEEDED = 512 * 1024 * 1024  # two servers and their databases; a container often has 64 MiB
_LONGEST_PARENT = 60  # a socket's path has 107 bytes

_SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{sockets}'
fsync = off
full_page_writes = off
shared_buffers = 32MB
max_connections = 100
max_prepared_transactions = 16
jit = off
"""
# The last line of a name counts.
_DURABLE = """
fsync = on
full_page_writes = on
shared_buffers = 128MB
max_connections = 200
"""

# Arguments: $1 the server's folder. Immediate shutdown, since the folder goes away anyhow.
_WATCH = """
is_ours() { tr '\\0' '\\n' <"/proc/$pid/cmdline" | grep -qxF -- "$1/data"; }
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid") && if is_ours "$1"; then
    kill -QUIT "$pid"
    while is_ours "$1"; do sleep 0.02; done
fi
rm -rf -- "$1"
"""


class PostgresServer:
    """A server of its own, with a superuser `postgres` that needs no password."""

    def __init__(self, version: PostgresVersion, folder: Path, programs: PostgresPrograms) -> None:
        self.version = version
        self._folder = folder
        self._data = folder / "data"
        self._log = folder / "log"
        self._programs = programs
        self._owner = os.getpid()
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "watch", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
        )

    @classmethod
    def start(cls, version: PostgresVersion, *, parent: Path | None = None, durable: bool = False) -> Self:
        """A new, running server, below ``parent`` if it is given; PostgresUnavailable if there can be none.

        With ``durable`` every commit is flushed to disk, as on a real server.
        """
        folder = Path(tempfile.mkdtemp(prefix="runfacts-pg-", dir=parent or _roomy_parent()))
        try:
            programs = programs_for(version, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        server = cls(version, folder, programs)
        atexit.register(server.close)
        try:
            server._initialize(durable=durable)
            server.restart()
        except BaseException:
            server.close()
            raise
        return server

    def url(self, database: str) -> str:
        """The URL of a database on this server, existing or not."""
        return f"postgresql://{_SUPERUSER}@/{quote(database)}?host={quote(str(self._folder), safe='/')}"

    def create_database(self, template: str | None = None) -> str:
        """The URL of a new database: empty, or a copy of the template database, to which nobody may be connected."""
        name = f"test_{uuid4().hex}"
        self._administer(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier("template1" if template is None else template)
            )
        )
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database of this URL and end the sessions in it; nothing happens if there is none."""
        name = database_name(url)
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def stop(self) -> None:
        """End all sessions, write everything down and stop (fast shutdown). The databases stay; see restart."""
        self._stop(signal.SIGINT)

    def stop_immediately(self) -> None:
        """Stop as in a crash; the next start recovers from the log. The databases stay; see restart."""
        self._stop(signal.SIGQUIT)

    def restart(self) -> None:
        """Stop if running, as in a crash, and start again under the same URLs."""
        self.stop_immediately()
        self._programs.run(
            "pg_ctl", ["start", "-w", "-D", str(self._data), "-l", str(self._log)], log=self._control_log
        )

    def close(self) -> None:
        """Stop and remove everything. Once is enough, twice does no harm; in a forked child it does nothing."""
        if os.getpid() != self._owner or self._watch.returncode is not None:
            return
        atexit.unregister(self.close)
        # communicate() and not close(): a forked child may hold the pipe open.
        self._watch.communicate(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        try:
            pid = int((self._data / "postmaster.pid").read_text().split("\n", 1)[0])
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # A crash leaves the file, and another process may have the number now.
        return pid if os.fsencode(self._data) in arguments else None

    @property
    def _control_log(self) -> Path:
        return self._folder / "control-log"

    def _initialize(self, *, durable: bool) -> None:
        arguments = ["-D", str(self._data), "-U", _SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        arguments += ["--no-sync", "--no-instructions"]
        if not durable:
            # Small log files: a server takes 29 instead of 94 MB.
            arguments.append("--wal-segsize=1")
        self._programs.run("initdb", arguments, log=self._control_log)
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(sockets=self._folder) + (_DURABLE if durable else ""))

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def _stop(self, how: signal.Signals) -> None:
        pid = self.pid()
        if pid is None:
            return
        with suppress(ProcessLookupError):  # ended by itself in between
            descriptor = os.pidfd_open(pid)
            try:
                # Asked again: only now can the number not go to another process any more.
                if self.pid() != pid:
                    return
                signal.pidfd_send_signal(descriptor, how)
                ended = select.poll()
                ended.register(descriptor, select.POLLIN)
                if not ended.poll(_STOP_TIMEOUT_S * 1_000):
                    raise PostgresUnavailable(f"PostgreSQL {self.version} did not stop in {_STOP_TIMEOUT_S} s")
            finally:
                os.close(descriptor)


def database_name(url: str) -> str:
    """The database that a URL names."""
    return urlsplit(url).path.removeprefix("/")


def _roomy_parent() -> str:
    """The folder for servers: in memory if it has room, else the temporary folder if a socket's path fits below it."""
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(_MEMORY)
        if room.f_bavail * room.f_frsize >= _MEMORY_NEEDED:
            return str(_MEMORY)
    chosen = tempfile.gettempdir()
    return chosen if len(os.fsencode(chosen)) <= _LONGEST_PARENT else "/tmp"  # noqa: S108 - mkdtemp makes it ours
