"""The base of option types that give whole numbers: click's own, whichever of its releases is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    NumberType = click.ParamType[int]
else:
    # Older releases that this package works with have no type parameter.
    NumberType = click.ParamType
