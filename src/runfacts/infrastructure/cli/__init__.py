"""
The command ``runfacts``.

``main`` is its entry point. One module per command; ``program`` puts them together and is the one place where an
error becomes a line, an object and an exit code. What a command does not need is not loaded: a process starts for
each call.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of SIGINT."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code; ``arguments`` are those of the process when left out."""
    try:
        from runfacts.infrastructure.cli.program import run
    except ModuleNotFoundError as missing:
        if missing.name not in {"click", "rich"}:
            raise
        print("runfacts: the command needs its extra: pip install 'runfacts[cli]'", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return run(sys.argv[1:] if arguments is None else arguments)
