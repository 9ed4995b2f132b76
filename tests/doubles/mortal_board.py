"""
Forge's follower that dies by SIGKILL at a position: ``python -m mortal_board URL POSITION before|after``.

Before the commit of what that fact changes in the board, or after it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from eventsourcing.persistence import Tracking
from sqlalchemy import Connection
from sqlalchemy.orm import Session

import forge.board
from forge.__main__ import follow
from forge.board import Board

URL, POSITION, MOMENT = sys.argv[1:]


class MortalBoard(Board):
    """A board whose process ends."""

    @contextmanager
    def tracked(self, tracking: Tracking, connection: Connection | Session | None = None) -> Iterator[Connection]:
        """See ``SqlTrackingRecorder``."""
        reached = tracking.notification_id == int(POSITION)
        with super().tracked(tracking, connection) as own:
            yield own
            if reached and MOMENT == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        if reached:
            os.kill(os.getpid(), signal.SIGKILL)


vars(forge.board)["Board"] = MortalBoard
follow(URL)
