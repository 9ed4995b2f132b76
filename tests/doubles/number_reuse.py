"""A process whose number another one gets; in a PID namespace of its own, where the next number can be chosen."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stop_scene import StopScene

NUMBER = 5_000
"""Far from everything that this namespace hands out by itself."""


class Reuse:
    """A recorded process whose number an impostor gets."""

    def __init__(self, scene: StopScene) -> None:
        self.scene = scene
        self.victim = _with_number(scene, "sleep", "600")
        self.handle = scene.handle(self.victim)
        self.impostor = self.victim

    def change_hands(self) -> None:
        """End the recorded process, reap it, and give its number to the impostor."""
        self.victim.kill()
        self.victim.wait()
        self.impostor = _with_number(self.scene, *self.scene.logging("log", "ends"), cookie=False)
        self.scene.wait_until_ready("log")


def _with_number(scene: StopScene, *argv: str, cookie: bool = True) -> subprocess.Popen[bytes]:
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(NUMBER - 1))
    return scene.start(*argv, cookie=cookie)
