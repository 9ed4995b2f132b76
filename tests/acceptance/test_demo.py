"""The demo shows what it promises, and what it printed can be read again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from process_watch import marked_environment
from told import apart, environment

ENDS = {"run.succeeded", "run.failed", "run.cancelled"}
DEMO = Path(__file__).parents[2] / "scripts" / "demo_runs.py"


def test_the_demo_turns_out_as_promised_and_leaves_a_ledger_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "the demo"
    with marked_environment() as marked:
        shown = subprocess.run(
            [sys.executable, str(DEMO), "--into", str(folder)],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (shown.returncode, shown.stderr) == (0, "")
        assert not marked.living()
    assert "Verified 7 runs and 75 facts: nothing differs." in shown.stdout
    again = apart("audit", "--json", url=f"sqlite:///{folder}/ledger.db")
    facts = [json.loads(line) for line in again.out.splitlines()]
    assert len(facts) == 75
    for fact in facts:
        assert fact["run_id"] in shown.stdout
        assert fact["type"] in shown.stdout
    ends = [(fact["type"], fact["payload"]) for fact in facts if fact["type"] in ENDS]
    assert ends == [
        ("run.succeeded", {"exit_code": 0}),
        ("run.failed", {"exit_code": 7}),
        ("run.failed", {"signal": 15}),
        ("run.failed", {"exit_code": 3}),
        ("run.succeeded", {"exit_code": 0}),
        ("run.cancelled", {"reason": "user", "observed": "failed", "signal": 15}),
        ("run.succeeded", {"exit_code": 0}),
    ]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    shown = subprocess.run(
        [sys.executable, str(DEMO), "--into", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (shown.returncode, [file.name for file in tmp_path.iterdir()]) == (2, ["mine"])
