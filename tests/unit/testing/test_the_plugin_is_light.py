"""pytest loads the plugin for everybody who has the package: it must cost next to nothing (R14.3)."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"alembic", "eventsourcing", "freezegun", "psycopg", "pydantic", "sqlalchemy", "uuid_utils"}


def test_loading_the_plugin_loads_nothing_that_is_slow_to_load() -> None:
    program = "import sys, runfacts.testing.plugin; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    loaded = set(ended.stdout.split())
    assert "pytest" in loaded
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("runfacts.")} == {
        "runfacts.testing",
        "runfacts.testing.clock",
        "runfacts.testing.plugin",
    }


def test_the_kit_without_fixtures_needs_no_pytest() -> None:
    program = (
        "import sys\n"
        "import runfacts.testing.given_when_then, runfacts.testing.ledgers, runfacts.testing.steps\n"
        "assert 'pytest' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
