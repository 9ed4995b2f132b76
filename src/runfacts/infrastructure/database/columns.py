"""
The few shapes that the tables are made of: columns, conditions on them, and the constraints that carry the conditions.

Every constraint gets a name: migrations and errors speak of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import CheckConstraint, Column, ColumnElement, Table, and_, func, not_, or_

from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, big_integer, constant, identifier


def among(column: ColumnElement[str], words: Iterable[str]) -> ColumnElement[bool]:
    """Whether a column has one of our own words, spelled out so that a partial index on the same condition is used."""
    return column.in_([constant(word) for word in sorted(words)])


def required(name: str) -> Column[str]:
    """A text that is always there."""
    return Column(name, identifier(), nullable=False)


def optional(name: str) -> Column[str]:
    """A text that may be absent."""
    return Column(name, identifier(), nullable=True)


def number(name: str) -> Column[int]:
    """A whole number that is always there."""
    return Column(name, big_integer(), nullable=False)


def optional_number(name: str) -> Column[int]:
    """A whole number that may be absent."""
    return Column(name, big_integer(), nullable=True)


def or_null(column: Column[Any], condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a column is absent or meets a condition: said aloud, although a CHECK would let NULL pass anyhow."""
    return or_(column.is_(None), condition)


def both_or_neither(one: Column[Any], other: Column[Any]) -> ColumnElement[bool]:
    """Whether two columns are there together or not at all."""
    return or_(and_(one.is_(None), other.is_(None)), and_(one.is_not(None), other.is_not(None)))


def exactly_when(condition: ColumnElement[bool], column: Column[Any]) -> ColumnElement[bool]:
    """Whether a column is there when the condition holds, and only then."""
    return or_(and_(condition, column.is_not(None)), and_(not_(condition), column.is_(None)))


def check(table: Table, **conditions: ColumnElement[bool]) -> None:
    """Give ``table`` a named condition each; a name is part of the schema."""
    for name, condition in conditions.items():
        table.append_constraint(CheckConstraint(condition, name=name))


def boot_times(table: Table, name: str, *columns: str, when: ColumnElement[bool] | None = None) -> None:
    """Let columns of the boot clock be there on SQLite, always or exactly ``when`` a condition holds.

    They are absent on PostgreSQL, which decides by its own time alone (R5.1, R5.2).
    """
    found = [table.c[column] for column in columns]
    there = [column.is_not(None) if when is None else exactly_when(when, column) for column in found]
    absent = [column.is_(None) for column in found]
    table.append_constraint(CheckConstraint(and_(*there), name=name).ddl_if(dialect=SQLITE))
    table.append_constraint(CheckConstraint(and_(*absent), name=f"no_{name}").ddl_if(dialect=POSTGRESQL))


def texts(table: Table, **longest: int) -> None:
    """Bound the text columns of ``table``, in characters; a text that is there is never empty."""
    for name, most in longest.items():
        column = table.c[name]
        within = func.length(column).between(1, most)
        check(table, **{name: or_null(column, within) if column.nullable else within})


def lengths(table: Table, length: int, *names: str) -> None:
    """Give ids or digests of ``table`` their exact length."""
    for name in names:
        column = table.c[name]
        exact = func.length(column) == length
        check(table, **{name: or_null(column, exact) if column.nullable else exact})


def at_least(table: Table, least: int, *names: str) -> None:
    """Bound numbers of ``table`` from below."""
    for name in names:
        column = table.c[name]
        check(table, **{name: or_null(column, column >= least) if column.nullable else column >= least})
