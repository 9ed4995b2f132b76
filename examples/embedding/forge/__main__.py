"""``python -m forge``: show what the example shows, or keep the board up to date until told to stop."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress

from eventsourcing.persistence import IntegrityError

from forge.board import following
from forge.tour import tour
from runfacts import RunfactsError


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="forge", description="A CI system that embeds runfacts.")
    parser.add_argument("what", nargs="?", choices=("tour", "follow"), default="tour")
    parser.add_argument("--db", metavar="URL", default="sqlite:///forge.db", help="the database (%(default)s)")
    given = parser.parse_args()
    try:
        if given.what == "tour":
            tour(given.db)
        else:
            follow(given.db)
    except RunfactsError as error:
        print(f"forge: {error}", file=sys.stderr)
        return 1
    except IntegrityError:
        # Whoever is second at a position has changed nothing, and leaves the board to the other one.
        print("forge: another process keeps this board up to date", file=sys.stderr)
        return 1
    return 0


def follow(url: str) -> None:
    """Keep the board up to date until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with following(url) as runner, suppress(KeyboardInterrupt):
        runner.run_forever()


if __name__ == "__main__":
    sys.exit(main())
