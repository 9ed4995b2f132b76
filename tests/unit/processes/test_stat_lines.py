"""R8.2: who a process is, cut after the last closing parenthesis, whatever it calls itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runfacts.infrastructure.processes.procfs import ProcessStat, parse_stat

TAIL = (
    b" S 41 42 43 0 -1 4194560 119 0 0 0 0 0 0 0 20 0 1 0 98765 4534272 872 18446744073709551615 1 1 0 0 0 0 0 0 0 0"
    b" 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
STAT = ProcessStat(pid=44, state="S", parent=41, group=42, session=43, start_ticks=98765)


@pytest.mark.parametrize("name", [b"sh", b"", b"a) R 1 (b", b"two words", b"line\nbreak", b")", b"((", b"\xff\xfe"])
def test_a_name_changes_nothing_of_the_rest(name: bytes) -> None:
    assert parse_stat(b"44 (" + name + b")" + TAIL) == STAT


@given(st.binary(max_size=15))
def test_no_name_changes_anything_of_the_rest(name: bytes) -> None:
    assert parse_stat(b"44 (" + name + b")" + TAIL) == STAT


@pytest.mark.parametrize("text", [b"", b"44", b"44 (sh", b"44 (sh) S 41", b"(sh)" + TAIL, b"x (sh)" + TAIL])
def test_what_is_no_stat_line_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a line|invalid literal"):
        parse_stat(text)


@pytest.mark.parametrize(("state", "alive"), [("R", True), ("T", True), ("D", True), ("Z", False), ("X", False)])
def test_a_zombie_has_ended_and_a_stopped_process_has_not(state: str, *, alive: bool) -> None:
    assert parse_stat(b"44 (sh)" + TAIL.replace(b" S ", f" {state} ".encode(), 1)).is_alive is alive
