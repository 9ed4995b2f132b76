"""
What SQLAlchemy Core writes differently for SQLite and PostgreSQL: each difference once.

* ``identifier()``  the type of ids, names and other texts that are compared: byte order on both.
* ``octets()``      the length of a text in bytes of UTF-8.
* ``one_of()``      "this column is one of that list", with the whole list as one parameter, so that the statement's
  text, and with it the server's prepared statement, stays the same for any length.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Integer, Table, Text, bindparam, literal
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement
from sqlalchemy.types import ARRAY, NULLTYPE, TypeEngine

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

_POSTGRESQL_NAMES: Final = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]  # no annotations


def identifier() -> TypeEngine[str]:
    """Text compared byte by byte: SQLite's default, and on PostgreSQL whatever the database's own collation is."""
    return Text().with_variant(postgresql.TEXT(collation="C"), POSTGRESQL)


def big_integer() -> TypeEngine[int]:
    """64 bits on both: SQLite's row number must be declared INTEGER, and its strict tables know nothing longer."""
    return BigInteger().with_variant(Integer(), SQLITE)


class octets(FunctionElement[int]):  # noqa: N801 - reads as the SQL function that it is
    """The length of a text in bytes of UTF-8."""

    type = Integer()
    inherit_cache = True
    name = "octets"


@compiles(octets, SQLITE)
def _octets_sqlite(element: octets, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401 - SQLAlchemy's own signature
    # octet_length() came with SQLite 3.43.
    return f"length(CAST({compiler.process(element.clauses, **kw)} AS BLOB))"


@compiles(octets, POSTGRESQL)
def _octets_postgresql(element: octets, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401 - SQLAlchemy's own signature
    return f"octet_length({compiler.process(element.clauses, **kw)})"


TEXT_LIST: ARRAY[str] = ARRAY(Text())
"""The type by which a statement recognises a parameter that is a list of texts."""


class one_of(FunctionElement[Any]):  # noqa: N801 - reads as the SQL operator that it is
    """Whether a text column is one of a list, which the parameter ``name`` takes as a list or tuple of ``str``."""

    # Not Boolean: for SQLite that would be written "... = 1", which hides the column from its index.
    type = NULLTYPE
    inherit_cache = True
    name = "one_of"

    def __init__(self, column: ColumnElement[str], parameter: str) -> None:
        """Compare ``column`` with the list that will be given as ``parameter``."""
        super().__init__(column, bindparam(parameter, type_=TEXT_LIST))


@compiles(one_of, SQLITE)
def _one_of_sqlite(element: one_of, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401 - SQLAlchemy's own signature
    column, values = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"  # noqa: S608 - two compiled parts


@compiles(one_of, POSTGRESQL)
def _one_of_postgresql(element: one_of, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401 - SQLAlchemy's own signature
    column, values = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} = ANY ({values})"


def constant(value: str) -> ColumnElement[str]:
    """
    Our own word, written into the statement instead of bound.

    A partial index is only used when the planner sees the very words of its condition; a parameter hides them from a
    prepared statement. Never for anything that comes from outside.
    """
    return literal(value, Text(), literal_execute=True)


def regclass_of(table: Table) -> str:
    """Give a table's name as PostgreSQL reads one from a text: quoted where it must be."""
    return _POSTGRESQL_NAMES.format_table(table)
