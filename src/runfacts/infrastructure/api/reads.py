"""Reads: Runs as they stand, their facts, and the executions of those who look after processes (R1.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from runfacts.domain.errors import AttemptNotFound, InvalidCursor, InvalidValue, MalformedId, RunNotFound
from runfacts.domain.facts import Fact
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.texts import KEY_MAX, NAME_MAX
from runfacts.domain.views import Difference, ExecutionView, Head, Page, RunSummary, RunView, VerifyReport
from runfacts.infrastructure.api.core import LedgerCore, history_of, plain
from runfacts.infrastructure.stores.audit import AuditFilter, read_audit
from runfacts.infrastructure.stores.board import read_board
from runfacts.infrastructure.stores.facts import read_facts
from runfacts.infrastructure.stores.heads import compare_head, read_head
from runfacts.infrastructure.stores.open_executions import read_execution_view, read_open_executions
from runfacts.infrastructure.stores.verify import run_ids, verify
from runfacts.infrastructure.stores.view import view_of


class Reads(LedgerCore):
    """Read what is recorded."""

    def run(self, run_id: str) -> RunView:
        """Give one Run as it stands (``RunNotFound``)."""
        with self._database.reading() as reading:
            return view_of(reading, history_of(reading, canonical_id("run id", run_id)))

    def runs(
        self,
        *,
        status: RunStatus | Sequence[RunStatus] = (),
        project: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunSummary]:
        """Give a page of the board, newest first; ``after`` is the cursor that the page before gave as ``next``."""
        statuses = [status] if isinstance(status, str) else list(status)
        try:
            wanted = [RunStatus(item) for item in statuses]
        except ValueError:
            raise InvalidValue("status", f"is none of {', '.join(RunStatus)}") from None
        if project is not None:
            plain("project", project, NAME_MAX)
        with self._database.reading() as reading:
            return read_board(reading, statuses=wanted, project=project, limit=self._page(limit), after=after)

    def history(self, run_id: str) -> tuple[Fact, ...]:
        """Give all facts of a Run, by sequence (``RunNotFound``)."""
        run_id = canonical_id("run id", run_id)
        with self._database.reading() as reading:
            found = read_facts(reading, run_id)
        if not found:
            raise RunNotFound(run_id)
        return found

    def facts(
        self,
        *,
        run_id: str | None = None,
        attempt_id: str | None = None,
        actor_id: str | None = None,
        types: str | Sequence[str] = (),
        project: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[Fact]:
        """Give a page of the audit trail, oldest first: what all given filters let through (R14.1).

        ``since_ms`` is included, ``until_ms`` is not; ``after`` is the cursor that the page before gave as ``next``.
        A type that this release does not know can be asked for like any other.
        """
        if project is not None:
            plain("project", project, NAME_MAX)
        if actor_id is not None:
            plain("actor_id", actor_id, KEY_MAX)
        wanted_types = (types,) if isinstance(types, str) else tuple(types)
        for name in wanted_types:
            plain("type", name, NAME_MAX)
        for name, moment in (("since_ms", since_ms), ("until_ms", until_ms)):
            if moment is not None and not -TIME_MAX < moment < TIME_MAX:
                raise InvalidValue(name, "is no moment in milliseconds")
        wanted = AuditFilter(
            run_id=None if run_id is None else canonical_id("run id", run_id),
            attempt_id=None if attempt_id is None else canonical_id("attempt id", attempt_id),
            actor_id=actor_id,
            types=wanted_types,
            project=project,
            since_ms=since_ms,
            until_ms=until_ms,
        )
        with self._database.reading() as reading:
            page = read_audit(reading, wanted, limit=self._page(limit), after=after)
            # Not replayed: the trail can be read also where somebody has damaged it.
            if wanted.run_id is not None and not page.items and read_head(reading, wanted.run_id) is None:
                raise RunNotFound(wanted.run_id)
            return page

    def execution(self, attempt_id: str) -> ExecutionView:
        """Give an Attempt's execution: where it runs and how its process can be found (``AttemptNotFound``)."""
        attempt_id = canonical_id("attempt id", attempt_id)
        with self._database.reading() as reading:
            found = read_execution_view(reading, attempt_id)
        if found is None:
            raise AttemptNotFound(attempt_id)
        return found

    def open_executions(
        self, executor_type: str, scope: str, *, limit: int | None = None, after: str | None = None
    ) -> Page[ExecutionView]:
        """Give the executions of active Attempts of one executor type and scope that keep a receipt, by Attempt id."""
        plain("executor_type", executor_type, NAME_MAX)
        if scope:
            plain("scope", scope, KEY_MAX)
        if after is not None:
            try:
                after = canonical_id("attempt id", after)
            except MalformedId:
                raise InvalidCursor from None
        with self._database.reading() as reading:
            return read_open_executions(reading, executor_type, scope, limit=self._page(limit), after=after)

    def verify(self, run_id: str | None = None, *, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Recompute all that can be recomputed, of one Run or of all, and report every difference (R1.3, R14.2).

        ``progress`` is told, Run by Run, how many Runs and facts have been looked at.
        """
        return verify(self._database, None if run_id is None else canonical_id("run id", run_id), progress)

    def heads(self, run_id: str | None = None) -> Iterator[Head]:
        """Give the head of one Run (``RunNotFound``), or of all by id: to be kept where nobody can rewrite it."""
        wanted = run_ids(self._database) if run_id is None else iter((canonical_id("run id", run_id),))
        for one in wanted:
            with self._database.reading() as reading:
                head = read_head(reading, one)
            if head is not None:
                yield head
            elif run_id is not None:
                raise RunNotFound(one)

    def compare_heads(self, heads: Iterable[Head]) -> Iterator[Difference]:
        """Name every fact that is not what it was when ``heads`` were taken, or is not there any more (R14.2).

        A head covers all earlier facts of its Run by their chain, which ``verify`` computes anew: only both together
        show that nothing was rewritten.
        """
        for head in heads:
            with self._database.reading() as reading:
                difference = compare_head(reading, head)
            if difference is not None:
                yield difference

    def _page(self, limit: int | None) -> int:
        if limit is None:
            return self._settings.fact_page
        _, lowest, highest = type(self._settings).bounds()["fact_page"]
        if not lowest <= limit <= highest:
            raise InvalidValue("limit", f"is not between {lowest} and {highest}")
        return limit
