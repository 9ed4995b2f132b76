"""
Canonical bytes and the hash chain of a Run's facts (R3.1).

Canonical bytes are UTF-8 JSON: keys sorted by code point, no white space, no floats, absent fields left out. A fact's
payload is stored as exactly these bytes and goes into the fact's own canonical bytes as they are, so that one changed
byte of a stored payload changes the hash. The hash covers the previous fact's hash of the same Run and everything of
this fact but its position, which the database gives only later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Final

GENESIS: Final = "0" * 64
"""What stands for the previous hash of a Run's first fact."""

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)


def canonical_json(value: Mapping[str, object]) -> str:
    """Give the canonical text of a JSON object.

    Fields that are None are left out; a float is refused (``TypeError``).
    """
    return _ENCODER.encode(_plain(value))


def chained_hash(previous: str, fields: Mapping[str, str | int | None], payload: str) -> str:
    """Give the hash (hex) of a fact.

    It covers the ``previous`` fact's hash, the fact's envelope ``fields`` and its canonical ``payload``.
    """
    parts = [
        f'"{name}":{encode_basestring(value) if isinstance(value, str) else value}'
        for name, value in fields.items()
        if value is not None
    ]
    parts.append(f'"payload":{payload}')
    # Sorted as text: no name is the beginning of another one followed by a character below the quotation mark.
    parts.sort()
    return sha256(f"{previous}{{{','.join(parts)}}}".encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    """Leave out what is absent and refuse what has no single form."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int):
        return value
    msg = f"canonical JSON has no place for {type(value).__name__}"
    raise TypeError(msg)
