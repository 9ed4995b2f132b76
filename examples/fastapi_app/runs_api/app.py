"""
The application: its ledger and worker live as long as it does.

Every endpoint is a plain function, so that FastAPI calls it in a thread: the ledger may be shared by threads, and must
not be called in the event loop's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from runfacts import (
    Actor,
    ActorType,
    Created,
    InvalidValue,
    Ledger,
    NotAuthenticated,
    NotFound,
    RetryPolicy,
    RunNotFound,
    RunStatus,
    RunView,
    authenticated,
)
from runs_api.accounts import TABLES, Accounts
from runs_api.failures import RoleMissing, answer_failures
from runs_api.shapes import Lines, Progress, Run, Stop, Submission, Trail

PROJECT: Final = "runs-api"


class NotAsked(NotFound):
    """Nobody has asked this Run to stop."""


@dataclass(frozen=True)
class Service:
    """What an application is made of."""

    url: str
    jobs: Mapping[str, Sequence[str]]
    """The commands that may be run, by name."""
    concurrency: int = 2
    """How many Runs it hosts at a time; none with 0, and ``runfacts work`` beside it hosts them."""
    drain_ms: int = 5_000
    """How long it waits for them when it ends. What runs on has a keeper, and is found again."""


def create_app(service: Service) -> FastAPI:
    """Make the application. Nothing is opened before it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ledger = await run_in_threadpool(Ledger.open, service.url, drain_ms=service.drain_ms)
        try:
            await run_in_threadpool(TABLES.create_all, ledger.database.engine)
            app.state.ledger, app.state.jobs = ledger, service.jobs
            app.state.accounts = Accounts(ledger.database.engine)
            if service.concurrency:
                ledger.work(concurrency=service.concurrency).start()
            yield
        finally:
            # Stops its worker, too.
            await run_in_threadpool(ledger.close)

    app = FastAPI(title="Runs", lifespan=lifespan)
    app.include_router(_ROUTER)
    answer_failures(app)
    return app


def _ledger(request: Request) -> Ledger:
    ledger: Ledger = request.app.state.ledger
    return ledger


def _jobs(request: Request) -> Mapping[str, Sequence[str]]:
    jobs: Mapping[str, Sequence[str]] = request.app.state.jobs
    return jobs


def _caller(
    request: Request, bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
) -> Actor:
    """Give who calls: every endpoint needs that."""
    if bearer is None:
        raise NotAuthenticated("a bearer token is missing")
    accounts: Accounts = request.app.state.accounts
    return authenticated(accounts, bearer.credentials)


def _operator(caller: Annotated[Actor, Depends(_caller)]) -> Actor:
    """Give who calls, if that is an operator."""
    if caller.type is not ActorType.OPERATOR:
        raise RoleMissing("this needs an operator")
    return caller


def _run(run_id: str, ledger: Annotated[Ledger, Depends(_ledger)]) -> RunView:
    """Give a Run of this service. Others that the ledger may have are none of its callers' business."""
    run = ledger.run(run_id)
    if run.project != PROJECT:
        raise RunNotFound(run_id)
    return run


TheLedger = Annotated[Ledger, Depends(_ledger)]
TheRun = Annotated[RunView, Depends(_run)]
Operator = Annotated[Actor, Depends(_operator)]
Limit = Annotated[int, Query(ge=1, le=500)]
_ROUTER: Final = APIRouter(dependencies=[Depends(_caller)])


@_ROUTER.post("/runs", status_code=HTTPStatus.CREATED)
def submit(
    *,
    submission: Submission,
    response: Response,
    ledger: TheLedger,
    operator: Operator,
    jobs: Annotated[Mapping[str, Sequence[str]], Depends(_jobs)],
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Run:
    """Submit a job: 201, or 200 where the Run of this idempotency key is there already."""
    if submission.job not in jobs:
        raise InvalidValue("job", f"is none of {', '.join(jobs)}")
    answer = ledger.submit(
        jobs[submission.job],
        actor=operator,
        cwd="/",
        task=submission.job,
        project=PROJECT,
        policy=RetryPolicy(max_attempts=1 + submission.retries, retry_on_failure=submission.retries > 0),
        timeout_ms=submission.timeout_ms,
        idempotency_key=idempotency_key,
    )
    if not isinstance(answer, Created):
        response.status_code = HTTPStatus.OK
    return Run.of(answer.run)


@_ROUTER.get("/runs")
def list_runs(ledger: TheLedger, status: RunStatus | None = None, limit: Limit = 50, after: str | None = None) -> Lines:
    """List Runs, newest first."""
    wanted = () if status is None else (status,)
    return Lines.of(ledger.runs(status=wanted, project=PROJECT, limit=limit, after=after))


@_ROUTER.get("/runs/{run_id}")
def show_run(run: TheRun) -> Run:
    """Show a Run."""
    return Run.of(run)


@_ROUTER.post("/runs/{run_id}/stop", status_code=HTTPStatus.ACCEPTED)
def stop_run(stop: Stop, run: TheRun, response: Response, ledger: TheLedger, operator: Operator) -> Run:
    """Ask a Run to stop: 202 while that is under way, 200 where the Run has ended. It may be asked again."""
    ledger.request_cancellation(run.run_id, actor=operator, reason=stop.reason, expected_version=stop.version)
    now = ledger.run(run.run_id)
    if now.finished_at_ms is not None:
        response.status_code = HTTPStatus.OK
    return Run.of(now)


@_ROUTER.get("/runs/{run_id}/stop")
def show_stop(run: TheRun, ledger: TheLedger) -> Progress:
    """Show how far a request to stop has come."""
    if run.cancellation is None:
        raise NotAsked("nobody has asked this run to stop")
    (asked,) = ledger.facts(run_id=run.run_id, types="run.cancel_requested").items
    dispatch = run.cancellation.dispatch
    return Progress(
        requested_at_ms=run.cancellation.requested_at_ms,
        requested_by=asked.actor.id,
        reason=run.cancellation.reason,
        delivery=None if dispatch is None else dispatch.status,
        deliveries=0 if dispatch is None else dispatch.dispatch_count,
        stopped=run.finished_at_ms is not None,
    )


@_ROUTER.get("/audit")
def show_audit(
    *,
    ledger: TheLedger,
    run_id: str | None = None,
    actor: str | None = None,
    type: Annotated[str | None, Query()] = None,  # noqa: A002 - the name that callers use
    limit: Limit = 100,
    after: str | None = None,
) -> Trail:
    """Show the audit trail, filtered."""
    types = () if type is None else (type,)
    return Trail.of(ledger.facts(run_id=run_id, actor_id=actor, types=types, project=PROJECT, limit=limit, after=after))
