"""
Kinds of arguments: what a value must be before a command looks at it, and the words that refuse another.

A kind is called with the argument's name and its value and gives the value that the command gets, or refuses it
(``InvalidValue``). It looks at types only; whether a text is too long or a number out of its bounds is said by the
command, which knows the bounds.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import Connection

from runfacts.domain.errors import InvalidValue, MalformedUrl

Kind: TypeAlias = Callable[[str, Any], Any]
"""Takes the name and the value of an argument; gives the value, or raises ``InvalidValue``."""

_ID: Final = (str, UUID)
_PAIR: Final = 2


def a_text(name: str, value: object) -> object:
    """Take a ``str``."""
    if isinstance(value, str):
        return value
    raise InvalidValue(name, f"is not a text, but {_what(value)}")


def a_number(name: str, value: object) -> object:
    """Take an ``int`` that is no ``bool``."""
    if type(value) is int:
        return value
    raise InvalidValue(name, f"is not a whole number, but {_what(value)}")


def a_flag(name: str, value: object) -> object:
    """Take a ``bool``: a text such as ``"no"`` would count as true."""
    if isinstance(value, bool):
        return value
    raise InvalidValue(name, f"is neither True nor False, but {_what(value)}")


def an_id(name: str, value: object) -> object:
    """Take an id, as text or as a UUID."""
    if isinstance(value, _ID):
        return value
    raise InvalidValue(name, f"is not an id as text, but {_what(value)}")


def a_url(name: str, value: object) -> object:
    """Take the URL of a database (``MalformedUrl``)."""
    del name
    if isinstance(value, str):
        return value
    raise MalformedUrl(f"url is not a text such as sqlite:///runs.db, but {_what(value)}")


def a_function(name: str, value: object) -> object:
    """Take what can be called."""
    if callable(value):
        return value
    raise InvalidValue(name, f"is not a function, but {_what(value)}")


def a_connection(name: str, value: object) -> object:
    """Take a connection or a session of SQLAlchemy; whether it can carry our writes is looked at later (R4.5)."""
    if isinstance(value, Connection) or _has(value, "connection"):
        return value
    raise InvalidValue(name, f"is neither a connection nor a session of SQLAlchemy, but {_what(value)}")


def an_archive(name: str, value: object) -> object:
    """Take a file that is open for reading bytes."""
    if _has(value, "readline") and not isinstance(value, io.TextIOBase):
        return value
    raise InvalidValue(name, f"is not a file that is open for reading bytes, but {_what(value)}")


def pairs(name: str, value: object) -> object:
    """Take pairs of executor type and scope."""
    if isinstance(value, frozenset | set | tuple | list) and all(map(_is_pair, value)):
        return value
    raise InvalidValue(name, "does not hold pairs of executor type and scope")


def one_of(kind: type[StrEnum]) -> Kind:
    """Take a member of an enumeration, or its text."""

    def check(name: str, value: object) -> object:
        if type(value) is kind:
            return value
        if isinstance(value, str):
            with suppress(ValueError):
                return kind(value)
        raise InvalidValue(name, f"is none of {', '.join(kind)}")

    return check


def an_object(kind: type, article: str = "a") -> Kind:
    """Take an object of a type."""

    def check(name: str, value: object) -> object:
        if isinstance(value, kind):
            return value
        raise InvalidValue(name, f"is not {article} {kind.__name__}, but {_what(value)}")

    return check


def one_that_has(port: str, *members: str) -> Kind:
    """Take an object with the members of a port; types of no relation may implement one."""

    def check(name: str, value: object) -> object:
        missing = [member for member in members if not hasattr(value, member)]
        if isinstance(value, type):
            raise InvalidValue(name, f"is the class {value.__name__}, not an object of it")
        if missing:
            raise InvalidValue(name, f"is no {port}, but {_what(value)}: it has no {', '.join(missing)}")
        return value

    return check


def all_of(kind: Kind) -> Kind:
    """Take several; one text is not a list of its characters. An iterator is read once, here."""

    def check(name: str, value: object) -> object:
        return tuple(kind(name, item) for item in _items(name, value))

    return check


def each_of(kind: Kind) -> Kind:
    """Take any number: each is looked at when the command comes to it, and none is kept."""

    def check(name: str, value: object) -> Iterator[object]:
        found = _items(name, value)
        return (kind(name, item) for item in found)

    return check


def some_of(kind: Kind) -> Kind:
    """Take several, or one alone."""
    several = all_of(kind)

    def check(name: str, value: object) -> object:
        return kind(name, value) if isinstance(value, str) else several(name, value)

    return check


def _items(name: str, value: object) -> Iterable[object]:
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return value
    raise InvalidValue(name, f"is not a list, but {_what(value)}")


def _has(value: object, method: str) -> bool:
    """Whether an object has a method that is no coroutine's."""
    found = None if isinstance(value, type) else getattr(value, method, None)
    return callable(found) and not iscoroutinefunction(found)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == _PAIR and all(isinstance(text, str) for text in value)


def _what(value: object) -> str:
    """Name a value's type; never the value, which may be a secret."""
    return "None" if value is None else f"of type {type(value).__name__}"
