"""Rules and their citations: what is cited exists, and what is built is cited by a test (contract)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pages import ROOT

CONTRACT = ROOT / "docs" / "contract.md"
RULE = re.compile(r"\bR(\d{1,2})\.(\d{1,2})\b")
RANGE = re.compile(r"\bR(\d{1,2})\.(\d{1,2})(?:-|–|\.\.| to )R?(?:\1\.)?(\d{1,2})\b")  # noqa: RUF001
SECTION = re.compile(r"\bR(\d{1,2})\b(?!\.\d)")
DEFINED = re.compile(r"^- \*\*R(\d{1,2})\.(\d{1,2})\*\*", re.MULTILINE)

BUILT_SECTIONS = range(1, 15)

Rule = tuple[int, int]


def defined() -> set[Rule]:
    """Give the rules of the contract."""
    return {(int(section), int(number)) for section, number in DEFINED.findall(CONTRACT.read_text())}


def cited(paths: Iterable[Path]) -> dict[Rule, list[str]]:
    """Give the rules that files cite, with the files; ``R3.1-R3.4`` cites each of the four."""
    found: dict[Rule, list[str]] = {}
    for path in paths:
        text = path.read_text()
        rules = {(int(section), int(number)) for section, number in RULE.findall(text)}
        for section, first, last in RANGE.findall(text):
            rules |= {(int(section), number) for number in range(int(first), int(last) + 1)}
        for rule in rules:
            found.setdefault(rule, []).append(str(path.relative_to(ROOT)))
    return found


def sources(*folders: str) -> list[Path]:
    """Give all files of these folders that people write."""
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".sql", ".md"} and path != Path(__file__)
    ]


def test_the_contract_defines_every_section_and_numbers_its_rules_without_doubles() -> None:
    found = DEFINED.findall(CONTRACT.read_text())
    assert len(found) == len(set(found))
    assert {int(section) for section, _ in found} == set(range(1, 15))


def test_every_cited_rule_exists() -> None:
    unknown = {
        f"R{section}.{number}": files
        for (section, number), files in cited([*sources("src", "tests", "scripts", "docs"), *ROOT.glob("*.md")]).items()
        if (section, number) not in defined()
    }
    assert unknown == {}


def test_every_cited_section_exists() -> None:
    unknown = {
        f"R{section}": str(path.relative_to(ROOT))
        for path in sources("src", "tests", "docs")
        for section in SECTION.findall(path.read_text())
        if not 1 <= int(section) <= 15
    }
    assert unknown == {}


def test_every_rule_that_is_built_is_cited_by_a_test() -> None:
    built = {rule for rule in defined() if rule[0] in BUILT_SECTIONS}
    tests = cited(path for path in sources("tests") if path.name.startswith("test_"))
    missing = [f"R{section}.{number}" for section, number in sorted(built - set(tests))]
    assert missing == [], f"no test cites {', '.join(missing)}"
