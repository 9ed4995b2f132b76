"""
Leases and their tokens (R5.3, R7.1).

A lease is a right for a time. It is proven by a token that only its holder knows: the database has the token's
SHA-256 with a purpose in front, so that a copied row opens nothing and a token of one purpose never passes for
another. Comparing takes the same time whatever differs.

Time is judged where the lease is kept; the functions here only say what "valid" means.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final

TOKEN_PREFIX: Final = "rft_"  # noqa: S105 - the visible start of every token, by which texts are redacted
"""How every token starts, so that one in a text is known for what it is."""


class TokenPurpose(StrEnum):
    """What a token is good for; it goes into the digest."""

    LEASE = "lease"
    """Start and renew an Attempt (R10.3)."""
    CALLBACK = "callback"
    """Report what an Attempt did (R2.7)."""
    DISPATCH = "dispatch"
    """Deliver a cancellation (R7.1)."""
    RECOVERY = "recovery"
    """Find out what became of a Run that nobody looks after (R11.2)."""


def digest(purpose: TokenPurpose, token: str) -> str:
    """Give what the database keeps of a token: SHA-256 (hex) of purpose and token (R7.1)."""
    # A caller's token may be any text; one that is no UTF-8 is as wrong as any other, not an error of ours.
    return sha256(f"runfacts:{purpose.value}:{token}".encode("utf-8", "surrogatepass")).hexdigest()


def matches(purpose: TokenPurpose, token: str, kept: str) -> bool:
    """Tell whether ``token`` is the one whose digest is ``kept``, in constant time (R7.1)."""
    return compare_digest(digest(purpose, token), kept)


def is_valid(now_ms: int, expires_at_ms: int, bound_ms: int) -> bool:
    """Tell whether a lease is valid: not expired, and no further ahead than its bound (R5.3).

    ``now == expires_at`` is expired. An expiry beyond ``bound_ms`` from now comes from a clock that has stepped back
    since, and frees the lease.
    """
    return now_ms < expires_at_ms <= now_ms + bound_ms
