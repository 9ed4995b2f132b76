"""``python -m runs_api``: make accounts, and serve."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

import uvicorn

from runfacts import Ledger, RunfactsError
from runs_api.accounts import Accounts, Role
from runs_api.app import Service, create_app


def main() -> int:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(prog="runs_api", description="An HTTP service that embeds runfacts.")
    parser.add_argument("--db", metavar="URL", default="sqlite:///runs.db", help="the database (%(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    add = verbs.add_parser("add", help="make an account, and print its token")
    add.add_argument("name")
    add.add_argument("--role", type=Role, choices=tuple(Role), default=Role.VIEWER)
    verbs.add_parser("remove", help="remove an account").add_argument("name")
    serve = verbs.add_parser("serve", help="serve on this machine's own address")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--jobs", type=Path, default=Path("jobs.toml"), help="the jobs (%(default)s)")
    serve.add_argument("--concurrency", type=int, default=2, help="how many runs it hosts, or 0 (%(default)s)")
    given = parser.parse_args()
    try:
        if given.verb == "serve":
            jobs = tomllib.loads(given.jobs.read_text())["jobs"]
            app = create_app(Service(given.db, jobs, concurrency=given.concurrency))
            uvicorn.run(app, host="127.0.0.1", port=given.port)
            return 0
        with Ledger.open(given.db) as ledger:
            accounts = Accounts(ledger.database.engine)
            if given.verb == "add":
                print(accounts.add(given.name, given.role))
            else:
                accounts.remove(given.name)
    except RunfactsError as error:
        print(f"runs_api: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
