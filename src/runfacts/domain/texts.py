"""
Texts that come from outside: made safe, redacted, cut (R2.12).

In this order, the same on every database: unpaired surrogates and NUL become U+FFFD; what looks like a secret is
replaced by ``[redacted]``; the text is cut to its bound and ends with ``…``. Where the stored text differs from the
given one, the length that was given and the SHA-256 of the whole redacted text are kept beside it, so that two long
texts can still be told apart.

``SECRET_PATTERNS`` is the documented list. It catches common shapes, not every secret: do not put secrets into texts.
Every pattern starts at a word's edge or at a fixed text and never looks back further than a bounded way, so that ten
megabytes of hostile input take time in proportion. A quote that is never closed hides nothing: the rest of its line
counts as the secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

ERROR_CODE_MAX: Final = 128
"""Longest error code, in characters (R2.12)."""
ERROR_SUMMARY_MAX: Final = 1_024
"""Longest error summary, in characters (R2.12)."""
REASON_MAX: Final = 256
"""Longest reason, in characters (R2.12)."""
NAME_MAX: Final = 200
"""Longest project, task, executor type or idempotency key, in characters."""
KEY_MAX: Final = 256
"""Longest dedupe key, correlation id or causation id, in characters."""

REDACTED: Final = "[redacted]"
"""What stands in place of a secret."""
CUT: Final = "…"
"""What a cut text ends with."""

_UNSAFE: Final = re.compile("[\x00\ud800-\udfff]")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_EDGE = r"(?<![A-Za-z0-9_-])"

SECRET_PATTERNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "private key block",
        re.compile(
            r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----.*?"
            r"(?:-----END [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----|\Z)",
            re.DOTALL,
        ),
    ),
    ("token of this library", re.compile(_EDGE + r"rft_[A-Za-z0-9_-]{16,}")),
    ("GitHub token", re.compile(_EDGE + r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}")),
    ("GitLab token", re.compile(_EDGE + r"gl[a-z]{2,6}-[A-Za-z0-9_-]{16,}")),
    ("Slack token", re.compile(_EDGE + r"xox[a-z]-[A-Za-z0-9-]{10,}")),
    ("AWS access key id", re.compile(_EDGE + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])")),
    ("API key with the prefix sk-, pk- or rk-", re.compile(_EDGE + r"[spr]k[-_][A-Za-z0-9_-]{16,}")),
    ("Google API key", re.compile(_EDGE + r"AIza[A-Za-z0-9_-]{30,}")),
    ("registry token", re.compile(_EDGE + r"(?:npm_|pypi-)[A-Za-z0-9_-]{16,}")),
    ("JSON web token", re.compile(_EDGE + r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*")),
    ("credentials in a URL", re.compile(r"(?<=://)[^\s/:@?#]{0,256}:[^\s/]{1,256}(?=@)")),
    (
        "authorization header",
        re.compile(
            r"\b(?i:authorization)['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:(?i:basic|bearer|token|digest)\s{1,4})?[^\s'\",;]+"
        ),
    ),
    ("bearer token", re.compile(_EDGE + r"(?i:bearer)\s{1,4}[A-Za-z0-9._~+/=-]{8,}")),
    (
        "value of a secret's option",
        re.compile(
            r"--(?i:passw(?:or)?d|passphrase|secret|token|api-?key|access-?key|private-?key)\s{1,4}"
            r"(?:\"(?:[^\"\\\n]|\\.)+\"?|'[^'\n]+'?|[^\s'\"-][^\s'\"]*)"
        ),
    ),
    ("cookie header", re.compile(r"\b(?i:set-cookie|cookie)\s{0,4}:\s{0,4}[^\n]+")),
    (
        "value of a secret's name",
        re.compile(
            r"(?i:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?)"
            r"['\"]?\s{0,4}(?:=|:)\s{0,4}(?:\"(?:[^\"\\\n]|\\.)+\"?|'(?:[^'\\\n]|\\.)+'?|[^\s'\",;&]+)"
        ),
    ),
)
"""What is taken for a secret: name and pattern, applied in this order (R2.12)."""


@dataclass(frozen=True, slots=True)
class BoundedText:
    """A text as it is stored, and, where it differs from the given one, what was given (R2.12)."""

    text: str
    """The text to store."""
    length: int | None = None
    """Characters of the given text; None where it is stored as it was given."""
    sha256: str | None = None
    """SHA-256 (hex) of the whole redacted text; None where the text is stored as it was given."""

    def fields(self, name: str) -> dict[str, str | int]:
        """Give the payload's fields for this text.

        They are ``name`` and, where the text was changed, ``name_length`` and ``name_sha256``.
        """
        if self.length is None or self.sha256 is None:
            return {name: self.text}
        return {name: self.text, f"{name}_length": self.length, f"{name}_sha256": self.sha256}


def bounded(text: str, limit: int) -> BoundedText:
    """Make ``text`` safe, redact it and cut it to ``limit`` characters (R2.12)."""
    redacted = redact(_UNSAFE.sub("\ufffd", text))
    if redacted == text and len(text) <= limit:
        return BoundedText(text)
    stored = redacted if len(redacted) <= limit else redacted[: limit - len(CUT)] + CUT
    return BoundedText(stored, len(text), sha256(redacted.encode()).hexdigest())


def redact(text: str) -> str:
    """Replace everything that ``SECRET_PATTERNS`` take for a secret."""
    for _, pattern in SECRET_PATTERNS:
        text = pattern.sub(REDACTED, text)
    return text


def is_plain_name(text: object, limit: int) -> bool:
    """Tell whether ``text`` is 1 to ``limit`` characters without control characters or unpaired surrogates."""
    return isinstance(text, str) and 0 < len(text) <= limit and _CONTROL.search(text) is None
