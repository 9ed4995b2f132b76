"""What happens on Forge in a minute, step by step; it may be repeated on the same database."""

from __future__ import annotations

import uuid

from eventsourcing.projection import ProjectionRunner

from forge.board import Board, following
from forge.builds import Build
from forge.ci import PROJECT, BuildFailed, DeliveredBefore, Forge
from runfacts.infrastructure.persistence import LedgerFacts


def tour(url: str) -> None:
    """Show it on the database at ``url``."""
    with Forge(url) as forge:
        print("1. A push is delivered: a row, a build with its events, and a Run, in one Session")
        delivery_id = str(uuid.uuid4())
        good = forge.push(delivery_id, "shop", "4f1c2a9")
        print(f"   build {good.id} has Run {good.run_id}; {count(forge)}")

        print("2. It is delivered again, which is found out at the commit: neither events nor facts are left")
        try:
            forge.push(delivery_id, "shop", "4f1c2a9")
        except DeliveredBefore:
            print(f"   refused; {count(forge)}")

        print("3. Two builds are made: an artifact and the end of its Run in one transaction, and a failure")
        bad = forge.push(str(uuid.uuid4()), "shop", "badc0de")
        forge.work(good.id, "w-1", package)
        forge.work(bad.id, "w-2", break_off)
        kept: Build = forge.builds.repository.get(good.id)
        print(f"   artifact {kept.artifact}; {count(forge)}")

        print("4. Forge follows the facts, into its own tables")
        with following(url) as runner:
            catch_up(runner)
            lines = {line.run_id: line for line in runner.view.lines()}
            notices = dict(runner.view.notices())
        for build in (good, bad):
            line = lines[str(build.run_id)]
            notice = f", notice: {notices[line.run_id]}" if line.run_id in notices else ""
            print(f"   {line.task}: {line.status} after {line.facts} facts{notice}")

        print("5. While nobody follows there is another push; then following goes on where it stopped")
        late = forge.push(str(uuid.uuid4()), "shop", "5e8d001")
        with following(url) as runner:
            catch_up(runner)
            seen = sum(line.facts for line in runner.view.lines())
            (line,) = (line for line in runner.view.lines() if line.build_id == str(late.id))
        print(f"   {line.task}: {line.status} after {line.facts} facts")
        print(f"   the board has seen {seen} facts, the ledger has {facts_of(forge)}")


def package(build: Build) -> str:
    """Build, as far as this example goes."""
    return f"{build.repository}-{build.revision}.tar.gz"


def break_off(_: Build) -> str:
    """Fail to build."""
    raise BuildFailed(2)


def catch_up(runner: ProjectionRunner[LedgerFacts, Board]) -> None:
    """Wait until the board has seen what is recorded now."""
    runner.wait(runner.app.recorder.max_notification_id(), timeout=30)


def count(forge: Forge) -> str:
    """Say how much is recorded on both sides."""
    events = forge.builds.recorder.select_notifications(start=None, limit=1_000_000)
    return f"{len(events)} events of builds, {facts_of(forge)} facts"


def facts_of(forge: Forge) -> int:
    """Count the facts of Forge's Runs."""
    counted, after = 0, None
    while True:
        page = forge.ledger.facts(project=PROJECT, after=after)
        counted += len(page.items)
        after = page.next
        if after is None:
            return counted
