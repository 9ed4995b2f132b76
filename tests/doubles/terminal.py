"""
A shell for the examples of the guide: it keeps variables, jobs and the folder from one command to the next.

What a page shows is compared with what is printed: ``…`` stands for anything within a line, and alone on a line for any
number of lines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_END: Final = "\x1eend of output\x1e"


class Terminal:
    """One shell, in one folder; stdout and stderr come together, as on a terminal."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._command = folder.parent / f"{folder.name}.command"
        self._shell = subprocess.Popen(
            # Not one of the session: what it starts must not hear of a Ctrl-C in the terminal of the tests.
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            encoding="utf-8",
            start_new_session=True,
        )
        # Jobs get groups of their own, so that SIGINT means to them what it means at a terminal.
        self.run("set -m")

    def run(self, command: str) -> str:
        """Run a command line in the foreground; what it printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        # From a file: what the command reads from its stdin must not be the next command.
        self._command.write_text(f"{command}\n")
        self._shell.stdin.write(f". '{self._command}' </dev/null; (exit $?); __s=$?; echo '{_END}'; (exit $__s)\n")
        self._shell.stdin.flush()
        lines: list[str] = []
        for line in self._shell.stdout:
            if line.rstrip("\n").endswith(_END):
                lines.append(line.rstrip("\n").removesuffix(_END))
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell ended: {''.join(lines)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            left = self.run("jobs -r")
            assert left == "", f"the page leaves running: {left}"
        # A page that failed half-way has jobs; they are this shell's own.
        assert self._shell.stdin is not None
        self._shell.stdin.write("kill -9 $(jobs -p) 2>/dev/null; exit\n")
        self._shell.stdin.close()
        self._shell.wait(timeout=30)
        assert self._shell.stdout is not None
        self._shell.stdout.close()
        self._command.unlink(missing_ok=True)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Give each command of a console block, with the output that the page shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE):
        command, _, shown = part.partition("\n")
        if command:
            yield command, shown


def is_shown(shown: str, printed: str) -> bool:
    """Whether what was printed is what the page shows."""
    pattern = ""
    for line in shown.splitlines():
        pattern += r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.rstrip().split("…"))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed.splitlines())) is not None
