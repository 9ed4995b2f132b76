"""One machine per SQLite file, and no network file system, until an operator adopts it (R5.2)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from runfacts.domain.errors import ForeignMachine, InvalidValue, SchemaTooOld
from runfacts.infrastructure.database import ownership
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import connect, migrate, open_database
from runfacts.infrastructure.database.statements import Statement

HERE = "machine-here"
THERE = "machine-there"
COUNT = Statement("count", {"sqlite": "SELECT count(*) FROM runs"})


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a SQLite ledger that belongs to this machine."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    open_database(url, machine_id=HERE).close()
    return url


def write(database: Database) -> None:
    with database.transaction():
        pass


def test_a_ledger_records_its_machine_and_opens_there_again(url: str) -> None:
    database = open_database(url, machine_id=HERE)
    assert ownership.owner(database) == HERE
    write(database)
    database.close()


@pytest.mark.parametrize("machine_id", [THERE, None])
def test_another_machine_may_read_it_and_not_write(url: str, machine_id: str | None) -> None:
    database = open_database(url, machine_id=machine_id)
    with pytest.raises(ForeignMachine, match="another machine"):
        write(database)
    with database.reading() as reading:
        assert reading.row(COUNT) == (0,)
    database.close()
    with pytest.raises(ForeignMachine):
        migrate(url, machine_id=machine_id)


def test_another_machine_does_not_upgrade_it(url: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "ledger.db")
    connection.execute("UPDATE runfacts_schema SET version_num = '0000'")
    connection.commit()
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runfacts.infrastructure.database.schema.REVISIONS", ("0000", "0001"))
        with pytest.raises(SchemaTooOld):
            open_database(url, machine_id=THERE)


def test_an_operator_adopts_a_ledger(url: str) -> None:
    assert migrate(url, machine_id=THERE, adopt=True).applied == ()
    database = open_database(url, machine_id=THERE)
    assert ownership.owner(database) == THERE
    write(database)
    database.close()
    database = open_database(url, machine_id=HERE)
    with pytest.raises(ForeignMachine):
        write(database)
    database.close()


def test_without_a_machine_a_ledger_is_bound_to_none_until_one_is_known(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    database = open_database(url)
    assert ownership.owner(database) is None
    write(database)
    database.close()
    database = open_database(url, machine_id=HERE)
    assert ownership.owner(database) == HERE
    database.close()


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make it look as if exactly that were mounted."""

    def mount(*lines: str) -> None:
        (tmp_path / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr(ownership, "MOUNTS", tmp_path / "mountinfo")

    return mount


ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_told_by_the_mount_that_a_path_lies_on(
    tmp_path: Path, mounted: Callable[..., None], kind: str
) -> None:
    mounted(
        ROOT,
        f"30 22 0:40 / {str(tmp_path / 'share').replace(' ', chr(92) + '040')} rw - {kind} server:/share rw",
        f"31 30 8:2 / {tmp_path / 'share' / 'local'} rw shared:2 master:1 - xfs /dev/sdb1 rw",
    )
    assert ownership.network_file_system(tmp_path / "share" / "deep" / "ledger.db") == kind
    assert ownership.network_file_system(tmp_path / "share" / "local" / "ledger.db") is None
    assert ownership.network_file_system(tmp_path / "shared.db") is None


def test_a_mount_point_with_a_space_and_a_mount_over_a_mount_are_understood(
    tmp_path: Path, mounted: Callable[..., None]
) -> None:
    point = str(tmp_path / "my share").replace(" ", "\\040")
    mounted(ROOT, f"30 22 0:40 / {point} rw - nfs a:/ rw", f"31 22 0:41 / {point} rw - ext4 b rw")
    assert ownership.network_file_system(tmp_path / "my share" / "ledger.db") is None
    mounted(ROOT, f"31 22 0:41 / {point} rw - ext4 b rw", f"30 22 0:40 / {point} rw - nfs a:/ rw")
    assert ownership.network_file_system(tmp_path / "my share" / "ledger.db") == "nfs"


def test_a_link_is_followed_to_where_the_file_really_lies(tmp_path: Path, mounted: Callable[..., None]) -> None:
    mounted(ROOT, f"30 22 0:40 / {tmp_path / 'share'} rw - nfs server:/share rw")
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")
    assert ownership.network_file_system(tmp_path / "link" / "ledger.db") == "nfs"


def test_a_ledger_on_a_network_is_refused_until_it_is_adopted(tmp_path: Path, mounted: Callable[..., None]) -> None:
    mounted(ROOT, f"30 22 0:40 / {tmp_path} rw - nfs4 server:/share rw")
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with pytest.raises(ForeignMachine, match="network file system \\(nfs4\\)"):
        open_database(url, machine_id=HERE)
    with pytest.raises(ForeignMachine):
        migrate(url, machine_id=HERE)
    assert [path.name for path in tmp_path.iterdir()] == ["mountinfo"]
    migrate(url, machine_id=HERE, adopt=True)
    database = open_database(url, machine_id=HERE)
    write(database)
    database.close()


def test_a_role_is_no_matter_of_a_sqlite_ledger(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="SQLite"):
        migrate(f"sqlite:///{tmp_path / 'ledger.db'}", app_role="app")
    assert list(tmp_path.iterdir()) == []


def test_adopting_is_no_matter_of_a_ledger_on_a_server() -> None:
    # Refused before anything is connected: nobody listens there.
    with pytest.raises(InvalidValue, match="adopt is for SQLite"):
        migrate("postgresql://127.0.0.1:1/ledger", adopt=True)


def test_connecting_alone_creates_nothing(tmp_path: Path) -> None:
    connect(f"sqlite:///{tmp_path / 'ledger.db'}", create=True).close()
    assert (tmp_path / "ledger.db").stat().st_size == 0
