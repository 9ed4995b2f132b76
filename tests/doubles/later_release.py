"""Facts that only a later release can have written."""

from __future__ import annotations

from dataclasses import replace

from runfacts import Ledger
from runfacts.domain.facts import decode_payload
from runfacts.domain.history import History
from runfacts.infrastructure.stores.facts import read_facts
from runfacts.infrastructure.stores.writes import Before, write


def append(ledger: Ledger, run_id: str, type_name: str, text: str, *, version: int = 1) -> None:
    """Append a fact of any type to a Run, hashed and counted as every fact is."""
    with ledger.database.transaction() as transaction:
        recorded = read_facts(transaction, run_id)
        history = History.of(recorded)
        before = Before.of(history)
        unhashed = replace(
            recorded[-1],
            sequence=history.version + 1,
            type=type_name,
            schema_version=version,
            payload=decode_payload(type_name, version, text),
            payload_text=text,
            attempt_id=None,
            dedupe_key=None,
            aggregate_id=run_id,
            aggregate_version=history.run.version + 1,
            position=None,
        )
        fact = replace(unhashed, hash=unhashed.computed_hash(history.head_hash))
        history.take(fact)
        write(transaction, before, history, (fact,), ())
