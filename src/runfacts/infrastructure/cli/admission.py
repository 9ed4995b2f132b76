"""What the startup gate says at the command line (R11.9)."""

from __future__ import annotations

from typing import Final

from runfacts.domain.recovery.gate import Admitted, GateAnswer
from runfacts.infrastructure.cli import output

GATE_AGAIN_S: Final = 1.0
"""How long to wait before asking again."""


def say_admission(answer: GateAnswer) -> bool:
    """Say whether new Runs may be admitted, and tell it."""
    waiting = f"; {output.counted(answer.waiting, 'item')} wait for an operator or their next look"
    words = waiting if answer.waiting else ""
    if isinstance(answer, Admitted):
        output.say(f"runfacts: new runs may be admitted{words}")
        return True
    unsafe = output.counted(answer.unsafe, "run")
    output.say(f"runfacts: new runs may not be admitted yet: what became of {unsafe} is not known{words}")
    return False
