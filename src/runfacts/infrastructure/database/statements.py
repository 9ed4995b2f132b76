"""
Statements: built once, compiled once per database to the driver's own text, run on the driver's own connection.

Most of the time of a short command goes not into the database but into the layers in front of it. So a hot statement
keeps what those layers are good for, a text generated from the tables, and skips them afterwards.

A statement that is the same on both databases is built from the tables. One that differs is a pair of files in
``sql/``, named after the statement: ``<name>.sqlite.sql`` and ``<name>.postgresql.sql``, parameters written
``:name``, casts ``CAST(:name AS type)`` (a parameter followed by two colons is not recognised as one).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import ClauseElement

from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, TEXT_LIST

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A statement in a driver's own words."""

    text: str
    constants: Mapping[str, Any]
    """Values that the statement was built with, by their parameter names."""
    lists: frozenset[str]
    """Names of the parameters that are lists."""
    as_list: Callable[[Sequence[str]], str | list[str]]
    """How this driver takes a list: as JSON (SQLite) or as an array."""

    def bind(self, parameters: Parameters) -> Mapping[str, Any]:
        """Return what the driver is given."""
        if not self.constants and not self.lists:
            return parameters
        given = {**self.constants, **parameters}
        for name in self.lists:
            given[name] = self.as_list(given[name])
        return given


class Statement:
    """A named statement. The name appears in the named steps ``sql:before:<name>`` and ``sql:after:<name>``."""

    __slots__ = ("_compiled", "_source", "after", "before", "name")

    def __init__(self, name: str, source: ClauseElement | Mapping[str, ClauseElement | str]) -> None:
        """Take one SQLAlchemy statement for both databases, or one (or a text with ``:name`` parameters) for each."""
        self.name = name
        self.before = f"sql:before:{name}"
        self.after = f"sql:after:{name}"
        self._source = source
        self._compiled: dict[str, Compiled] = {}

    def __repr__(self) -> str:
        return f"Statement({self.name!r})"

    @classmethod
    def from_files(cls, name: str) -> Statement:
        """Read the pair of files of that name in ``sql/``."""
        return cls(name, {dialect: read_sql(f"{name}.{dialect}.sql") for dialect in (SQLITE, POSTGRESQL)})

    def compiled(self, dialect: str) -> Compiled:
        """Return the statement for ``sqlite`` or ``postgresql``; compiled at the first call."""
        known = self._compiled.get(dialect)
        if known is None:
            # Two threads may both compile; the results are equal and either may stay.
            known = self._compiled[dialect] = self._compile(dialect)
        return known

    def _compile(self, dialect: str) -> Compiled:
        source = self._source if isinstance(self._source, ClauseElement) else self._source[dialect]
        if isinstance(source, str):
            source = text(source)
        compiled = source.compile(dialect=_driver_dialect(dialect))
        if not isinstance(compiled, SQLCompiler):
            raise TypeError(f"statement {self.name} is no query")
        binds = compiled.binds
        asked = {name for name, bind in binds.items() if bind.required}
        expanded = compiled.construct_expanded_state(dict.fromkeys(asked))
        return Compiled(
            text=expanded.statement,
            constants={name: value for name, value in expanded.parameters.items() if name not in asked},
            lists=frozenset(name for name in asked if binds[name].type is TEXT_LIST),
            as_list=json.dumps if dialect == SQLITE else list,
        )


def read_sql(file: str) -> str:
    """Return the text of a file in ``sql/``."""
    return (files("runfacts.infrastructure.database") / "sql" / file).read_text(encoding="utf-8")


def _driver_dialect(name: str) -> Dialect:
    """Return SQLAlchemy's dialect with the driver's parameter style; neither imports a driver."""
    if name == SQLITE:
        return sqlite.dialect(paramstyle="named")
    return postgresql.psycopg.dialect(paramstyle="pyformat")  # type: ignore[no-untyped-call]  # it has no annotations
