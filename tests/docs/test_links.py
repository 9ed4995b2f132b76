"""Links between the project's pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import PAGES, ROOT, anchors, links, prose


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_resolves(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_can_be_reached_from_the_readme(page: Path) -> None:
    assert f"docs/{page.name}" in {link.partition("#")[0] for link in links(ROOT / "README.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    bases = (ROOT, ROOT / "src" / "runfacts", ROOT / "src" / "runfacts" / "infrastructure")
    named = {
        path.rstrip("/")
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", prose(page))
        if path.split("/")[0] in KNOWN_FOLDERS
    }
    assert {path for path in named if not any((base / path).exists() for base in bases)} == set()


KNOWN_FOLDERS = {
    *("src", "tests", "scripts", "docs", "examples"),
    *("domain", "projections", "infrastructure", "testing", "api", "stores", "database", "processes", "cli"),
}
