"""New ids and tokens: from the system's clock and its secure random source, never from anything else (R7.1)."""

from __future__ import annotations

import secrets
from typing import Final

import uuid_utils

from runfacts.domain.leases import TOKEN_PREFIX

_TOKEN_BYTES: Final = 24


def new_id() -> str:
    """Draw a UUID, version 7, in its canonical text form."""
    return str(uuid_utils.uuid7())


def new_token() -> str:
    """Draw a token, new for every claim."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def new_worker_id() -> str:
    """Draw the id of a worker's incarnation.

    Random for every start of a process, and nothing can be read from it (R7.3).
    """
    return str(uuid_utils.uuid4())
