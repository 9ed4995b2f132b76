"""
A session: one connection to PostgreSQL that is kept, for what is only true within it.

What a reader has learnt about transactions in flight is worth nothing once the server may have been restarted behind
its back (R3.9). A pool hands out now this connection and now that one; a session is one, and says when it is another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from runfacts.domain.errors import DatabaseUnreachable
from runfacts.infrastructure.database.errors import raise_translated
from runfacts.infrastructure.database.forks import part_at_forks
from runfacts.infrastructure.database.transactions import Reading

if TYPE_CHECKING:
    from runfacts.infrastructure.database.connections import Database

Answer = TypeVar("Answer")

_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE


def own_connection(database: Database) -> Any:  # noqa: ANN401 - psycopg is optional
    """Connect outside of the pool, in autocommit, with all the settings of a pooled connection."""
    fairy = database.raw_connection()
    driver: Any = fairy.driver_connection
    fairy.detach()
    try:
        driver.autocommit = True
    except database.driver_error as error:
        driver.close()
        raise_translated(error)
    return driver


class Session:
    """One kept connection. Threads take turns; nothing is connected before it is first asked."""

    def __init__(self, database: Database, begun: Callable[[Reading], None]) -> None:
        """Call ``begun`` on every new connection before anything else is asked; what it raises refuses the session."""
        self._database = database
        self._begun = begun
        self._lock = Lock()
        self._driver: Any = None
        part_at_forks(self)

    def forked(self) -> list[object]:
        """Go on in a child without a connection; return what must be left to the parent."""
        inherited, self._driver = self._driver, None
        self._lock = Lock()
        return [inherited]

    def ask(self, question: Callable[[Reading], Answer]) -> Answer:
        """
        Answer a question that only reads; every statement sees its own moment.

        A connection that has broken since it was last used is replaced, and the question asked again.
        """
        with self._lock:
            if self._driver is not None:
                try:
                    return self._ask(question)
                except DatabaseUnreachable:
                    self._drop()
            self._driver = own_connection(self._database)
            try:
                self._ask(self._begun)
            except BaseException:
                self._drop()
                raise
            return self._ask(question)

    def close(self) -> None:
        """Close the connection; asking again makes another one."""
        with self._lock:
            self._drop()

    def _ask(self, question: Callable[[Reading], Answer]) -> Answer:
        try:
            return question(Reading(self._driver.cursor(), self._database))
        except BaseException:
            if self._driver.closed or self._driver.info.transaction_status != _IDLE:
                self._drop()
            raise

    def _drop(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(self._database.driver_error):
                driver.close()
