"""Leases and their tokens: valid until, digests by purpose (R5.3, R7.1)."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from runfacts.domain.leases import TokenPurpose, digest, is_valid, matches
from runfacts.infrastructure.tokens import new_id, new_token, new_worker_id

NOW = 1_000_000
BOUND = 600_000


@pytest.mark.parametrize(
    ("expires_at", "valid"),
    [
        (0, False),
        (NOW - 1, False),
        (NOW, False),  # now == expires_at is expired
        (NOW + 1, True),
        (NOW + BOUND - 1, True),
        (NOW + BOUND, True),
        (NOW + BOUND + 1, False),  # from a clock that has stepped back since
        (NOW * 1_000, False),
    ],
)
def test_a_lease_is_valid_before_its_end_and_within_its_bound(expires_at: int, valid: bool) -> None:  # noqa: FBT001
    assert is_valid(NOW, expires_at, BOUND) is valid


def test_the_database_keeps_a_digest_that_names_the_purpose() -> None:
    assert digest(TokenPurpose.LEASE, "rft_x") == sha256(b"runfacts:lease:rft_x").hexdigest()
    assert digest(TokenPurpose.CALLBACK, "rft_x") == sha256(b"runfacts:callback:rft_x").hexdigest()


def test_a_token_matches_its_own_digest_only() -> None:
    kept = digest(TokenPurpose.LEASE, "rft_x")
    assert matches(TokenPurpose.LEASE, "rft_x", kept)
    assert not matches(TokenPurpose.LEASE, "rft_y", kept)
    assert not matches(TokenPurpose.LEASE, "", kept)
    assert not matches(TokenPurpose.LEASE, kept, kept)


def test_a_token_of_one_purpose_does_not_pass_for_another() -> None:
    assert not matches(TokenPurpose.CALLBACK, "rft_x", digest(TokenPurpose.LEASE, "rft_x"))


def test_a_token_is_known_for_what_it_is_and_new_every_time() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    # 24 random bytes: nobody guesses one.
    assert all(re.fullmatch(r"rft_[A-Za-z0-9_-]{32}", token) for token in tokens)


def test_ids_are_version_7_and_those_of_workers_give_nothing_away() -> None:
    assert new_id()[14] == "7"
    # Version 4: all random, no host, no time (R3.5).
    assert new_worker_id()[14] == "4"
    assert new_worker_id() != new_worker_id()
