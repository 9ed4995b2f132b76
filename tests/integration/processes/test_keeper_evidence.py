"""What an operator's verb looks at: the process, and whether its keeper holds its lock (R10.2, R13.2)."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Unknown
from runfacts.infrastructure.processes.keeper_evidence import KeeperEvidence
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from stop_scene import StopScene

UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Where the keeper's lock lies."""
    return tmp_path / "one.lock"


def look(scene: StopScene, target: EvidenceTarget) -> Evidence:
    """Look, with a receipt's path beside the lock."""
    path = str(scene.root / "one.receipt")
    provider = KeeperEvidence(LocalEvidence(scene.machine), scene.machine.scope, lambda _: path)
    return provider.inspect(target, timeout_ms=5_000, cancelled=threading.Event())


def ended(scene: StopScene) -> EvidenceTarget:
    """A command that has ended."""
    child = scene.start("sleep", "600")
    handle = scene.handle(child)
    child.kill()
    child.wait()
    return scene.asked(handle)


@contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold the lock as a keeper does."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_what_lives_is_running_whatever_its_keeper_does(scene: StopScene, lock: Path) -> None:
    target = scene.asked(scene.handle(scene.start("sleep", "600")))
    assert look(scene, target) == Evidence.running()
    lock.touch()
    assert look(scene, target) == Evidence.running()


def test_what_has_ended_is_not_running_once_its_keeper_has_nothing_more_to_say(scene: StopScene, lock: Path) -> None:
    target = ended(scene)
    assert look(scene, target) == Evidence.not_running()
    with held(lock):
        assert look(scene, target) == Evidence.running()
    assert look(scene, target) == Evidence.not_running()


def test_a_lock_that_cannot_be_tried_proves_nothing(scene: StopScene, lock: Path) -> None:
    target = ended(scene)
    lock.symlink_to("/nowhere")
    assert look(scene, target) == UNVERIFIABLE


def test_a_lock_at_a_path_of_another_place_is_a_strangers(scene: StopScene, lock: Path) -> None:
    handle = replace(scene.handle(scene.start("sleep", "600")), machine_id="another")
    with held(lock):
        assert look(scene, scene.asked(handle)) == UNVERIFIABLE
