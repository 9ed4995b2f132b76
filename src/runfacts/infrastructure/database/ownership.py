"""
One machine per SQLite file (R5.2).

Leases of a SQLite ledger are kept by this host's boot clock, and its locks and shared memory work on one host only.
So the file records the machine that it belongs to. Another machine, or a network file system, may read it but not
write, until an operator adopts it (``runfacts migrate --adopt``), knowing that nobody else uses it any more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sqlalchemy import bindparam, select
from sqlalchemy.dialects import sqlite

from runfacts.domain.errors import ForeignMachine
from runfacts.infrastructure.database import schema
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.engines import READING, sqlite_path
from runfacts.infrastructure.database.errors import translated
from runfacts.infrastructure.database.schema import MigrationReport
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import ledger_meta

MOUNTS: Final = Path("/proc/self/mountinfo")
MACHINE_ID: Final = "machine_id"
ADOPTED_FILE_SYSTEM: Final = "adopted_file_system"

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "coda",
            "gfs2",
            "glusterfs",
            "gpfs",
            "lustre",
            "ncpfs",
            "nfs",
            "nfs4",
            "ocfs2",
        ),
        *("orangefs", "prl_fs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
        *("fuse.ceph", "fuse.cephfs", "fuse.curlftpfs", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys"),
        *(
            "fuse.gvfsd-fuse",
            "fuse.juicefs",
            "fuse.mountpoint-s3",
            "fuse.rclone",
            "fuse.s3fs",
            "fuse.seaweedfs",
            "fuse.sshfs",
        ),
        *("fuse.vmhgfs-fuse",),
    }
)
"""Types of file systems that more than one machine can have mounted at the same time."""

_META: Final = Statement("ledger_meta", select(ledger_meta.c.value).where(ledger_meta.c.key == bindparam("key")))
_PUT: Final = Statement(
    "put_ledger_meta",
    (
        _insert := sqlite.insert(ledger_meta).values(key=bindparam("key"), value=bindparam("value"))
    ).on_conflict_do_update(index_elements=[ledger_meta.c.key], set_={"value": _insert.excluded.value}),
)


def open_file(database: Database, machine_id: str | None) -> None:
    """Bring the file's schema up to date and bind it to this machine; where that is refused, leave it readable."""
    refusal = foreign(database, machine_id)
    if refusal is not None:
        if not _has_ledger(database):
            raise refusal
        schema.check(database)
        database.refusal = refusal
        return
    schema.ensure(database)
    _record(database, machine_id)


def migrate_file(database: Database, machine_id: str | None, *, adopt: bool) -> MigrationReport:
    """Bring the file's schema up to date; with ``adopt`` make it this machine's first, else refuse a foreign one."""
    refusal = foreign(database, machine_id)
    if refusal is not None and not adopt:
        raise refusal
    report = schema.ensure(database)
    _record(database, machine_id, adopt=adopt)
    return report


def owner(database: Database) -> str | None:
    """Return the machine id that the file is bound to, or ``None``."""
    return _meta(database, MACHINE_ID)


def foreign(database: Database, machine_id: str | None) -> ForeignMachine | None:
    """Say why this machine must not write the file, or ``None`` where it may."""
    known = _has_ledger(database)
    recorded = _meta(database, MACHINE_ID) if known else None
    if recorded is not None and recorded != machine_id:
        return ForeignMachine("the ledger belongs to another machine; `runfacts migrate --adopt` makes it this one's")
    kind = network_file_system(sqlite_path(database.engine.url))
    adopted = _meta(database, ADOPTED_FILE_SYSTEM) if known else None
    return None if kind is None or kind == adopted else _on_network(kind)


def refuse_new_on_network(path: Path) -> None:
    """Refuse to make a file on a network file system (``ForeignMachine``), before it is made."""
    kind = None if os.path.exists(path) else network_file_system(path)  # noqa: PTH110 - see create_sqlite_file
    if kind is not None:
        raise _on_network(kind)


def _on_network(kind: str) -> ForeignMachine:
    return ForeignMachine(
        f"the ledger lies on a network file system ({kind}), where SQLite's locks cannot be trusted;"
        " `runfacts migrate --adopt` uses it all the same"
    )


def network_file_system(path: Path) -> str | None:
    """Return the type of the network file system that ``path`` lies on, or ``None``."""
    real = Path(os.path.realpath(path))
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    best: tuple[int, str] = (-1, "")
    for line in lines:
        fields, _, rest = line.partition(" - ")
        where = Path(_unescaped(fields.split(" ")[4]))
        # The later of two mounts on one point is the one that is seen.
        if real.is_relative_to(where) and len(where.parts) >= best[0]:
            best = (len(where.parts), rest.split(" ")[0])
    return best[1] if best[1] in NETWORK_FILE_SYSTEMS else None


def _unescaped(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _has_ledger(database: Database) -> bool:
    with translated(), database.engine.connect().execution_options(**{READING: True}) as connection:
        return schema.revision(connection) is not None


def _meta(database: Database, key: str) -> str | None:
    with database.reading() as reading:
        row = reading.row(_META, {"key": key})
    return None if row is None else str(row[0])


def _record(database: Database, machine_id: str | None, *, adopt: bool = False) -> None:
    wanted: dict[str, str] = {}
    if machine_id is not None and owner(database) != machine_id:
        wanted[MACHINE_ID] = machine_id
    kind = network_file_system(sqlite_path(database.engine.url)) if adopt else None
    if kind is not None and _meta(database, ADOPTED_FILE_SYSTEM) != kind:
        wanted[ADOPTED_FILE_SYSTEM] = kind
    if not wanted:
        return
    with database.transaction() as transaction:
        for key, value in wanted.items():
            transaction.run(_PUT, {"key": key, "value": value})
