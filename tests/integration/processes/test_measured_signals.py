"""Signals to a local process group are counted by kind, each once however many members it has (R7.7, R8.6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from measured import Measured
from runfacts.domain.cancellation.controllers import OutOfTime
from runfacts.domain.measures import SIGNALS
from runfacts.infrastructure.processes.local_controller import LocalController
from stop_scene import StopScene, TimeIs


@pytest.fixture
def measured() -> Iterator[Measured]:
    """Measures in memory."""
    measured = Measured()
    yield measured
    measured.close()


def test_a_tree_that_ignores_term_is_counted_as_one_term_and_one_kill(
    scene: StopScene, measured: Measured, *, by_group: bool
) -> None:
    leader = scene.start_tree(
        f"{scene.shell_logging('child', 'stays')} &",
        f"exec {scene.shell_logging('leader', 'stays')}",
        logs=("child", "leader"),
    )
    controller = LocalController(scene.machine, grace_ms=100, group_signals=by_group, measures=measured.measures)
    target = scene.target(scene.handle(leader))
    controller.stop(target, TimeIs())
    assert measured.counts(SIGNALS) == {"term": 1, "kill": 1}
    # Nobody is left, so nothing more is sent.
    controller.stop(target, TimeIs())
    assert measured.counts(SIGNALS) == {"term": 1, "kill": 1}


def test_without_time_nothing_is_sent_and_nothing_counted(scene: StopScene, measured: Measured) -> None:
    leader = scene.start_logging("log")
    controller = LocalController(scene.machine, measures=measured.measures)
    with pytest.raises(OutOfTime):
        controller.stop(scene.target(scene.handle(leader)), TimeIs(left_ms=0))
    assert measured.counts(SIGNALS) == {}
