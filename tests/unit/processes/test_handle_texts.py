"""R8.2: the stored form of a process's handle, closed and versioned, at most 512 bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runfacts.infrastructure.processes.handle import InvalidHandle, ProcessHandle

HANDLE = ProcessHandle(
    machine_id="3d1219c7c4c5404aaa1f6d2a48adfda4",
    boot_id="4543e2ae-101c-49bf-b0d7-605d0636aca0",
    pid_namespace=4026531836,
    time_namespace=4026531834,
    pid=7573,
    start_ticks=78755,
    pidfd_inode=7574,
    group=7573,
)
TEXT = (
    '{"v":1,"platform":"linux","machine":"3d1219c7c4c5404aaa1f6d2a48adfda4","boot":"4543e2ae-101c-49bf-b0d7-605d0636aca0",'
    '"pid_ns":4026531836,"time_ns":4026531834,"pid":7573,"start":78755,"pidfd":7574,"group":7573}'
)


def test_the_stored_form_stays_as_it_is() -> None:
    assert HANDLE.encode() == TEXT
    assert ProcessHandle.decode(TEXT) == HANDLE


def test_an_older_kernels_process_has_no_inode() -> None:
    older = replace(HANDLE, pidfd_inode=None)
    assert "pidfd" not in older.encode()
    assert ProcessHandle.decode(older.encode()) == older


def test_the_longest_handle_fits() -> None:
    longest = replace(
        HANDLE,
        machine_id="m" * 128,
        pid_namespace=2**64,
        time_namespace=2**64,
        pid=2**22,
        start_ticks=2**64,
        pidfd_inode=2**64,
        group=2**22,
    )
    assert len(longest.encode()) <= 512
    assert ProcessHandle.decode(longest.encode()) == longest


def test_the_scope_is_machine_and_namespaces_without_the_boot() -> None:
    assert HANDLE.scope == "3d1219c7c4c5404aaa1f6d2a48adfda4/4026531836/4026531834"
    assert replace(HANDLE, boot_id="another").scope == HANDLE.scope


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        "{",
        "[" * 500,
        "x" * 513,
        "\ud800",
        TEXT.replace('"pid":7573,', ""),
        TEXT[:-1] + ',"argv":[]}',
    ]
    + [
        json.dumps(json.loads(TEXT) | change)
        for change in (
            {"pid": 0},
            {"pid": "7573"},
            {"pid": True},
            {"pid": 1.5},
            {"start": -1},
            {"machine": ""},
            {"group": None},
        )
    ],
)
def test_a_malformed_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidHandle) as refused:
        ProcessHandle.decode(text)
    assert refused.value.supported


@pytest.mark.parametrize("change", [{"v": 2, "more": 1}, {"v": True}, {"v": "1"}, {"v": None}, {"platform": "windows"}])
def test_another_format_or_platform_is_unsupported_rather_than_malformed(change: dict[str, object]) -> None:
    with pytest.raises(InvalidHandle) as refused:
        ProcessHandle.decode(json.dumps(json.loads(TEXT) | change))
    assert not refused.value.supported


def test_a_refusal_does_not_repeat_what_was_stored() -> None:
    with pytest.raises(InvalidHandle) as refused:
        ProcessHandle.decode(json.dumps(json.loads(TEXT) | {"pid": "a secret"}))
    assert "secret" not in str(refused.value)
