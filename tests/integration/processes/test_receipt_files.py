"""R10.2: receipts as files: what is believed, what is set aside, and what is collected."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from journal_ledger import JournalLedger
from runfacts.domain.actors import Actor
from runfacts.domain.answers import AttemptClaim, Claimed
from runfacts.domain.errors import DatabaseCorrupt, MalformedId
from runfacts.infrastructure.processes.collect import CollectedReceipts, collect_receipts
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import Places, UnsafePlace, state_directory
from runfacts.infrastructure.processes.receipts import Receipt, Unbelievable, keeper_lock_held, read_receipt

ACTOR = Actor.worker("w")
RUN = "019316d5-0000-7000-8000-000000000001"
ATTEMPT = "019316d5-0000-7000-8000-000000000002"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A place for receipts."""
    places = Places.beside_file(tmp_path / "ledger.db")
    places.make()
    return places


@pytest.fixture
def ledger(tmp_path: Path) -> JournalLedger:
    """A ledger that notes what it is asked."""
    return JournalLedger(tmp_path / "journal")


def receipt_text(run_id: str = RUN, attempt_id: str = ATTEMPT, token: str = "rft_the-token", **change: object) -> str:  # noqa: S107 - no secret
    return json.dumps(
        {
            "version": 1,
            "run_id": run_id,
            "attempt_id": attempt_id,
            "sequence": 2147483647,
            "token": token,
            "started_at_ms": 1,
            "ended_at_ms": 2,
            "exit_code": 7,
            "signal": None,
            "not_executed": None,
            "group_left": False,
        }
        | change
    )


def running(ledger: JournalLedger, places: Places, run_id: str = RUN) -> AttemptClaim:
    """Bring an attempt to running."""
    scope = MachineIdentity.of_this_process().scope
    claimed = ledger.claim(run_id, actor=ACTOR, executor_type="local", gated=True, scope=scope)
    assert isinstance(claimed, Claimed)
    ledger.start(claimed.claim, actor=ACTOR, receipt_path=places.of(claimed.claim.attempt_id).receipt)
    ledger.running(claimed.claim, actor=ACTOR, handle="{}", pid=1)
    return claimed.claim


def leave(places: Places, claim: AttemptClaim, **change: object) -> Path:
    """Leave an attempt's receipt."""
    path = Path(places.of(claim.attempt_id).receipt)
    path.write_text(receipt_text(claim.run_id, claim.attempt_id, **({"token": claim.callback_token} | change)))  # type: ignore[arg-type]  # changes of any field
    return path


def collect(ledger: JournalLedger, places: Places) -> CollectedReceipts:
    return collect_receipts(ledger, machine=MachineIdentity.of_this_process(), places=places, actor=ACTOR)


def test_a_receipt_is_read_as_it_was_left(places: Places) -> None:
    path = places.of(ATTEMPT).receipt
    assert read_receipt(path, run_id=RUN, attempt_id=ATTEMPT) is None
    Path(path).write_text(receipt_text())
    receipt = read_receipt(path, run_id=RUN, attempt_id=ATTEMPT)
    assert isinstance(receipt, Receipt)
    assert (receipt.exit_code, receipt.token) == (7, "rft_the-token")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "no JSON",
        receipt_text()[:-1],
        receipt_text(more=1),
        receipt_text() + " " * 4_096,
        receipt_text(exit_code="7"),
    ],
)
def test_a_malformed_receipt_is_set_aside_once(places: Places, text: str) -> None:
    path = Path(places.of(ATTEMPT).receipt)
    path.write_text(text)
    aside = read_receipt(str(path), run_id=RUN, attempt_id=ATTEMPT)
    assert isinstance(aside, Unbelievable)
    assert Path(aside.path).read_text() == text
    assert aside.path == f"{path}.quarantined"
    assert read_receipt(str(path), run_id=RUN, attempt_id=ATTEMPT) is None


@pytest.mark.parametrize(("run_id", "attempt_id"), [(ATTEMPT, ATTEMPT), (RUN, RUN)])
def test_a_foreign_receipt_is_set_aside(places: Places, run_id: str, attempt_id: str) -> None:
    path = Path(places.of(ATTEMPT).receipt)
    path.write_text(receipt_text(run_id, attempt_id))
    assert isinstance(read_receipt(str(path), run_id=RUN, attempt_id=ATTEMPT), Unbelievable)


def test_what_is_no_regular_file_is_neither_followed_nor_waited_for(places: Places, tmp_path: Path) -> None:
    path = Path(places.of(ATTEMPT).receipt)
    (tmp_path / "elsewhere").write_text(receipt_text())
    path.symlink_to(tmp_path / "elsewhere")
    assert isinstance(read_receipt(str(path), run_id=RUN, attempt_id=ATTEMPT), Unbelievable)
    os.mkfifo(path)
    assert isinstance(read_receipt(str(path), run_id=RUN, attempt_id=ATTEMPT), Unbelievable)
    path.mkdir()
    Path(f"{path}.quarantined").unlink()
    assert isinstance(read_receipt(str(path), run_id=RUN, attempt_id=ATTEMPT), Unbelievable)


def test_a_lock_is_seen_without_being_taken(places: Places) -> None:
    path = places.of(ATTEMPT).lock
    assert not keeper_lock_held(path)
    with Path(path).open("w") as file:
        assert not keeper_lock_held(path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert keeper_lock_held(path)
        assert keeper_lock_held(path)
    assert not keeper_lock_held(path)


def test_every_receipt_is_collected_once(ledger: JournalLedger, places: Places) -> None:
    claims = [running(ledger, places, f"019316d5-0000-7000-8000-00000000001{number}") for number in range(5)]
    for claim in claims[:3]:
        leave(places, claim)
    assert collect(ledger, places) == CollectedReceipts(found=3, recorded=3)
    assert collect(ledger, places) == CollectedReceipts()
    statuses = [ledger.attempts()[claim.attempt_id]["status"] for claim in claims]
    assert statuses == ["failed"] * 3 + ["running"] * 2
    assert list(places.receipts()) == []


def test_a_receipt_recorded_by_a_host_that_was_killed_then_is_only_removed(
    ledger: JournalLedger, places: Places
) -> None:
    claim = running(ledger, places)
    path = leave(places, claim)
    text = path.read_text()
    collect(ledger, places)
    path.write_text(text)
    assert collect(ledger, places) == CollectedReceipts(found=1, repeated=1)
    assert not path.exists()


def test_a_receipt_of_an_attempt_that_ended_otherwise_is_noted_as_late(ledger: JournalLedger, places: Places) -> None:
    claim = running(ledger, places)
    leave(places, claim)
    ledger._append(op="lost", attempt_id=claim.attempt_id, status="lost")
    assert collect(ledger, places) == CollectedReceipts(found=1, late=1)


def test_a_receipt_with_another_token_is_set_aside(ledger: JournalLedger, places: Places) -> None:
    claim = running(ledger, places)
    path = leave(places, claim, token="rft_guessed")
    assert collect(ledger, places) == CollectedReceipts(found=1, quarantined=1)
    assert Path(f"{path}.quarantined").exists()
    assert ledger.attempts()[claim.attempt_id]["status"] == "running"
    assert collect(ledger, places) == CollectedReceipts()


def test_receipts_that_the_ledger_knows_nothing_of_are_set_aside(ledger: JournalLedger, places: Places) -> None:
    Path(places.of(ATTEMPT).receipt).write_text(receipt_text())
    (Path(places.directory) / "readme.receipt").write_text("what is this?")
    assert collect(ledger, places) == CollectedReceipts(found=2, quarantined=2)


def test_receipts_in_another_directory_are_found_through_the_ledger(
    ledger: JournalLedger, places: Places, tmp_path: Path
) -> None:
    before = Places(str(tmp_path / "before"))
    before.make()
    leave(before, running(ledger, before))
    assert collect(ledger, places) == CollectedReceipts(found=1, recorded=1)


def test_with_an_intent_a_group_that_lived_on_keeps_the_receipt(ledger: JournalLedger, places: Places) -> None:
    claim = running(ledger, places)
    path = leave(places, claim, group_left=True)
    ledger.cancel(RUN)
    assert collect(ledger, places) == CollectedReceipts(found=1, kept=1)
    assert path.exists()
    assert ledger.attempts()[claim.attempt_id]["status"] == "running"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_a_receipt_that_cannot_be_read_now_stays_for_a_later_look(
    ledger: JournalLedger, places: Places, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    claim = running(ledger, places)
    path = leave(places, claim)

    opened = os.open

    def refused(name: str, *options: Any) -> int:  # noqa: ANN401 - passed on
        if name == str(path):
            raise OSError(code, os.strerror(code))
        return opened(name, *options)

    with monkeypatch.context() as patched:
        patched.setattr("runfacts.infrastructure.processes.receipts.os.open", refused)
        with pytest.raises(OSError, match=os.strerror(code)):
            read_receipt(str(path), attempt_id=claim.attempt_id)
        assert collect(ledger, places) == CollectedReceipts(found=1, kept=1)
    assert collect(ledger, places) == CollectedReceipts(found=1, recorded=1)


def test_a_run_that_cannot_be_understood_keeps_its_receipt_and_holds_up_no_other(
    ledger: JournalLedger, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = running(ledger, places), running(ledger, places, ATTEMPT)
    paths = [leave(places, claim) for claim in (first, second)]
    finish = ledger.finish

    def damaged(claim: AttemptClaim, *arguments: Any, **given: Any) -> object:  # noqa: ANN401 - passed on
        if claim.attempt_id == first.attempt_id:
            raise DatabaseCorrupt("what is recorded makes no history")
        return finish(claim, *arguments, **given)

    monkeypatch.setattr(ledger, "finish", damaged)
    assert collect(ledger, places) == CollectedReceipts(found=2, recorded=1, kept=1)
    assert [path.exists() for path in paths] == [True, False]


def test_a_place_is_the_owners_alone(tmp_path: Path) -> None:
    places = Places.beside_file(tmp_path / "deep/er/ledger.db")
    places.make()
    assert places.directory == f"{tmp_path}/deep/er/ledger.db.runs"
    directory = Path(places.directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o755)
    places.make()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_place_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "file/below"):
        with pytest.raises(UnsafePlace):
            Places(str(tmp_path / name)).make()


def test_a_ledger_on_a_server_has_its_place_in_the_state_directory(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    one = Places.in_state_directory("postgresql://host/db", environment)
    assert one.directory.startswith(f"{tmp_path}/runfacts/runs/")
    assert one == Places.in_state_directory("postgresql://host/db", environment)
    assert one != Places.in_state_directory("postgresql://host/other", environment)


def test_a_relative_state_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ana")
    assert state_directory({"XDG_STATE_HOME": "here"}) == "/home/ana/.local/state/runfacts"


def test_only_an_id_names_files(places: Places) -> None:
    with pytest.raises(MalformedId):
        places.of("../../etc/passwd")
    assert places.of(ATTEMPT.upper()) == places.of(ATTEMPT)


def test_only_what_a_killed_keeper_left_is_cleared_away(ledger: JournalLedger, places: Places) -> None:
    held, left = running(ledger, places), running(ledger, places, ATTEMPT)
    for claim in (held, left):
        Path(places.of(claim.attempt_id).receipt + ".new").write_text(" " * 4_096)
        Path(places.of(claim.attempt_id).lock).touch()
    with Path(places.of(held.attempt_id).lock).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert collect(ledger, places) == CollectedReceipts()
        names = sorted(path.name for path in Path(places.directory).iterdir())
    assert names == [f"{held.attempt_id}.lock", f"{held.attempt_id}.receipt.new"]


def test_a_receipt_that_cannot_be_set_aside_keeps_no_other_from_its_turn(ledger: JournalLedger, places: Places) -> None:
    for name in ("a", ATTEMPT):
        stranger = Path(places.directory, f"{name}.receipt")
        stranger.mkdir()
        Path(f"{stranger}.quarantined").mkdir()
        Path(f"{stranger}.quarantined", "full").touch()
    unknown = leave(places, AttemptClaim(RUN, "00000000-0000-7000-8000-000000000001", 1, "", "rft_the-token"))
    Path(f"{unknown}.quarantined").mkdir()
    claim = running(ledger, places)
    leave(places, claim)
    assert collect(ledger, places) == CollectedReceipts(found=4, recorded=1, kept=3)
    assert collect(ledger, places) == CollectedReceipts(found=3, kept=3)


def test_what_no_keeper_left_is_not_waited_for_and_keeps_nothing_else_from_being_cleared_away(
    ledger: JournalLedger, places: Places
) -> None:
    for name in ("a-link", "b-pipe", "c-folder", "d-left"):
        Path(places.directory, f"{name}.receipt.new").touch()
    Path(places.directory, "a-link.lock").symlink_to("nothing")
    os.mkfifo(Path(places.directory, "b-pipe.lock"))
    Path(places.directory, "c-folder.receipt.new").unlink()
    Path(places.directory, "c-folder.receipt.new").mkdir()
    assert collect(ledger, places) == CollectedReceipts()
    names = {path.name for path in Path(places.directory).iterdir()}
    assert names == {"a-link.lock", "a-link.receipt.new", "c-folder.receipt.new"}


def test_an_end_is_recorded_though_its_receipt_cannot_be_removed(
    ledger: JournalLedger, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = running(ledger, places)
    path = leave(places, claim)

    def refused(_path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr("runfacts.infrastructure.processes.completion.os.unlink", refused)
        assert collect(ledger, places) == CollectedReceipts(found=1, recorded=1)
        assert collect(ledger, places) == CollectedReceipts(found=1, repeated=1)
    assert path.exists()
    assert collect(ledger, places) == CollectedReceipts(found=1, repeated=1)
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_believes_the_receipts_of_whoever_owns_the_directory_and_of_nobody_else(places: Places) -> None:
    files = places.of(ATTEMPT)
    receipt = Path(files.receipt)
    receipt.write_text(receipt_text())
    os.chown(receipt.parent, 65_534, 65_534)
    os.chown(receipt, 65_534, 65_534)
    assert isinstance(read_receipt(files.receipt, run_id=RUN, attempt_id=ATTEMPT), Receipt)
    os.chown(receipt, 0, 0)
    assert isinstance(read_receipt(files.receipt, run_id=RUN, attempt_id=ATTEMPT), Unbelievable)
