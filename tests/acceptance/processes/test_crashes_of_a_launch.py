"""
R10.1, R10.2: kill -9 of the host, of the keeper and of both at every named step of a launch, with real processes.

Whatever is killed, and whenever: a process that runs the command has its handle committed before, the command runs
at most once, and no other end is ever recorded than the command's own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash_scene import EXIT_CODE, Scene
from process_watch import DEADLINE_S, kill, marked_environment, state_of, stopped_at, wait_until
from runfacts import Ledger
from runfacts.domain.actors import Actor
from runfacts.infrastructure.processes.collect import CollectedReceipts
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.testing.steps import RecordedSteps

BEFORE_THE_GATE = [
    f"launch:{when}:{what}" for what in ("start", "keeper", "running") for when in ("before", "after")
] + ["launch:before:gate"]
AFTER_THE_GATE = ["launch:after:gate"] + [
    f"launch:{when}:{what}" for what in ("finish", "receipt-removed") for when in ("before", "after")
]
BEFORE_THE_FORK = ["keeper:before:lock", "keeper:after:lock", "keeper:before:fork"]
AT_THE_GATE = ["child:before:report", "child:before:gate"]
PAST_THE_GATE = ["child:after:gate", "child:before:exec"]
COMMAND_RUNS = ["keeper:after:exec", "keeper:before:reap", "keeper:before:publish"]
KEEPER_STEPS = [
    *BEFORE_THE_FORK, "keeper:after:fork", *AT_THE_GATE, *PAST_THE_GATE, *COMMAND_RUNS, "keeper:after:publish",
]  # fmt: skip
pytestmark = pytest.mark.parametrize(
    "database_url",
    [
        "sqlite",
        pytest.param("postgresql-16", marks=pytest.mark.long),
        pytest.param("postgresql-18", marks=pytest.mark.long),
    ],
    indirect=True,
)


@pytest.fixture
def scene(tmp_path: Path, database_url: str) -> Iterator[Scene]:
    """A run that is hosted by a process of its own."""
    with marked_environment() as marked:
        scene = Scene(tmp_path / "scene", database_url, marked)
        yield scene
        scene.end()


def test_without_a_crash_the_command_runs_once_and_its_end_is_recorded(scene: Scene) -> None:
    scene.begin()
    assert scene.said() == {"type": "Ended", "exit_code": EXIT_CODE, "signal": None}
    assert scene.settle() == CollectedReceipts()
    assert scene.runs() == ["recorded"]


@pytest.mark.parametrize("step", BEFORE_THE_GATE)
def test_a_host_killed_before_the_gate_lets_nothing_run(scene: Scene, step: str) -> None:
    scene.begin(kill_at=[step, 1])
    scene.host_is_killed()
    assert scene.settle() == CollectedReceipts()
    assert scene.runs() == []
    assert scene.attempt().status in {"claimed", "starting", "running"}


@pytest.mark.parametrize("step", AFTER_THE_GATE)
def test_a_host_killed_after_the_gate_leaves_an_end_that_still_arrives(scene: Scene, step: str) -> None:
    scene.begin(kill_at=[step, 1])
    scene.host_is_killed()
    collected = scene.settle()
    assert scene.runs() == ["recorded"]
    assert (scene.attempt().status, scene.attempt().exit_code) == ("failed", EXIT_CODE)
    was_recorded = step in {"launch:after:finish", "launch:before:receipt-removed", "launch:after:receipt-removed"}
    left = step != "launch:after:receipt-removed"
    assert collected == CollectedReceipts(
        found=int(left), recorded=int(not was_recorded), repeated=int(was_recorded and left)
    )


@pytest.mark.parametrize("step", BEFORE_THE_FORK + AT_THE_GATE)
def test_a_keeper_or_its_child_killed_before_the_gate_lets_nothing_run(scene: Scene, step: str) -> None:
    scene.begin(keeper_stops_at=[step])
    kill(stopped_at(scene.root / "steps", step))
    assert scene.said()["type"] == "NeverRan"
    scene.settle()
    assert scene.runs() == []
    assert scene.attempt().error_code in {"launch_failed", "gate_closed"}


@pytest.mark.parametrize("step", PAST_THE_GATE)
def test_a_child_killed_past_the_gate_lets_nothing_run(scene: Scene, step: str) -> None:
    scene.begin(keeper_stops_at=[step])
    kill(stopped_at(scene.root / "steps", step))
    said = scene.said()
    scene.settle()
    assert scene.runs() == []
    assert said["type"] == {"child:after:gate": "NeverRan", "child:before:exec": "Ended"}[step]


@pytest.mark.parametrize("step", ["keeper:after:fork", *COMMAND_RUNS])
def test_a_keeper_killed_under_a_living_host_loses_the_end_and_says_so(scene: Scene, step: str) -> None:
    scene.begin(keeper_stops_at=[step])
    kill(stopped_at(scene.root / "steps", step))
    said = scene.said()["type"]
    scene.settle()
    if step == "keeper:after:fork" and not scene.runs():
        assert said in {"NeverRan", "KeeperLost"}
    else:
        assert said == "KeeperLost"
        assert scene.runs() == ["recorded"]
        assert scene.attempt().status == "running"


def test_a_keeper_killed_after_the_receipt_was_published_loses_nothing(scene: Scene) -> None:
    scene.begin(keeper_stops_at=["keeper:after:publish"])
    kill(stopped_at(scene.root / "steps", "keeper:after:publish"))
    assert scene.said() == {"type": "Ended", "exit_code": EXIT_CODE, "signal": None}
    scene.settle()
    assert scene.runs() == ["recorded"]


@pytest.mark.parametrize("first", ["host", "keeper"])
@pytest.mark.parametrize("step", KEEPER_STEPS)
@pytest.mark.long
def test_both_killed_at_a_step_of_the_keeper(scene: Scene, step: str, first: str) -> None:
    host = scene.begin(keeper_stops_at=[step])
    stopped = stopped_at(scene.root / "steps", step)
    for pid in (host.pid, stopped) if first == "host" else (stopped, host.pid):
        kill(pid)
    host.communicate(timeout=DEADLINE_S)
    scene.settle()
    if step in BEFORE_THE_FORK + AT_THE_GATE + PAST_THE_GATE:
        assert scene.runs() == []
    elif step != "keeper:after:fork":
        assert scene.runs() == ["recorded"]
    if step in COMMAND_RUNS:
        assert scene.attempt().status == "running"
    if step == "keeper:after:publish":
        assert scene.attempt().exit_code == EXIT_CODE


@pytest.mark.parametrize("first", ["host", "keeper"])
@pytest.mark.parametrize("step", ["launch:before:running", "launch:after:running", "launch:before:gate"])
@pytest.mark.long
def test_both_killed_at_a_step_of_the_host(scene: Scene, step: str, first: str) -> None:
    host = scene.begin(pause_at=[step, 1])
    wait_until((scene.root / "host-step").exists, "the host is at its step")
    wait_until(lambda: state_of(host.pid) == "T", "the host is stopped")
    [keeper] = [pid for pid in scene.marked.living() if _parent(pid) == host.pid]
    for pid in (host.pid, keeper) if first == "host" else (keeper, host.pid):
        kill(pid)
    host.communicate(timeout=DEADLINE_S)
    assert scene.settle() == CollectedReceipts()
    assert scene.runs() == []


@pytest.mark.parametrize("step", ["launch:before:running", "launch:after:running", "launch:before:gate"])
def test_a_keeper_killed_while_the_host_pauses_lets_nothing_run(scene: Scene, step: str) -> None:
    host = scene.begin(pause_at=[step, 1])
    wait_until((scene.root / "host-step").exists, "the host is at its step")
    wait_until(lambda: state_of(host.pid) == "T", "the host is stopped")
    [keeper] = [pid for pid in scene.marked.living() if _parent(pid) == host.pid]
    kill(keeper)
    wait_until(lambda: scene.marked.living() == {host.pid}, "only the host is left")
    kill(host.pid, signal.SIGCONT)
    assert scene.said()["type"] == "NeverRan"
    scene.settle()
    assert scene.runs() == []


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_host_killed_at_any_step_whatever_its_statements_included(tmp_path: Path, database_url: str) -> None:
    steps = RecordedSteps()
    with marked_environment() as marked:
        scene = Scene(tmp_path / "whole", database_url, marked)
        with Ledger.open(database_url, steps=steps) as ledger:
            host = LocalHost(ledger, Launcher(ledger.machine(), steps=steps), ledger.places(), steps=steps)
            # Opening has steps of its own, which a killed host passes as well.
            host.run(scene.run_id, Command(scene.command), actor=Actor.executor("local"))
        scene.settle()
        assert "launch:before:gate" in steps.names
        for index, name in enumerate(steps.names):
            nth = steps.names[: index + 1].count(name)
            scene = Scene(tmp_path / str(index), database_url, marked)
            scene.begin(kill_at=[name, nth])
            scene.host_is_killed()
            scene.settle()
