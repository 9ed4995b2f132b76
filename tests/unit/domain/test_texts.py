"""Texts from outside are made safe, redacted and cut, in this order (R2.12)."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256

import pytest

from runfacts.domain.leases import TOKEN_PREFIX
from runfacts.domain.outcomes import Outcome
from runfacts.domain.texts import (
    ERROR_CODE_MAX,
    ERROR_SUMMARY_MAX,
    REASON_MAX,
    SECRET_PATTERNS,
    BoundedText,
    bounded,
    is_plain_name,
    redact,
)
from runfacts.infrastructure.tokens import new_token

# For each pattern: a secret of that shape, and something that looks like it and is none. Put together here so that no
# scanner takes this file for a leak.
EXAMPLES: dict[str, tuple[str, str]] = {
    "private key block": (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nAAAA\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----\nMIIEow\n-----END CERTIFICATE-----",
    ),
    "token of this library": (TOKEN_PREFIX + "a" * 16, TOKEN_PREFIX + "a" * 15),
    "GitHub token": ("ghp_" + "A1" * 18, "ghx_" + "A1" * 18),
    "GitLab token": ("glpat-" + "x" * 20, "glue-" + "x" * 15),
    "Slack token": ("xoxb-" + "1" * 12, "xoxo-" + "1" * 9),
    "AWS access key id": ("AKIA" + "ABCDEFGH01234567", "AKIA" + "ABCDEFGH012345678"),
    "API key with the prefix sk-, pk- or rk-": ("sk-" + "a" * 16, "sk-" + "a" * 15),
    "Google API key": ("AIza" + "b" * 35, "AIza" + "b" * 29),
    "registry token": ("npm_" + "c" * 36, "npm_" + "c" * 15),
    "JSON web token": ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "eyJhbGciOiJI.eyJz"),
    "credentials in a URL": ("postgresql://ana:pw@db/app", "postgresql://db:5432/app"),
    "authorization header": ("Authorization: Basic YW5hOnB3", "authorization failed for ana"),
    "bearer token": ("sent bearer abcdefgh12", "the bearer arrived"),
    "value of a secret's option": ("--password hunter2", "--token-file x"),
    "cookie header": ("Set-Cookie: session=abc; Path=/", "a cookie for ana"),
    "value of a secret's name": ("PASSWORD=hunter2", "the password was wrong"),
}


def test_every_pattern_has_an_example() -> None:
    assert [name for name, _ in SECRET_PATTERNS] == list(EXAMPLES)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_each_pattern_takes_its_secret_and_leaves_what_only_looks_like_it(name: str) -> None:
    secret, harmless = EXAMPLES[name]
    pattern = dict(SECRET_PATTERNS)[name]
    assert pattern.search(secret) is not None
    assert pattern.search(harmless) is None
    assert redact(harmless) == harmless


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("key -----BEGIN PRIVATE KEY-----\nAA\nBB\n-----END PRIVATE KEY----- end", "key [redacted] end"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\ncut off here", "[redacted]"),
        ("use rft_0123456789abcdef now", "use [redacted] now"),
        ("https://ana:s3cret@example.org/x?y=1", "https://[redacted]@example.org/x?y=1"),
        ("https://:s3cret@example.org", "https://[redacted]@example.org"),
        ("redis://:p@ss@host", "redis://[redacted]@host"),
        ("Authorization: Bearer abc.def", "[redacted]"),
        ('{"authorization": "token 123"}', '{"[redacted]"}'),
        ("password=hunter2&user=ana", "[redacted]&user=ana"),
        ("api_key: abc, next", "[redacted], next"),
        ('{"password": "a\\"b c"}', '{"[redacted]}'),
        ("run --api-key 'a b' --verbose", "run [redacted] --verbose"),
        ("run --token --verbose", "run --token --verbose"),
        ("DB_PASSWORD='two words' rest", "DB_[redacted] rest"),
        ('{"client_secret":"a b","x":1}', '{"client_[redacted],"x":1}'),
        ("MY_TOKEN=x", "MY_[redacted]"),
        ("credentials : y", "[redacted]"),
        # A quote that is never closed, and one that is closed very late: all of it is the secret.
        ('password="hunter2', "[redacted]"),
        ("password='hunter2 and more\nnext line", "[redacted]\nnext line"),
        ('password="' + "long " * 200 + '" rest', "[redacted] rest"),
        ("passwd=" + "x" * 5_000 + " rest", "[redacted] rest"),
        ("passphrase=x secret=y access-key=z private_key=w", "[redacted] [redacted] [redacted] [redacted]"),
        ("rft_0123456789abcdef and sk_0123456789abcdef", "[redacted] and [redacted]"),
        ("github_pat_0123456789abcdef", "[redacted]"),
        ("ASIAABCDEFGH01234567", "[redacted]"),
    ],
)
def test_a_secret_is_replaced_and_the_rest_stays(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    ["", "plain", "exit code 7", "a task-token-less run", "http://host:80/a@b", "xrft_0123456789abcdef", "key=1"],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text


def test_what_is_redacted_stays_redacted() -> None:
    everything = " ".join(secret for secret, _ in EXAMPLES.values() if "BEGIN" not in secret)
    assert redact(redact(everything)) == redact(everything)


def test_a_token_of_ours_is_redacted() -> None:
    token = new_token()
    assert redact(f"refused {token}!") == "refused [redacted]!"


def test_an_ordinary_text_is_stored_as_it_is() -> None:
    assert bounded("it broke", 256) == BoundedText("it broke", None, None)
    assert bounded("it broke", 256).fields("reason") == {"reason": "it broke"}


@pytest.mark.parametrize(("length", "cut"), [(9, False), (10, False), (11, True)])
def test_a_text_is_cut_only_beyond_its_bound(length: int, cut: bool) -> None:  # noqa: FBT001 - what is expected
    found = bounded("x" * length, 10)
    assert found.text == ("x" * 9 + "…" if cut else "x" * length)
    assert found.length == (length if cut else None)


def test_a_cut_text_keeps_its_length_and_the_hash_of_all_of_it() -> None:
    assert bounded("x" * 300, 256).fields("reason") == {
        "reason": "x" * 255 + "…",
        "reason_length": 300,
        "reason_sha256": sha256(b"x" * 300).hexdigest(),
    }


def test_a_redacted_text_keeps_the_length_that_was_given_and_the_hash_of_what_was_left() -> None:
    found = bounded("password=hunter2", 256)
    assert found.text == "[redacted]"
    assert found.length == 16
    assert found.sha256 == sha256(b"[redacted]").hexdigest()


def test_nul_and_unpaired_surrogates_become_the_replacement_character() -> None:
    assert bounded("a\x00b\ud800c\udfffd", 256).text == "a\ufffdb\ufffdc\ufffdd"
    assert bounded("a\x00b", 256).length == 3
    assert bounded("\x01 \U0001f600", 256) == BoundedText("\x01 \U0001f600")


def test_a_secret_is_redacted_before_the_cut_could_take_half_of_it() -> None:
    # Cut first, what is left of the secret would be too short for its pattern and stay.
    found = bounded("x" * 8 + " rft_0123456789abcdef", 20)
    assert "rft_" not in found.text


def test_what_was_unsafe_cannot_hide_a_secret() -> None:
    assert "hunter2" not in bounded("password=\x00hunter2", 256).text


def test_each_kind_of_text_has_its_bound() -> None:
    assert (ERROR_CODE_MAX, ERROR_SUMMARY_MAX, REASON_MAX) == (128, 1_024, 256)
    fields = Outcome.failed(error_code="c" * 129, error_summary="s" * 1_025).fields()
    assert fields == {
        "error_code": "c" * 127 + "…",
        "error_code_length": 129,
        "error_code_sha256": sha256(b"c" * 129).hexdigest(),
        "error_summary": "s" * 1_023 + "…",
        "error_summary_length": 1_025,
        "error_summary_sha256": sha256(b"s" * 1_025).hexdigest(),
    }


def test_ten_megabytes_with_everything_in_them_become_one_short_text() -> None:
    text = ("x" * 1_000 + "\x00\ud800 token=abc ") * 9_800
    found = bounded(text, ERROR_SUMMARY_MAX)
    assert len(text) > 9_900_000
    assert len(found.text) == 1_024
    assert found.length == len(text)
    assert "abc" not in found.text
    json.dumps(found.text).encode()


HOSTILE: dict[str, Callable[[int], str]] = {
    "key blocks without an end": lambda n: "-----BEGIN PRIVATE KEY-----" * (n // 27),
    "almost ends of key blocks": lambda n: "-----BEGIN PRIVATE KEY-----" + "-----END PRIVATE " * (n // 17),
    "dashes": lambda n: "-" * n,
    "starts of web tokens": lambda n: "eyJ" * (n // 3),
    "web tokens without an end": lambda n: "eyJaaaaaaaa." * (n // 12),
    "schemes": lambda n: "://" * (n // 3),
    "users without an end": lambda n: "://a:b" * (n // 6),
    "colons": lambda n: "://" + ":" * n,
    "headers": lambda n: "authorization" * (n // 13),
    "header without a value": lambda n: "authorization:   " * (n // 17),
    "names of secrets": lambda n: "password" * (n // 8),
    "names without a value": lambda n: "password =  " * (n // 12),
    "names and quotes": lambda n: 'password="' * (n // 10),
    "names and quotes without an end": lambda n: "token='" * (n // 7),
    "bearers": lambda n: "bearer " * (n // 7),
    "short tokens": lambda n: "rft_a sk-b ghp_c xoxa-d " * (n // 24),
    "letters": lambda n: "a" * n,
    "spaces": lambda n: " " * n,
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_text_takes_time_in_proportion_to_its_length(name: str) -> None:
    # Half a megabyte takes well below a second; a pattern that looks back would take hours, and the time-out says so.
    redact(HOSTILE[name](500_000))


@pytest.mark.parametrize("text", ["a", "a" * 10, "Ana B.", "日本", "a\U0001f600"])
def test_a_plain_name_has_one_character_up_to_its_bound(text: str) -> None:
    assert is_plain_name(text, 10)


@pytest.mark.parametrize(
    "text", ["", "a" * 11, "a\x00", "\x1f", "\x7f", "\x85", "\u2028", "\u2029", "\ud800", 7, None, b"a"]
)
def test_anything_else_is_no_plain_name(text: object) -> None:
    assert not is_plain_name(text, 10)
