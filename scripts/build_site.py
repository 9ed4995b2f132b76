"""
Builds the documents' site: every page of the project and a reference made from the docstrings, into build/site.

Sphinx reads from a copy under .cache/site, which has the pages where the repository has them, so that the same links
lead to the same places on a forge and on the site. The reference has one page to a subject; a public name whose module
has no subject here ends the build, and so does every warning (scripts/site/conf.py says which there are).
"""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import runfacts

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / ".cache" / "site"
TARGET: Final = ROOT / "build" / "site"

_CONTENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Guide": (
        "docs/guide",
        "docs/guide/first-run",
        "docs/guide/library",
        "docs/guide/cancelling",
        "docs/guide/recovery",
        "docs/guide/operators",
        "docs/guide/hosting",
        "docs/guide/embedding",
        "docs/guide/testing",
        "docs/guide/audit",
        "docs/guide/production",
    ),
    "Keeping it running": ("docs/operations", "docs/performance"),
    "Looking things up": (
        "docs/api",
        "docs/command",
        "docs/eventsourcing",
        "docs/testing",
        "docs/facts",
        "docs/lifecycle",
        "docs/glossary",
        "docs/contract",
        "reference/index",
    ),
    "The project": ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "examples/*/README"),
}

# The pages of the reference, and from which modules the public names of each are.
_SUBJECTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ledger": (
        "The ledger",
        ("runfacts.infrastructure.ledger", "runfacts.domain.limits", "runfacts.infrastructure.api.feed"),
    ),
    "runs": (
        "Runs and Attempts",
        (
            "runfacts.domain.actors",
            "runfacts.domain.authentication",
            "runfacts.domain.answers",
            "runfacts.domain.decisions",
            "runfacts.domain.lifecycle",
            "runfacts.domain.outcomes",
            "runfacts.domain.payload_parts",
            "runfacts.domain.retry",
            "runfacts.domain.stored_commands",
        ),
    ),
    "reading": (
        "Reading, replaying and archives",
        (
            "runfacts.domain.views",
            "runfacts.domain.replay",
            "runfacts.domain.facts",
            "runfacts.domain.feeds",
            "runfacts.domain.archives",
        ),
    ),
    "views": ("Projections", ("runfacts.domain.projecting",)),
    "cancellation": (
        "Cancellation",
        ("runfacts.domain.cancellation", "runfacts.domain.payloads", "runfacts.infrastructure.stores.stop_states"),
    ),
    "recovery": ("Recovery", ("runfacts.domain.recovery", "runfacts.infrastructure.evidence")),
    "workers": (
        "Workers and telemetry",
        (
            "runfacts.infrastructure.supervision",
            "runfacts.infrastructure.working",
            "runfacts.infrastructure.telemetry.opentelemetry_measures",
        ),
    ),
    "errors": ("Errors", ("runfacts.domain.errors",)),
}
# These are made of several classes, whose methods are theirs.
_WHOLE: Final = {"Ledger", "Supervision", "Working"}

_KIT: Final = (
    "clock",
    "freezing",
    "given_when_then",
    "recorded",
    "steps",
    "ledgers",
    "controller_contract",
    "evidence_contract",
    "plugin",
    "postgres",
)
"""The modules of ``runfacts.testing`` that docs/testing.md tells users to import from."""


def main() -> int:
    """Build the site; 1 if Sphinx has something to warn of."""
    _lay_out()
    shutil.rmtree(TARGET, ignore_errors=True)
    built = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-j", "auto"),
            *(
                "-c",
                str(ROOT / "scripts" / "site"),
                "-d",
                str(ROOT / ".cache" / "site-doctrees"),
                str(SOURCE),
                str(TARGET),
            ),
        ],
        check=False,
    )
    if built.returncode != 0:
        return 1
    (TARGET / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=README.html">\n')
    print(f"the site is {TARGET.relative_to(ROOT)}/index.html")
    return 0


def reference() -> Iterator[tuple[str, str]]:
    """Give the pages of the reference, by name, with their text."""
    homes = {name: getattr(runfacts, name).__module__ for name in runfacts.__all__}
    left = set(homes)
    for page, (title, modules) in _SUBJECTS.items():
        names = [name for module in modules for name, home in homes.items() if f"{home}.".startswith(f"{module}.")]
        left -= set(names)
        yield page, "\n".join((title, "=" * len(title), "", ".. py:currentmodule:: runfacts", "", *_entries(names)))
    if left:
        raise SystemExit(f"no page of the reference is for {', '.join(sorted(left))}: see scripts/build_site.py")
    yield (
        "persistence",
        _pages_of(
            "Persistence for eventsourcing",
            "What the page :doc:`/docs/eventsourcing` teaches.",
            ("runfacts.infrastructure.persistence",),
        ),
    )
    kit = (f"runfacts.testing.{module}" for module in _KIT)
    yield "testing", _pages_of("The testing kit", "What the page :doc:`/docs/testing` teaches.", kit)
    pages = (*_SUBJECTS, "persistence", "testing")
    contents = (f"   {page}" for page in pages)
    yield "index", "\n".join(("Reference", "=========", "", *_INTRODUCTION, "", ".. toctree::", "", *contents, ""))


_INTRODUCTION: Final = (
    "Every public name, from its docstring. Import what stands under ``runfacts.`` from :py:mod:`!runfacts` itself;",
    "everything else is private and may change with any release. The guide to the calls is the page",
    ":doc:`/docs/api`; rules such as R7.4 are those of the :doc:`contract </docs/contract>`.",
)


def _lay_out() -> None:
    """Copy the pages, and write the contents and the reference beside them."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for page in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.*"),
        *ROOT.glob("examples/*/README.md"),
        *ROOT.glob("examples/*/*/*.py"),
        ROOT / "LICENSE",
    ):
        copy = SOURCE / page.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    with (SOURCE / "README.md").open("a", encoding="utf-8") as start:
        for caption, pages in _CONTENTS.items():
            start.write(
                "\n".join(("", "```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```", ""))
            )
    (SOURCE / "reference").mkdir()
    for name, text in reference():
        (SOURCE / "reference" / f"{name}.rst").write_text(text, encoding="utf-8")


def _entries(names: list[str]) -> Iterator[str]:
    for name in names:
        thing = getattr(runfacts, name)
        kind = "class" if isinstance(thing, type) else "function" if callable(thing) else "data"
        if isinstance(thing, type) and issubclass(thing, BaseException):
            kind = "exception"
        yield f".. auto{kind}:: runfacts.{name}"
        if name in _WHOLE:
            yield "   :inherited-members:"
        yield ""


def _module_page(name: str) -> Iterator[str]:
    """Give what a module has of its own or offers in its ``__all__``."""
    module = import_module(name)
    yield from (name, "-" * len(name), "", f".. automodule:: {name}", "   :no-members:", "")
    offered = getattr(module, "__all__", [public for public in vars(module) if not public.startswith("_")])
    for public in offered:
        thing = getattr(module, public)
        if public not in getattr(module, "__all__", ()) and getattr(thing, "__module__", None) != name:
            continue
        if inspect.isclass(thing):
            yield f".. autoclass:: {name}.{public}"
        elif inspect.isfunction(thing):
            yield f".. autofunction:: {name}.{public}"
        yield ""


def _pages_of(title: str, first: str, modules: Iterable[str]) -> str:
    lines = [title, "=" * len(title), "", first, ""]
    for module in modules:
        lines += _module_page(module)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
