"""``runfacts facts``: the catalogue of fact types. It needs no database."""

from __future__ import annotations

import json

import click

from runfacts.domain.errors import NotFound
from runfacts.domain.payloads import FACT_TYPES
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation


@click.command("facts", cls=EverywhereCommand, short_help="The types of facts, with their JSON Schemas.")
@click.argument("type_name", metavar="[TYPE]", required=False)
@pass_invocation
def command(invocation: Invocation, type_name: str | None) -> None:
    """The types of facts, with their JSON Schemas."""
    if type_name is not None and type_name not in FACT_TYPES:
        raise NotFound(f"there is no type of fact {type_name!r}")
    wanted = FACT_TYPES if type_name is None else {type_name: FACT_TYPES[type_name]}
    schemas = {name: model.model_json_schema() for name, model in wanted.items()}
    if invocation.json:
        output.write_json(schemas)
    elif type_name is not None:
        output.write(json.dumps(schemas, indent=2))
    else:
        output.table(
            ("type", "version", "what it says"),
            [(name, model.VERSION, (model.__doc__ or "").partition("\n")[0]) for name, model in wanted.items()],
        )
