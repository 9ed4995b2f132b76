"""
The settings of the documents' site; scripts/build_site.py lays out what it is made from, and calls Sphinx.

The build is strict: a broken link, a page that no contents list names, a type that nobody can look up and a public name
without a docstring are warnings here, and a warning ends the build. Nothing is fetched: the theme's files are in its
wheel, and the search runs in the reader's browser.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of

from docutils.nodes import Element, TextElement  # type: ignore[import-untyped]  # has no types of its own
from pygments.lexers.special import TextLexer  # type: ignore[import-untyped]  # the same
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

import runfacts

project = "runfacts"
author = "The runfacts authors"
release = version = version_of("runfacts")
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"runfacts {release}"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False

# Links to headings are those that forges make.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

nitpicky = True
# A signature with the builtin `type` is said to mean one of the attributes of that name.
suppress_warnings = ["ref.python"]
# What other projects and the language document: their inventories would have to be fetched.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!runfacts\b)[\w.]+\..*"),
    (r"py:.*", r"(None|bool|bytes|dict|float|frozenset|int|list|object|str|tuple|type|\.\.\.)"),
    (r"py:.*", r"(Any|Callable|Iterable|Iterator|Mapping|Path|Self|Sequence)"),
    # How the bounds of settings are written; docs/operations.md has them as numbers.
    (r"py:.*", r"(Field|_DAY|_MINUTE|Annotated\[.*\])"),
    # What users take or pass on, but never import: a caller's transaction, metrics, parts of the domain in signatures.
    (r"py:.*", r"(.*\.)?(Caller|Clock|Connection|MeterProvider|StoredEvent|Tracking|Transaction|Feed|Places)"),
    (
        r"py:.*",
        r"(.*\.)?(Measure|Measures|Queue|QueueState|Steps|Listener|Database|Draft|History|Decision|Payload|Shape)",
    ),
    (
        r"py:.*",
        r"(.*\.)?(ExecutionSnapshot|MachineIdentity|CollectedReceipts|RequestAnswer|GateAnswer|PostgresPrograms)",
    ),
    (r"py:.*", r"(.*\.)?Sql(Application|Aggregate|Process)Recorder"),
    (r"py:.*", r"(.*\.)?(Answer|Credential|_Credential_contra|Item|Recorder|View|_Aggregate)"),  # type variables
]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "exclude-members": "model_config, model_fields, __new__",
}
# Long lists of arguments stand one to a line.
maximum_signature_line_length = 90

_LOG = logging.getLogger(__name__)
_LITERAL = re.compile(r"``(\w+)``")
_NAMED = {"class", "exception", "function", "method", "property"}


def setup(app: Sphinx) -> None:
    """Connect the checks and the links between public names."""
    # Diagrams are drawn by forges; here their source is shown, beside the table that it was made from.
    app.add_lexer("mermaid", TextLexer)
    app.connect("autodoc-process-docstring", _finish_docstring)
    app.connect("missing-reference", _find_public_name)


def _finish_docstring(  # noqa: PLR0917 - Sphinx gives them by place
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """Warn where there is none, and make links of the public names in it."""
    del app, thing, options
    if what in _NAMED and not any(line.strip() for line in lines):
        _LOG.warning("%s has no docstring", name)
    lines[:] = [_LITERAL.sub(_link, line) for line in lines]


def _link(found: re.Match[str]) -> str:
    return f":py:obj:`~runfacts.{found[1]}`" if found[1] in runfacts.__all__ else found[0]


def _find_public_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: TextElement) -> Element | None:
    """Resolve a type by the name under which it is public, not by the module where it lives."""
    last = str(node.get("reftarget", "")).rpartition(".")[2]
    if node.get("refdomain") != "py" or last not in runfacts.__all__:
        return None
    found = env.domains.python_domain.objects.get(f"runfacts.{last}")
    if found is None:
        return None
    return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, content, last)
