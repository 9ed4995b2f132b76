"""Limits: each with its unit, default and hard bounds, from three sources in their order (R15)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from runfacts.domain import limits
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.limits import Settings

# Name: default, lowest, highest.
SETTINGS = {
    "execution_lease_ms": (30_000, 2_000, 600_000),
    "gate_timeout_ms": (30_000, 100, 600_000),
    "cancel_lease_ms": (30_000, 1_000, 300_000),
    "dispatch_limit": (50, 1, 1_000),
    "backoff_base_ms": (1_000, 1, 86_400_000),
    "backoff_max_ms": (60_000, 1, 86_400_000),
    "backoff_exponent_cap": (30, 0, 30),
    "cancel_page": (32, 1, 64),
    "cancel_pages": (4, 1, 64),
    "interval_ms": (1_000, 250, 86_400_000),
    "drain_ms": (5_000, 0, 60_000),
    "grace_ms": (5_000, 0, 60_000),
    "rearm_delay_ms": (1_000, 1_000, 86_400_000),
    "evidence_timeout_ms": (5_000, 1, 30_000),
    "unserved_after_ms": (600_000, 1_000, 86_400_000),
    "recovery_page": (16, 1, 128),
    "recovery_lease_ms": (30_000, 1_000, 300_000),
    "failure_limit": (20, 1, 1_000),
    "recovery_delay_ms": (5_000, 1, 300_000),
    "recovery_delay_max_ms": (300_000, 1, 300_000),
    "startup_passes": (8, 1, 64),
    "stuck_created_ms": (3_600_000, 1_000, 2_592_000_000),
    "stop_report_grace_ms": (30_000, 0, 3_600_000),
    "poll_ms": (50, 1, 10_000),
    "fact_page": (100, 1, 500),
    "catch_up_ms": (1_000, 0, 30_000),
    "feed_poll_ms": (1_000, 10, 60_000),
    "busy_timeout_ms": (5_000, 0, 60_000),
    "decide_retries": (8, 1, 64),
    "wal_limit_bytes": (67_108_864, 1_048_576, 1_099_511_627_776),
}


def test_these_are_the_settings_with_their_defaults_and_bounds() -> None:
    assert Settings.bounds() == SETTINGS
    assert Settings().model_dump() == {name: default for name, (default, _, _) in SETTINGS.items()}


def test_the_fixed_limits_are_those_of_the_rule() -> None:
    assert (limits.HANDLE_MAX, limits.RECEIPT_MAX, limits.PAYLOAD_MAX) == (512, 4_096, 16_384)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_a_setting_is_taken_at_both_bounds_and_refused_beyond_them(name: str) -> None:
    _, lowest, highest = SETTINGS[name]
    assert getattr(Settings.from_sources({name: lowest}), name) == lowest
    assert getattr(Settings.from_sources({name: highest}), name) == highest
    for beyond in (lowest - 1, highest + 1):
        with pytest.raises(InvalidSetting, match=f"^setting {name} is out of its bounds: ") as refused:
            Settings.from_sources({name: beyond})
        assert refused.value.name == name
        with pytest.raises(ValidationError):
            Settings(**{name: beyond})


@pytest.mark.parametrize("name", list(SETTINGS))
def test_each_setting_comes_from_its_variable_too(name: str) -> None:
    _, lowest, highest = SETTINGS[name]
    variable = f"RUNFACTS_{name.upper()}"
    assert getattr(Settings.from_sources(None, {variable: str(lowest)}), name) == lowest
    with pytest.raises(InvalidSetting, match=name):
        Settings.from_sources(None, {variable: str(highest + 1)})


def test_what_is_given_counts_before_the_environment_and_that_before_the_default() -> None:
    environment = {"RUNFACTS_FACT_PAGE": "7", "RUNFACTS_POLL_MS": "8"}
    found = Settings.from_sources({"fact_page": 9}, environment)
    assert (found.fact_page, found.poll_ms, found.decide_retries) == (9, 8, 8)


def test_without_sources_everything_has_its_default() -> None:
    assert Settings.from_sources() == Settings()


def test_a_wrong_variable_is_refused_also_where_something_else_is_given() -> None:
    with pytest.raises(InvalidSetting, match="fact_page"):
        Settings.from_sources({"fact_page": 9}, {"RUNFACTS_FACT_PAGE": "many"})


def test_variables_of_other_names_are_left_alone() -> None:
    assert Settings.from_sources(None, {"RUNFACTS_FACTPAGE": "x", "FACT_PAGE": "y", "RUNFACTS_URL": "z"}) == Settings()


@pytest.mark.parametrize("text", ["7", " 7 ", "007", "7\n"])
def test_a_text_is_read_as_a_whole_number(text: str) -> None:
    assert Settings.from_sources({"fact_page": text}).fact_page == 7


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "-",
        "--7",
        "7.0",
        "7ms",
        "0x7",
        "1e3",
        "1_0",
        "\N{ARABIC-INDIC DIGIT SEVEN}",
        "\N{SUPERSCRIPT TWO}",
        "9" * 19,
        7.0,
        True,
        None,
    ],
)
def test_anything_else_is_no_whole_number(value: Any) -> None:  # noqa: ANN401 - whatever a caller passes
    with pytest.raises(InvalidSetting, match=r"^setting fact_page is not a whole number$"):
        Settings.from_sources({"fact_page": value})


def test_a_negative_number_is_read_and_then_out_of_bounds() -> None:
    with pytest.raises(InvalidSetting, match="out of its bounds"):
        Settings.from_sources({"fact_page": "-7"})


def test_an_unknown_setting_is_refused_and_named_in_part() -> None:
    with pytest.raises(InvalidSetting, match=r"^setting x{64} is unknown$"):
        Settings.from_sources({"x" * 1_000: 1})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().fact_page = 7  # type: ignore[misc]  # that is what is refused
