"""
Ids: UUIDs, version 7 where this library makes them, in their one canonical text form.

Ids that come in are accepted in any of the usual text forms of a UUID and kept in the canonical one: 36 characters,
lower case.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

from runfacts.domain.errors import MalformedId

_CANONICAL: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def canonical_id(what: str, value: str | UUID) -> str:
    """Give the canonical text of an id, or refuse it (``MalformedId``); ``what`` names the kind of id."""
    if isinstance(value, UUID):
        return str(value)
    if _CANONICAL.fullmatch(value):
        return value
    try:
        parsed = str(UUID(value))
    except ValueError:
        raise MalformedId(what, value) from None
    # The usual forms only: UUID() itself also takes braces, URNs, dashes anywhere and the digits of any script.
    if value.lower() not in {parsed, parsed.replace("-", "")}:
        raise MalformedId(what, value)
    return parsed
