"""``python -m runfacts.infrastructure.cli``: the command."""

from __future__ import annotations

import sys

from runfacts.infrastructure.cli import main

if __name__ == "__main__":
    sys.exit(main())
