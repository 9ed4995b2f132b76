"""A pool of connections to a SQLite file that is quiet while its process forks; see ``forks`` for the reason."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any, Self

from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from runfacts.domain.errors import DatabaseUnreachable
from runfacts.infrastructure.database.forks import quiet_at_forks, spoilt


class Uses:
    """Which threads have a connection out, and whether a new one may be taken."""

    def __init__(self) -> None:
        """Nobody has one."""
        self._changed = threading.Condition()
        self._by_thread: Counter[int] = Counter()
        self._forking: int | None = None

    def begin(self) -> int:
        """Have one more, after a fork that is under way; return who has it."""
        user = threading.get_ident()
        with self._changed:
            # A hook of the fork itself, in its thread, must not wait for the fork to end.
            while self._forking not in {None, user}:
                self._changed.wait()
            self._by_thread[user] += 1
        return user

    def end(self, user: int) -> None:
        """Have one less: in any thread, since a connection that was forgotten is given back by whoever finds it."""
        with self._changed:
            self._by_thread[user] -= 1
            if not self._by_thread[user]:
                del self._by_thread[user]
                self._changed.notify_all()

    def stop(self) -> None:
        """Let no other thread have one."""
        with self._changed:
            self._forking = threading.get_ident()

    def none_by(self, deadline_s: float) -> bool:
        """Wait until nobody has one; at most until then, and not at all for this thread itself."""
        user = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._by_thread.keys() <= {user}, max(0.0, deadline_s - time.monotonic()))
            return not self._by_thread

    def go_on(self) -> None:
        """Let everybody have one again."""
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def begin_anew(self) -> None:
        """Go on in a child. Who has one there, and who holds which lock, are its parent's threads."""
        self._changed = threading.Condition()
        self._by_thread = Counter()
        self._forking = None


class QuietPool(QueuePool):
    """
    A pool that is closed before a fork, once all of its connections have come back.

    In a child that was forked while one was out it refuses to give any (``DatabaseUnreachable``), as every such pool
    of that process does: what SQLite keeps for the process is the parent's.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 - SQLAlchemy's own
        """See QueuePool."""
        super().__init__(*arguments, **keywords)
        self._uses = Uses()
        self._users: dict[ConnectionPoolEntry, int] = {}
        quiet_at_forks(self)

    def recreate(self) -> Self:
        """See QueuePool. Connections of the old one may still be out."""
        pool: Self = super().recreate()  # type: ignore[assignment] # it is made by this class
        pool._uses = self._uses
        return pool

    def before_fork(self) -> None:
        """See Quieted."""
        self._uses.stop()

    def quiet_by(self, deadline_s: float) -> bool:
        """See Quieted."""
        quiet = self._uses.none_by(deadline_s)
        if quiet:
            self.dispose()
        return quiet

    def after_fork(self, *, child: bool) -> None:
        """See Quieted."""
        if child:
            self._uses.begin_anew()
        else:
            self._uses.go_on()

    def _do_get(self) -> ConnectionPoolEntry:
        if spoilt():
            raise DatabaseUnreachable(
                "this process was forked while its parent used a ledger's file, and must not use one; fork outside of"
                " transactions, and while no other thread reads or writes for long"
            )
        user = self._uses.begin()
        try:
            entry = super()._do_get()
        except BaseException:
            self._uses.end(user)
            raise
        self._users[entry] = user
        return entry

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        user = self._users.pop(record)
        try:
            super()._do_return_conn(record)
        finally:
            self._uses.end(user)
