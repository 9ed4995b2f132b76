"""
Arguments of a wrong type: every public method of the ledger names the one that is wrong, before it does anything.

The table of wrong values is written by hand for each kind of argument; the methods and their arguments are those that
the class has, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import inspect
import io
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from runfacts import (
    Actor,
    CancelRequested,
    Duty,
    InvalidValue,
    Ledger,
    MalformedUrl,
    Outcome,
    Recorded,
    RetryPolicy,
    RunfactsError,
)
from runfacts.domain.answers import AttemptClaim
from runfacts.domain.cancellation.terms import Cursor, DispatchClaimed
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import RecoveryClaimed
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.infrastructure.api.arguments import KINDS, KINDS_OF_ONE_METHOD, checks_arguments
from runfacts.infrastructure.processes.local_controller import LocalController

ANA = Actor.user("ana")
NOBODY = str(uuid.UUID(int=0))
METHODS = {name: method for name, method in inspect.getmembers(Ledger, inspect.isroutine) if not name.startswith("_")}
ARGUMENTS = sorted(
    (name, parameter.name)
    for name, method in METHODS.items()
    for parameter in inspect.signature(method).parameters.values()
    if parameter.name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
)


def unmade(kind: type) -> Any:  # noqa: ANN401 - of that type
    """Give an object of a type of which nothing but the type is looked at."""
    return object.__new__(kind)


RIGHT: dict[str, Any] = {
    "actor": ANA,
    "archive": io.BytesIO(),
    "argv": ["true"],
    "attempt_id": NOBODY,
    "because": "so",
    "claim": unmade(AttemptClaim),
    "claims": (),
    "evidence": Evidence.NOT_RUNNING,
    "executor_type": "mine",
    "heads": (),
    "limit": 1,
    "outcome": Outcome.succeeded(),
    "owner": "w-1",
    "projection": "statistics",
    "provider_type": "mine",
    "purpose": "recovery",
    "requested_at_ms": 1,
    "result": "invalid",
    "run_id": NOBODY,
    "scope": "here",
    "served": frozenset({("mine", "here")}),
    "snapshot": unmade(Snapshot),
    "task": "t",
    "url": "sqlite:///never-made.db",
    "version": 1,
}
"""A value for each argument that some method must be given."""
RIGHT_OF_ONE_METHOD: dict[tuple[str, str], Any] = {
    **{key: unmade(RecoveryClaimed) for key in KINDS_OF_ONE_METHOD if key[1] == "claim"},
    ("settle_dispatch", "claim"): unmade(DispatchClaimed),
}


class TooLittle:
    """Has a part of every port."""

    executor_type = "mine"

    def wall_ms(self) -> int:
        """See ``Clock``."""
        return 0

    def record(self) -> None:
        """See ``Measures``."""


TEXT, NUMBER, FLAG, LIST, FUNCTION = (5, b"x", ["x"]), ("5", 5.0, True), ("yes", 1, 0), (5, "x", [object()]), ("x", 5)
OBJECT, WORD, PORT, PORTS = ("x", 5, Actor), ("no such word", 5), ("x", TooLittle()), (5, "x", [TooLittle()], [5])
TEXTS = """
    actor_id because causation_id correlation_id cwd dedupe_key executor_type handle idempotency_key log_path
    machine_id owner project provider_type reason receipt_path scope task worker_id
"""
NUMBERS = """
    at_ms concurrency cutoff_ms deadline_at_ms delay_ms expected_version interval_ms lease_ms limit pid
    requested_at_ms retry_in_ms sequence since_ms timeout_ms until_ms version
"""
FLAGS = """
    as_archive create create_directory failed force gate gated group_left local queue unfinished
"""
WORDS = """
    by escalation evidence execution_owner kind manual projection purpose result
"""
WRONG: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(TEXTS.split(), TEXT),
    **dict.fromkeys(NUMBERS.split(), NUMBER),
    **dict.fromkeys(FLAGS.split(), FLAG),
    **dict.fromkeys(("attempt_id", "retry_of_run_id", "run_id"), (5, b"x", ["x"])),
    **dict.fromkeys(("actor", "claim", "command", "outcome", "policy", "settings", "snapshot"), OBJECT),
    **dict.fromkeys(WORDS.split(), WORD),
    **dict.fromkeys(("on_cycle", "on_diagnostic", "progress", "stopping"), FUNCTION),
    **dict.fromkeys(("clock", "measures", "provider", "steps"), (*PORT, TooLittle)),
    **dict.fromkeys(("controllers", "providers"), (*PORTS, [LocalController])),
    **dict.fromkeys(("claims", "heads", "run_ids"), LIST),
    "after": (5, ["x"]),
    "archive": ("x", 5, io.StringIO(), io.BytesIO),
    "argv": (5, [5], ["true", None]),
    "connection": ("x", 5, create_engine("sqlite://"), Session),
    "duties": (5, "cancellation", ["no such duty"], [5]),
    "served": (5, "x", [("mine", "here", "x")], [("mine", 5)], {"mine": "here"}),
    "status": (5, [5]),
    "types": (5, [5]),
    "url": (5, Path("ledger.db")),
}
"""For each argument values that it cannot be; besides, none can be an ``object()``."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """A ledger for all, since nothing is to be written."""
    with Ledger.open(f"sqlite:///{tmp_path_factory.mktemp('wrong')}/ledger.db") as made:
        yield made


def asked(ledger: Ledger, method: str, arguments: dict[str, object]) -> None:
    """Call a method, and take all that it answers."""
    answer = getattr(ledger, method)(**arguments)
    if isinstance(answer, Iterator):
        list(answer)


def right(method: str, name: str) -> object:
    return RIGHT_OF_ONE_METHOD.get((method, name), RIGHT[name])


def required(method: str) -> dict[str, object]:
    return {
        parameter.name: right(method, parameter.name)
        for parameter in inspect.signature(METHODS[method]).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.name != "self"
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


@pytest.mark.parametrize(("method", "name"), ARGUMENTS, ids=[f"{method}-{name}" for method, name in ARGUMENTS])
def test_an_argument_of_a_wrong_type_is_named(ledger: Ledger, method: str, name: str) -> None:
    for value in (object(), *WRONG[name]):
        with pytest.raises((RunfactsError, TypeError)) as caught:
            asked(ledger, method, required(method) | {name: value})
        assert name in str(caught.value), repr(value)
        assert "\n" not in str(caught.value)
    assert ledger.runs().items == ()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_must_be_given_cannot_be_left_out_or_none(ledger: Ledger, method: str) -> None:
    for name in required(method):
        rest = required(method)
        del rest[name]
        with pytest.raises(TypeError, match=name):
            getattr(ledger, method)(**rest)
        may_be_none = "None" in str(inspect.signature(METHODS[method]).parameters[name].annotation)
        if not may_be_none:
            with pytest.raises(RunfactsError, match=name):
                getattr(ledger, method)(**(rest | {name: None}))


def test_what_is_too_much_is_said_by_python(ledger: Ledger) -> None:
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        ledger.run(NOBODY, NOBODY)  # type: ignore[call-arg] # that is the point
    with pytest.raises(TypeError, match="unexpected keyword argument 'lease'"):
        ledger.claim(NOBODY, actor=ANA, executor_type="mine", lease=5)  # type: ignore[call-arg] # as before


_NO_CONTROLLER = (
    "controllers is no ExecutionController, but of type object: it has no executor_type, scopes, worst_case_ms, stop"
)


def test_the_words_say_what_was_given_and_never_show_it(ledger: Ledger) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ledger.create(actor="ana", task="t"), "actor is not an Actor, but of type str"),  # type: ignore[arg-type]
        (
            lambda: ledger.claim(NOBODY, actor=ANA, executor_type="mine", lease_ms="secret"),  # type: ignore[arg-type]
            "lease_ms is not a whole number, but of type str",
        ),
        (
            lambda: ledger.supervise(controllers=[object()]),  # type: ignore[list-item]
            _NO_CONTROLLER,
        ),
        (
            lambda: ledger.supervise(providers=[object()]),  # type: ignore[list-item]
            "providers is no EvidenceProvider, but of type object: it has no executor_type, required, inspect",
        ),
        (
            lambda: ledger.work(controllers=[LocalController]),  # type: ignore[list-item]
            "controllers is the class LocalController, not an object of it",
        ),
        (lambda: ledger.export_runs("ab"), "run_ids is not a list, but of type str"),
        (lambda: ledger.rebuild("all"), "projection is none of statistics, stop_proof"),
    ]
    for call, words in calls:
        with pytest.raises(InvalidValue) as caught:
            call()
        assert str(caught.value) == words


def test_a_path_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(MalformedUrl, match=r"url is not a text such as sqlite:///runs\.db, but of type PosixPath"):
        Ledger.open(tmp_path / "ledger.db")  # type: ignore[arg-type] # that is the point
    assert list(tmp_path.iterdir()) == []


def test_what_is_right_goes_through(tmp_path: Path) -> None:
    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        _call_rightly(ledger)


def _call_rightly(ledger: Ledger) -> None:
    run = ledger.create(actor=ANA, task="t", policy=RetryPolicy(), retry_of_run_id=None).run
    assert ledger.run(run.run_id) == ledger.run(run_id=uuid.UUID(run.run_id))  # type: ignore[arg-type] # taken, too
    assert [item.run_id for item in ledger.runs(status="created").items] == [run.run_id]  # type: ignore[arg-type]
    assert ledger.supervise(controllers=iter(()), duties=(Duty(name) for name in ("retry", "stop"))).cycle().failed == 0
    assert ledger.due_dispatches((), after=Cursor(0, NOBODY), limit=1)[0].items == ()
    with Session(ledger.database.engine) as session:
        assert isinstance(ledger.queue(run.run_id, actor=ANA, connection=session), Recorded)
        session.commit()
    sessions = scoped_session(sessionmaker(ledger.database.engine))
    asked_to_stop = ledger.request_cancellation(run.run_id, actor=ANA, connection=sessions)  # type: ignore[arg-type]
    assert isinstance(asked_to_stop, CancelRequested)
    sessions.commit()
    sessions.remove()


def test_a_method_with_an_argument_of_no_kind_cannot_be_made() -> None:
    class Ledgerlike:
        def forget(self, everything: bool) -> None:  # noqa: FBT001 - that is the point
            """Never made."""

    with pytest.raises(KeyError, match="everything"):
        checks_arguments(Ledgerlike)


def test_every_kind_is_some_method_s() -> None:
    names = {name for _, name in ARGUMENTS}
    assert set(KINDS) - names == set()
    assert set(KINDS_OF_ONE_METHOD) - set(ARGUMENTS) == set()
