"""What all verbs of operators ask for before they look at anything: a reason, and the version that was seen (R13.2)."""

from __future__ import annotations

import pytest

from told import Told, refused

NOWHERE = "019316d5-0000-7000-8000-00000000dead"
VERBS = {
    "rearm": "blocked",
    "abandon": "blocked",
    "confirm-stopped": "unproven",
    "release": "manual",
    "attest-not-running": "manual",
}
"""Each with the queue that says the version."""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_needs_a_reason_and_the_version(told: Told, verb: str) -> None:
    for because in ((), ("--because", ""), ("--because", "  ")):
        assert refused(told(verb, NOWHERE, *because, "--version", "1", "--json")) == (2, "reason_required")
    said = told(verb, NOWHERE, "--because", "x", "--json")
    assert refused(said) == (2, "version_required")
    assert f"--version N, from `runfacts {VERBS[verb]}`" in said.err
    for version in ("-1", "x", "1.5", str(1 << 60)):
        assert refused(told(verb, NOWHERE, "--because", "x", f"--version={version}", "--json")) == (2, "usage")
    assert refused(told(verb, "nonsense", "--because", "x", "--version", "1", "--json")) == (2, "usage")
    assert refused(told(verb, "--because", "x", "--version", "1", "--json")) == (2, "usage")
    assert refused(told(verb, NOWHERE, "--because", "x", "--version", "1", "--else", "--json")) == (2, "usage")
    assert refused(told(verb, NOWHERE, "--because", "x", "--version", "1", "--json")) == (3, "not_found")
