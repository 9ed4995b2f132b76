"""
The alert rules in docs/alerts.yml can be read, and name metrics and labels that exist (R7.7, R11.3).

Nothing that reads YAML or PromQL is among the project's dependencies, so the rules are held to a part of both that
fits here: maps and lists by indentation, values plain or in single quotes; a handful of functions. What is written in
that part is YAML and PromQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

import pytest

from pages import ROOT
from runfacts.domain.measures import MEASURES, Measure, MeasureKind

RULES: Final = ROOT / "docs" / "alerts.yml"
OPERATIONS: Final = ROOT / "docs" / "operations.md"
Node: TypeAlias = "str | dict[str, Node] | list[Node]"

_LINE: Final = re.compile(r"( *)(- )?([a-z]+):(?: (.+))?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_QUOTED: Final = re.compile(r"'([^'\\]+)'")
_DURATION: Final = re.compile(r"[1-9][0-9]*[smh]")
_TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|\"[^\"\\]*\"|\[[^\]]*\]|=~|==|[(){},=>])")
_FUNCTIONS: Final = {"max", "sum", "rate", "increase", "histogram_quantile", "absent"}
_OPERATORS: Final = {"or", "by"}
_CLOSES: Final = {")": "(", "}": "{"}


def read(lines: list[str]) -> Node:
    """Read the part of YAML that the rules are written in; whatever else is there is a ``ValueError``."""
    taken = [line for line in lines if line.strip() and not line.startswith("#")]
    node, rest = _map(taken, 0)
    if rest:
        raise ValueError(rest[0])
    return node


def _map(lines: list[str], indent: int) -> tuple[dict[str, Node], list[str]]:
    found: dict[str, Node] = {}
    while lines:
        line = _LINE.fullmatch(lines[0])
        if line is None or len(line[1]) > indent or (line[2] and len(line[1]) == indent):
            raise ValueError(lines[0])
        if len(line[1]) < indent:
            break
        if line[3] in found:
            raise ValueError(lines[0])
        lines = lines[1:]
        if line[4] is not None:
            found[line[3]] = _value(line[4])
        elif lines and lines[0].lstrip().startswith("- "):
            found[line[3]], lines = _list(lines, indent + 2)
        else:
            found[line[3]], lines = _map(lines, indent + 2)
            if not found[line[3]]:
                raise ValueError(line[3])
    return found, lines


def _list(lines: list[str], indent: int) -> tuple[list[Node], list[str]]:
    found: list[Node] = []
    dash = " " * indent + "- "
    while lines and lines[0].startswith(dash):
        # An item is a map whose first line has the dash in its indentation.
        own = [" " * (indent + 2) + lines[0].removeprefix(dash)]
        rest = lines[1:]
        while rest and rest[0].startswith(" " * (indent + 2)):
            own.append(rest.pop(0))
        item, left = _map(own, indent + 2)
        assert not left
        found.append(item)
        lines = rest
    return found, lines


def _value(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        raise ValueError(text)
    return quoted[1]


def rules() -> Iterator[dict[str, Node]]:
    """Give the rules of all groups."""
    top = read(RULES.read_text().splitlines())
    assert isinstance(top, dict)
    assert set(top) == {"groups"}
    groups = top["groups"]
    assert isinstance(groups, list)
    for group in groups:
        assert isinstance(group, dict)
        assert set(group) == {"name", "rules"}
        assert isinstance(group["rules"], list)
        for rule in group["rules"]:
            assert isinstance(rule, dict)
            yield rule


def exported(measure: Measure) -> dict[str, Measure]:
    """Give the names under which the Prometheus exporter of OpenTelemetry offers a measure."""
    name = measure.name.replace(".", "_") + ("_milliseconds" if measure.unit == "ms" else "")
    suffixes = {
        MeasureKind.COUNTER: ("_total",),
        MeasureKind.GAUGE: ("",),
        MeasureKind.HISTOGRAM: ("_bucket", "_count", "_sum"),
    }
    return {name + suffix: measure for suffix in suffixes[measure.kind]}


NAMES: Final = {name: measure for measure in MEASURES for name, measure in exported(measure).items()}
ALERTS: Final = list(rules())


def tokens(expression: str) -> list[str]:
    """Split an expression (``ValueError`` where something is none of its words)."""
    found, place = [], 0
    while place < len(expression):
        token = _TOKEN.match(expression, place)
        if token is None:
            raise ValueError(expression[place:])
        found.append(token[1])
        place = token.end()
    return found


def checked(expression: str) -> set[str]:
    """Check an expression, and give the metrics that it names."""
    words = tokens(expression)
    opened: list[str] = []
    metrics: set[str] = set()
    metric = ""
    for place, word in enumerate(words):
        before, after = words[place - 1] if place else "", words[place + 1] if place + 1 < len(words) else ""
        if word in "({":
            opened.append(word)
        elif word in _CLOSES:
            assert opened, expression
            assert opened.pop() == _CLOSES[word], expression
        elif word.startswith("["):
            assert _DURATION.fullmatch(word[1:-1]), word
            assert before == "}" or before in NAMES, expression
        elif word.startswith('"'):
            label = words[place - 2]
            assert before in {"=", "=~"}, expression
            assert set(word[1:-1].split("|") if before == "=~" else [word[1:-1]]) <= NAMES[metric].labels[label], word
        elif word in _FUNCTIONS:
            assert after in {"(", "by"}, expression
        elif word in NAMES:
            metrics.add(metric := word)
        elif re.match("[A-Za-z_]", word) and word not in _OPERATORS:
            # A label: matched in braces, or kept by an aggregation of the metric that follows.
            inside = opened[-1] == "{" if opened else False
            of = NAMES[metric] if inside else NAMES[next(each for each in words[place:] if each in NAMES)]
            assert word in {*of.labels, *({"le"} if of.kind is MeasureKind.HISTOGRAM else ())}, word
            assert after in {"=", "=~"} or (before == "(" and words[place - 2] == "by"), expression
    assert not opened, expression
    assert metrics, expression
    return metrics


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_rule_says_what_prometheus_needs_and_names_what_exists(rule: dict[str, Node]) -> None:
    assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert _DURATION.fullmatch(str(rule.get("for", "1m")))
    assert isinstance(rule["labels"], dict)
    assert isinstance(rule["annotations"], dict)
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"].keys() == {"summary", "description"}
    assert checked(str(rule["expr"]))


def test_no_two_rules_have_one_name() -> None:
    assert len({str(rule["alert"]) for rule in ALERTS}) == len(ALERTS)


def test_the_rules_watch_what_an_operator_must_know() -> None:
    watched = {metric for rule in ALERTS for metric in checked(str(rule["expr"]))}
    assert {
        "runfacts_cancellation_queue_depth",
        "runfacts_cancellation_queue_oldest_age_milliseconds",
        "runfacts_recovery_queue_depth",
        "runfacts_recovery_queue_oldest_age_milliseconds",
        "runfacts_recovery_left_over_milliseconds_bucket",
        "runfacts_refusals_total",
        "runfacts_cycle_duration_milliseconds_count",
        "runfacts_cycle_counts_total",
    } <= watched


def test_the_operations_guide_leads_to_the_rules() -> None:
    assert "(alerts.yml)" in OPERATIONS.read_text()


@pytest.mark.parametrize(
    "text",
    ["a: {b}", "a: 'b", "a:\n   b: c", "a: b\na: c", "a: b # c", "a: b\n  c: d", "A: b", "- a: b", "a: 'b'c'"],
)
def test_what_is_no_such_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text.splitlines())


@pytest.mark.parametrize(
    "expression",
    [
        "max(runfacts_nothing) > 0",
        "max(runfacts_recovery_queue_depth > 0",
        'max(runfacts_recovery_queue_depth{state="lost"}) > 0',
        'max(runfacts_recovery_queue_depth{status="due"}) > 0',
        "max by (part) (runfacts_recovery_queue_depth) > 0",
        "rate(runfacts_refusals_total[5 m]) > 0",
        "runfacts_refusals > 0",
        "max(1) > 0",
    ],
)
def test_an_expression_that_means_nothing_is_noticed(expression: str) -> None:
    with pytest.raises((AssertionError, ValueError, LookupError, StopIteration)):
        checked(expression)
