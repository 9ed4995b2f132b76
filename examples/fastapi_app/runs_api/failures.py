"""
Which error is which status of HTTP.

The library's errors come in families, and a handler of a family answers for all of it; the more special one wins.
Their messages are one line for people and hold no secret, so they go out as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError

from runfacts import (
    Conflict,
    Contended,
    DatabaseError,
    IllegalTransition,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    RunfactsError,
    VerbRefused,
)


class RoleMissing(Exception):
    """The caller is known, and may not do this."""


STATUSES: Final[Mapping[type[Exception], HTTPStatus]] = {
    InvalidInput: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    IllegalTransition: HTTPStatus.CONFLICT,
    VerbRefused: HTTPStatus.CONFLICT,
    NotAllowed: HTTPStatus.FORBIDDEN,
    RoleMissing: HTTPStatus.FORBIDDEN,
    NotAuthenticated: HTTPStatus.UNAUTHORIZED,
    Contended: HTTPStatus.SERVICE_UNAVAILABLE,
    DatabaseError: HTTPStatus.SERVICE_UNAVAILABLE,
    OperationalError: HTTPStatus.SERVICE_UNAVAILABLE,  # of the service's own tables
    RunfactsError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_HEADERS: Final[Mapping[HTTPStatus, Mapping[str, str]]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    # Nothing was written, or the same request finds out: submitting has its key, and asking to stop may be repeated.
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"},
}


def answer_failures(app: FastAPI) -> None:
    """Let an application answer these errors."""
    for kind in STATUSES:
        app.add_exception_handler(kind, _answer)


def _answer(_: Request, error: Exception) -> JSONResponse:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    # Others' messages may hold statements.
    message = str(error) if isinstance(error, (RunfactsError, RoleMissing)) else "the database cannot be used now"
    return JSONResponse(
        {"error": type(error).__name__, "message": message}, status_code=status, headers=_HEADERS.get(status)
    )
