"""The command ``runfacts`` in tests: in this process where that is enough, else in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-m", "runfacts")


@dataclass(frozen=True)
class Said:
    """What one call ended with and wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever a command writes
        """What stdout holds, as one object."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """What stdout holds, an object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def run_id(self) -> str:
        """The run that ``exec`` names first."""
        first = self.err.splitlines()[0]
        assert first.startswith("run ")
        return first.removeprefix("run ")


def refused(said: Said) -> tuple[int, str]:
    """Give the exit code and the code of the error of a call that was refused with ``--json``."""
    return said.code, said.json["error"]["code"]


class Told:
    """Calls the command in this process, on one database."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Said:
        """Call the command."""
        from runfacts.infrastructure.cli import main

        self._capture.readouterr()
        code = main(arguments)
        written = self._capture.readouterr()
        return Said(code, written.out, written.err)


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """Give this process's environment without anything that was set for other ledgers."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RUNFACTS_") or "TEST" in name}
    return own | ({} if url is None else {"RUNFACTS_DB": url}) | more


def apart(
    *arguments: str,
    url: str | None = None,
    prefix: tuple[str, ...] = (),
    stdin: str | None = None,
    more: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Said:
    """Call the command in a process of its own; ``prefix`` is what starts it."""
    ended = subprocess.run(
        [*prefix, *COMMAND, *arguments],
        env=environment(url, **(more or {})),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    return Said(ended.returncode, ended.stdout, ended.stderr)
