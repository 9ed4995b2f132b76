"""What pages say about names, settings, errors and facts is what the code has (R15)."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import runfacts
from pages import ROOT, prose, rows, section
from runfacts import Ledger, RunfactsError, Settings, Supervision
from runfacts.domain import answers
from runfacts.domain.errors import Conflict, DatabaseError, InvalidInput, NotAllowed, NotFound
from runfacts.domain.measures import MEASURES
from runfacts.domain.texts import SECRET_PATTERNS

API = ROOT / "docs" / "api.md"
CONTRACT = ROOT / "docs" / "contract.md"
OPERATIONS = ROOT / "docs" / "operations.md"
UNITS = {
    "s": 1_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "ms": 1,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
FAMILIES = {RunfactsError, InvalidInput, NotFound, Conflict, NotAllowed, DatabaseError}
ANSWERS = {answers.__name__, Supervision.__module__}
PORTS = ("runfacts.domain.cancellation.", "runfacts.domain.recovery.")
METHODS = [
    (name, method)
    for name, method in inspect.getmembers(Ledger, callable)
    if not name.startswith("_") and inspect.isroutine(method)
]


def test_the_generated_pages_are_what_the_code_gives() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", runfacts.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert (getattr(runfacts, name).__doc__ or "").strip()


def test_every_answer_and_error_is_in_the_guide_to_the_api() -> None:
    exported = [getattr(runfacts, name) for name in runfacts.__all__]
    wanted = {
        thing.__name__
        for thing in exported
        if isinstance(thing, type)
        and (thing.__module__ in ANSWERS or thing.__module__.startswith(PORTS) or issubclass(thing, RunfactsError))
    }
    assert wanted - set(re.findall(r"`(\w+)`", prose(API))) == set()


def test_the_errors_table_names_every_error_and_no_other() -> None:
    named = {name for cells in rows(section(API, "Errors")) for name in re.findall(r"`([A-Z]\w+)`", cells[0])}
    errors = {
        name
        for name in runfacts.__all__
        if isinstance(getattr(runfacts, name), type) and issubclass(getattr(runfacts, name), Exception)
    }
    assert named == errors - {family.__name__ for family in FAMILIES}


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[name for name, _ in METHODS])
def test_every_call_and_its_arguments_are_in_the_guide_to_the_api(name: str, method: object) -> None:
    text = API.read_text()
    assert re.search(rf"\b{name}\(|`{name}`", text)
    assert callable(method)
    parameters = set(inspect.signature(method).parameters) - {"self", "cls"}
    missing = {parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)}
    assert missing - {"overrides"} == set()


def test_the_table_of_limits_has_every_setting_with_its_default_and_bounds() -> None:
    table = {cells[0].strip("`"): cells[1:] for cells in rows(section(CONTRACT, "R15 Limits"))}
    for name, (default, lowest, highest) in Settings.bounds().items():
        said_default, said_bound = table[name]
        assert _number(said_default) == default, name
        # The contract names the bounds that matter; those that it names are the code's.
        if said_bound.startswith("≤"):
            assert _number(said_bound.removeprefix("≤")) == highest, name
        elif said_bound.startswith("≥"):
            assert _number(said_bound.removeprefix("≥")) == lowest, name
        elif said_bound:
            low, high = said_bound.split("–")  # noqa: RUF001
            assert (_number(low), _number(high)) == (lowest, highest), name


def test_the_operations_guide_has_every_setting_with_its_default_and_bounds() -> None:
    table = {cells[0].strip("`"): cells[1:4] for cells in rows(section(OPERATIONS, "Settings"))}
    assert {name: [_number(cell) for cell in cells] for name, cells in table.items()} == {
        name: list(bounds) for name, bounds in Settings.bounds().items()
    }


def test_the_operations_guide_has_every_metric_with_its_kind_unit_and_labels() -> None:
    table = [cells for cells in rows(section(OPERATIONS, "Metrics")) if cells[0].startswith("`runfacts.")]
    assert sorted((*(cell.strip("`") for cell in cells[:3]), cells[3]) for cells in table) == sorted(
        (measure.name, measure.kind, measure.unit, ", ".join(f"`{label}`" for label in measure.labels))
        for measure in MEASURES
    )


def test_the_contract_says_which_settings_this_release_has() -> None:
    (cells,) = (cells for cells in rows(section(CONTRACT, "What this release has")) if cells[0] == "R15")
    assert set(re.findall(r"`(\w+)`", cells[2])) == set(Settings.model_fields)


def test_the_contract_names_every_kind_of_secret() -> None:
    text = " ".join(section(CONTRACT, "R2 Run and Attempt").split())
    for _, word in zip(SECRET_PATTERNS, _SECRET_WORDS, strict=True):
        assert word in text


_SECRET_WORDS = (
    "private key blocks",
    "tokens of this library",
    "GitHub",
    "GitLab",
    "Slack",
    "AWS",
    "`sk-`, `pk-` or `rk-`",
    "Google",
    "package registries",
    "JSON web tokens",
    "credentials in URLs",
    "authorization headers",
    "bearer tokens",
    "an option such as `--password`",
    "cookie headers",
    "`password=`",
)


def _number(text: str) -> int:
    """Read a number with an optional unit, as tables write it: ``30,000``, ``10 min``, ``64 MiB``."""
    number, _, unit = text.strip().replace(",", "").partition(" ")
    return int(number) * UNITS.get(unit, 1)
