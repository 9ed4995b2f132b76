"""
Writes the pages that are made from the code: docs/lifecycle.md and docs/facts.md.

What a page says about a type, a field or a transition is taken from the model, its docstring or its table, so that it
cannot say anything else. With ``--check`` nothing is written, and a page that differs from the code is named.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fact_examples import examples
from runfacts.domain import lifecycle, payload_parts, payloads, retry
from runfacts.domain.attempt import ATTEMPT_STATUS_AFTER
from runfacts.domain.facts import Fact, envelope
from runfacts.domain.lifecycle import (
    ACTIVE_ATTEMPT,
    ATTEMPT_TRANSITIONS,
    COMMANDS,
    RUN_TRANSITIONS,
    TERMINAL_ATTEMPT,
    TERMINAL_RUN,
    AttemptStatus,
    ExecutionOwner,
    IntentKind,
    RunStatus,
    attempt_end,
    run_end,
)
from runfacts.domain.payload_parts import Evidence, OutcomeKind
from runfacts.domain.payloads import FACT_TYPES, AttemptPayload, Escalation, Payload
from runfacts.domain.retry import RetryPolicy, Safety
from runfacts.domain.run import RUN_STATUS_AFTER

DOCS: Final = Path(__file__).parents[1] / "docs"
_NOTICE = "<!-- Made from the code by scripts/docs; changes made here are lost. -->"
_WORDS: Final = (ExecutionOwner, IntentKind, OutcomeKind, Evidence, Escalation, Safety)

_ID_LENGTH: Final = 36

_ENVELOPE: Final = {
    "position": ("whole number", "place among all facts of the database; it rises and may have gaps"),
    "run_id": ("id", "the Run"),
    "sequence": ("1, 2, 3 …", "place within the Run, without a gap, over facts of the Run and of its Attempts alike"),
    "type": ("text", "what happened: one of the types below"),
    "schema_version": ("1, 2, 3 …", "the version in which the payload is written"),
    "project": ("text, 1 to 200 characters", "the project of the Run"),
    "attempt_id": ("id, optional", "the Attempt concerned"),
    "actor_type": ("word", "what kind of party did it (R3.5)"),
    "actor_id": ("text, 1 to 128 characters, optional", "who exactly"),
    "dedupe_key": ("text, 1 to 256 characters, optional", "makes a command repeatable; unique within the Run (R3.4)"),
    "correlation_id": ("text, 1 to 256 characters, optional", "the larger action that this belongs to"),
    "causation_id": ("text, 1 to 256 characters, optional", "what caused it"),
    "recorded_at_ms": ("milliseconds", "when it was recorded; never earlier than the fact before it (R3.4)"),
    "payload": ("object", "the details, as the type's model has them"),
    "aggregate_id": ("id", "the Run or the Attempt whose stream the fact belongs to"),
    "aggregate_version": ("1, 2, 3 …", "place in that stream"),
    "hash": ("64 hexadecimal digits", "SHA-256 over the hash of the Run's fact before it and all of this one (R3.1)"),
}


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with ``--check`` name those that are not what the code gives (1)."""
    if [argument for argument in arguments if argument != "--check"]:
        print("usage: scripts/docs [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, lines in (("lifecycle.md", lifecycle_page()), ("facts.md", facts_page())):
        page, text = DOCS / name, "\n".join(lines) + "\n"
        if page.exists() and page.read_text() == text:
            continue
        if "--check" in arguments:
            stale.append(name)
        else:
            page.write_text(text)
    for name in stale:
        print(f"docs/{name} is not what the code gives: run scripts/docs", file=sys.stderr)
    return 1 if stale else 0


def lifecycle_page() -> Iterator[str]:
    """Give the page of diagrams and tables drawn from ``domain/lifecycle.py``."""
    yield from ("# The life of Runs and Attempts", "", _NOTICE, "")
    yield "Drawn from the tables in `src/runfacts/domain/lifecycle.py`, which every writer goes through (R2.5)."
    yield "A transition that is not here is refused (`IllegalTransition`). The rules behind it are"
    yield "[R2 of the contract](contract.md#r2-run-and-attempt); what each fact says is in the [catalogue](facts.md)."
    yield from ("", "## Run", "")
    yield from _diagram(RunStatus, RUN_TRANSITIONS)
    yield from (
        "",
        f"Terminal: {_list(status for status in RunStatus if status in TERMINAL_RUN)}. A lost Run can go on (R2.1).",
        "",
    )
    yield from _transitions(RunStatus, RUN_TRANSITIONS)
    yield from ("", "## Attempt", "")
    yield from _diagram(AttemptStatus, ATTEMPT_TRANSITIONS)
    yield ""
    active = _list(status for status in AttemptStatus if status in ACTIVE_ATTEMPT)
    terminal = _list(status for status in AttemptStatus if status in TERMINAL_ATTEMPT)
    yield f"Active: {active}. Terminal: {terminal} (R2.2)."
    yield ""
    yield from _transitions(AttemptStatus, ATTEMPT_TRANSITIONS)
    yield from ("", "## Which command records which facts", "")
    yield "In this order (R2.6). A row is one transaction, but for the second fact of a retry: it comes when it is due."
    yield "[What this release has](contract.md#what-this-release-has) says which of them this release records."
    yield ""
    yield from _table(("command", "facts"), ((name, _list(facts)) for name, facts in COMMANDS.items()))
    yield from ("", "### What E means", "")
    yield "E is how a requested cancellation ends an aggregate. For the kind `timeout` it is `timed_out` where the"
    yield "aggregate's table has that, else `cancelled` with the reason `timeout`. For every other kind it is"
    yield "`cancelled` (R2.5)."
    yield ""
    yield from _table(("aggregate", "status", "E for `timeout`", "E otherwise"), _ends())


def _ends() -> Iterator[Sequence[str]]:
    for run in RunStatus:
        if run not in TERMINAL_RUN:
            yield "Run", f"`{run}`", f"`{run_end(run, IntentKind.TIMEOUT)}`", f"`{run_end(run, IntentKind.USER)}`"
    for attempt in AttemptStatus:
        if attempt in ACTIVE_ATTEMPT:
            timeout, other = attempt_end(attempt, IntentKind.TIMEOUT), attempt_end(attempt, IntentKind.USER)
            yield "Attempt", f"`{attempt}`", f"`{timeout}`", f"`{other}`"


def facts_page() -> Iterator[str]:
    """Give the catalogue of facts."""
    found: dict[str, Fact] = {}
    for fact in examples():
        found.setdefault(fact.type, fact)
    docs = _docstrings()
    yield from ("# The catalogue of facts", "", _NOTICE, "")
    yield "Every type of fact that this release knows: what it says, its fields, and an example. The models are in"
    yield "`src/runfacts/domain/payloads.py`; `runfacts facts` prints their JSON Schemas. Which command records which"
    yield "types is in [the life of Runs and Attempts](lifecycle.md), which of them this release already records in"
    yield "[What this release has](contract.md#what-this-release-has)."
    yield from ("", "## The envelope", "")
    yield "What every fact carries, under the names that exports use (R3.1). Optional fields are left out where they"
    yield "are absent. Ids are UUIDs as text of 36 characters, moments UTC milliseconds."
    yield ""
    if set(_ENVELOPE) - {"position", "payload", "hash"} != set(envelope(found["run.created"])):
        raise ValueError("the envelope's fields have changed: describe them in _ENVELOPE")
    yield from _table(("field", "type", "meaning"), ((f"`{name}`", *row) for name, row in _ENVELOPE.items()))
    yield from _hash_section(found["run.created"])
    yield from _versions_section()
    yield from ("", "## All types", "")
    yield from _table(
        ("type", "says"),
        ((f"[`{name}`](#{_anchor(name)})", _summary(model)) for name, model in FACT_TYPES.items()),
    )
    for name, model in FACT_TYPES.items():
        yield from _type_section(name, model, docs, found[name])
    yield from ("", "## Parts of payloads", "", "### Retry policy", "", _summary(RetryPolicy), "")
    yield from _fields(RetryPolicy, _schema_of(payloads.RunCreated)["$defs"]["RetryPolicy"], docs)
    for words in _WORDS:
        yield from ("", f"### {words.__name__}", "", _summary(words), "")
        said = docs[words.__name__]
        yield from (f"- `{word}`" + (f": {_markdown(said[word.name])}" if word.name in said else "") for word in words)


def _hash_section(fact: Fact) -> Iterator[str]:
    yield from ("", "## The hash", "")
    yield "Anybody can compute it, without this library. This is the first fact of a Run, so 64 zeros stand for the"
    yield "hash before it:"
    yield from ("", "```python", "import hashlib", "import json", "")
    yield f"fact = {_python(_export(fact))}"
    yield 'covered = {name: value for name, value in fact.items() if name not in ("position", "hash")}'
    yield 'canonical = json.dumps(covered, ensure_ascii=False, sort_keys=True, separators=(",", ":"))'
    yield 'assert hashlib.sha256(("0" * 64 + canonical).encode()).hexdigest() == fact["hash"]'
    yield "```"


def _versions_section() -> Iterator[str]:
    yield from ("", "## Versions and unknown types", "")
    yield "A payload is closed: a field that its model does not have is refused. It has at most 16,384 bytes (R3.6)."
    yield "Names are stored for ever. A field may be added if it is optional; anything else is a new version of the"
    yield "type, and an upcaster reads the old one."
    yield ""
    yield "What is stored under a type or version that this release does not know is kept and never dropped (R3.7):"
    yield ""
    yield "- It is read as a `Fact` whose `payload` is an `UnknownPayload` with the stored text; `fact.known` is false."
    yield "- Its hash is checked like any other. `verify` and `doctor` count it by type; that is no difference."
    yield "- A Run that has one can be read and verified. Commands on it raise `UnknownFactsInRun`, until a release"
    yield "  that knows the type is installed."


def _type_section(name: str, model: type[Payload], docs: Mapping[str, Mapping[str, str]], fact: Fact) -> Iterator[str]:
    yield from ("", f"### `{name}`", "", _summary(model), "")
    of_attempt = issubclass(model, AttemptPayload)
    after = ATTEMPT_STATUS_AFTER.get(model) if of_attempt else RUN_STATUS_AFTER.get(model)
    aggregate = "Attempt" if of_attempt else "Run"
    yield f"- Version {model.VERSION}, in the stream of the {aggregate}."
    yield f"- The {aggregate} is `{after}` after it." if after else f"- It changes no status of the {aggregate}."
    commands = [command for command, facts in COMMANDS.items() if name in facts or _by_intent(name) in facts]
    if commands:
        yield f"- Recorded by: {'; '.join(commands)}."
    yield ""
    schema = _schema_of(model)
    if schema.get("properties"):
        yield from _fields(model, schema, docs)
    else:
        yield "It has no fields."
    yield from ("", "```json", json.dumps(_export(fact), indent=2, ensure_ascii=False), "```")


def _by_intent(name: str) -> str:
    """Give the name under which the table of commands has a type that a cancellation ends in."""
    aggregate, _, what = name.partition(".")
    return f"{aggregate}.E" if what in {"cancelled", "timed_out"} else name


def _fields(model: type, schema: Mapping[str, Any], docs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    rows = []
    for name, field in schema["properties"].items():
        meaning = next(docs[part.__name__][name] for part in model.__mro__ if name in docs.get(part.__name__, {}))
        kind = _kind(field)
        default = field.get("default")
        if name not in schema.get("required", ()):
            kind += ", optional" if default is None else f", `{json.dumps(default)}` unless said"
        rows.append((f"`{name}`", kind, _markdown(meaning)))
    return _table(("field", "type", "meaning"), rows)


def _kind(field: Mapping[str, Any]) -> str:
    """Say in words what values a field of a JSON Schema takes."""
    field = next((part for part in field.get("anyOf", ()) if part.get("type") != "null"), field)
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        anchor = "retry-policy" if name == "RetryPolicy" else name.lower()
        return f"[{'object' if name == 'RetryPolicy' else 'word'}](#{anchor})"
    match field["type"]:
        case "boolean":
            return "true or false"
        case "integer":
            lowest, highest = field.get("minimum"), field.get("maximum")
            if lowest is None:
                return "whole number"
            return f"whole number, {lowest} to " + (f"{highest:,}" if highest else "2⁵³ - 1")
        case "string":
            lowest, highest = field.get("minLength", 0), field["maxLength"]
            if lowest == highest == _ID_LENGTH:
                return "id"
            count = f"{lowest}" if lowest == highest else f"{lowest} to {highest:,}"
            return f"text, {count} characters"
        case other:
            raise ValueError(f"say in words what {other} is")


def _docstrings() -> Mapping[str, Mapping[str, str]]:
    """Give the docstrings of all fields and enum members, by class."""
    found: dict[str, dict[str, str]] = {}
    for module in (lifecycle, payload_parts, payloads, retry):
        for node in ast.parse(Path(str(module.__file__)).read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            of_class = found.setdefault(node.name, {})
            for field, after in zip(node.body, node.body[1:], strict=False):
                target = field.target if isinstance(field, ast.AnnAssign) else None
                if isinstance(field, ast.Assign):
                    target = field.targets[0]  # type: ignore[assignment]  # a member of an enum is a plain name
                if (
                    isinstance(target, ast.Name)
                    and isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                ):
                    of_class[target.id] = " ".join(str(after.value.value).split())
    return found


def _export(fact: Fact) -> dict[str, object]:
    """Give a fact as exports have it, without a position: that is the database's."""
    fields: dict[str, object] = {name: value for name, value in envelope(fact).items() if value is not None}
    return fields | {"payload": json.loads(fact.payload_text), "hash": fact.hash}


def _python(value: Mapping[str, object]) -> str:
    """Write a JSON object as Python."""
    text = json.dumps(value, indent=4, ensure_ascii=False)
    return text.replace(": true", ": True").replace(": false", ": False").replace(": null", ": None")


def _schema_of(model: type[Payload]) -> dict[str, Any]:
    return model.model_json_schema()


def _diagram(statuses: type[StrEnum], transitions: Mapping[Any, frozenset[Any]]) -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(statuses))}")
    for source in statuses:
        yield from (f"    {source} --> {target}" for target in statuses if target in transitions[source])
    yield from (f"    {source} --> [*]" for source in statuses if not transitions[source])
    yield "```"


def _transitions(statuses: type[StrEnum], transitions: Mapping[Any, frozenset[Any]]) -> Iterator[str]:
    return _table(
        ("from", "to"),
        (
            (f"`{source}`", _list(target for target in statuses if target in transitions[source]))
            for source in statuses
            if transitions[source]
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _summary(documented: type) -> str:
    """Give the first paragraph of a docstring."""
    return _markdown(" ".join((documented.__doc__ or "").strip().partition("\n\n")[0].split()))


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _anchor(heading: str) -> str:
    return heading.replace(".", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
