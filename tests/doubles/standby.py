"""A synchronous standby of a throw-away PostgreSQL server, which can be promoted: two real servers."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

import psycopg

from runfacts.testing.postgres import PostgresServer, database_name
from runfacts.testing.postgres_binaries import programs_for
from waiting import until

_NAME = "beside"


class Standby(PostgresServer):
    """A copy of a server that follows it. No commit of the first one is answered before this one has it."""

    _leader: PostgresServer

    @classmethod
    def of(cls, leader: PostgresServer) -> Self:
        """Copy a running server, follow it, and let it wait for this one."""
        folder = Path(tempfile.mkdtemp(prefix="runfacts-pg-", dir=folder_of(leader).parent))
        standby = cls(leader.version, folder, programs_for(leader.version, folder))
        atexit.register(standby.close)
        try:
            standby._copy(leader)
            standby.restart()
            with psycopg.connect(leader.url("postgres"), autocommit=True) as connection:
                connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'")
                connection.execute("SELECT pg_reload_conf()")
                until(
                    lambda: connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() == [("sync",)]
                )
        except BaseException:
            standby.close()
            raise
        return standby

    def promote(self) -> None:
        """Make it a server that writes."""
        self._programs.run("pg_ctl", ["promote", "-w", "-D", str(self._data)], log=self._control_log)

    def _copy(self, leader: PostgresServer) -> None:
        source = f"host={folder_of(leader)} user=postgres application_name={_NAME}"
        options = [
            "-D",
            str(self._data),
            "-d",
            source,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "-C",
            "-S",
            _NAME,
            "--no-sync",
        ]
        self._programs.run("pg_basebackup", options, log=self._control_log)
        with (self._data / "postgresql.conf").open("a") as settings:
            settings.write(f"unix_socket_directories = '{self._folder}'\n")


def folder_of(server: PostgresServer) -> Path:
    """Give the folder of a server, in which its socket is."""
    return Path(parse_qs(urlsplit(server.url("postgres")).query)["host"][0])


def url_of_both(url: str, leader: PostgresServer, standby: PostgresServer) -> str:
    """Give the URL of a database on whichever of the two can write."""
    hosts = f"{folder_of(leader)},{folder_of(standby)}"
    return f"postgresql://postgres@/{database_name(url)}?host={hosts}&target_session_attrs=read-write"
