"""
The example of a job runner does what its page says, with real processes (R2.11, R6.2, R10.2, R12.1).

Each job notes its own name in a file when it runs, so that a job that ran twice is seen.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobrunner.plan import BadPlan, Plan
from pages import ROOT
from process_watch import DEADLINE_S, Marked, wait_until
from runfacts import Ledger, RunStatus
from told import environment

EXAMPLE = ROOT / "examples" / "job_runner"
PATHS = f"{EXAMPLE}:{ROOT / 'tests' / 'doubles'}"
STAYS = "until test -e go; do sleep 0.05; done"


class Runner:
    """``python -m jobrunner run`` in a process of its own, on the jobs of a place."""

    def __init__(self, place: Path, *more: str) -> None:
        number = len(list(place.glob("runner.*.out")))
        self._out, self._err = place / f"runner.{number}.out", place / f"runner.{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "jobrunner", "run", "jobs.toml", "monday", *more],
                env=environment() | {"PYTHONPATH": PATHS},
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def told(self) -> str:
        """What it has told so far."""
        return self._err.read_text()

    def code(self) -> int:
        """Wait for its end, and give its exit code."""
        return self.process.wait(DEADLINE_S)

    def summary(self) -> dict[str, str]:
        """Wait for the end, and give what it says of each job."""
        self.code()
        lines = [re.split(r" {2,}", line, maxsplit=1) for line in self._out.read_text().splitlines()]
        return {line[0]: line[1] for line in lines if len(line) > 1}

    def end(self) -> None:
        """Kill it, as by ``kill -9``."""
        self.process.kill()
        self.process.wait()


Start = Callable[..., Runner]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the jobs run."""
    place = tmp_path / "place"
    place.mkdir()
    return place


@pytest.fixture
def start(place: Path, marked: Marked) -> Iterator[Start]:
    """Start the runner; it does not outlive the test."""
    assert marked.living() == set()
    started: list[Runner] = []

    def begin(*more: str) -> Runner:
        started.append(Runner(place, *more))
        return started[-1]

    yield begin
    for each in started:
        each.end()


def job(name: str, script: str = "exit 0", *lines: str) -> str:
    """Give a job that notes that it runs."""
    noted = f"echo {name} >> ran; {script}"
    return "\n".join(["[[job]]", f"name = '{name}'", f'command = ["sh", "-c", "{noted}"]', *lines, ""])


def written(place: Path, *jobs: str) -> None:
    (place / "jobs.toml").write_text("\n".join(jobs))


def ran(place: Path) -> Counter[str]:
    """How often each job ran."""
    file = place / "ran"
    return Counter(file.read_text().split()) if file.exists() else Counter()


def facts_of(place: Path, task: str) -> list[str]:
    with Ledger.open(f"sqlite:///{place / 'jobs.db'}") as ledger:
        (run_id,) = (each.run_id for each in ledger.runs(project="jobs").items if each.task == task)
        return [fact.type for fact in ledger.history(run_id)]


def test_the_commands_of_its_page_run_in_order_and_again(tmp_path: Path, marked: Marked) -> None:
    assert marked.living() == set()
    copy = tmp_path / "job_runner"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__", "jobs.db*"))
    python = "../../.venv/bin/python "
    commands = [line for line in (EXAMPLE / "README.md").read_text().splitlines() if line.startswith(python)]
    said = []
    for line in [*commands, commands[0]]:
        ended = subprocess.run(
            [sys.executable, "-W", "error", *line.removeprefix(python).split()],
            env=environment() | {"PYTHONPATH": f"{ROOT / 'tests' / 'doubles'}"},
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stdout.splitlines())
    summary, output, audit, again = said
    assert sorted(summary) == [
        "check                succeeded, exit code 0",
        "fetch                succeeded, exit code 0",
        "flaky                succeeded, exit code 0, attempt 2 of 3",
        "report               succeeded, exit code 0",
    ]
    assert output[-2:] == ["== report, attempt 1", "three orders"]
    assert again == summary
    assert audit[-1].split()[2:5] == ["report", "run.succeeded", "worker"]
    kinds = Counter(line.split()[3] for line in audit)
    assert (kinds["run.created"], kinds["attempt.running"], kinds["run.succeeded"]) == (4, 5, 4)


def test_a_job_that_fails_is_tried_as_often_as_it_says_and_what_needs_it_is_skipped(place: Path, start: Start) -> None:
    written(
        place,
        job("bad", "exit 7", "retries = 1", "retry_wait = 0.1"),
        job("next", "exit 0", "after = ['bad']"),
        job("last", "exit 0", "after = ['next']"),
        job("other"),
    )
    runner = start()
    assert runner.summary() == {
        "bad": "failed, exit code 7, attempt 2 of 2",
        "other": "succeeded, exit code 0",
        "next": "cancelled, never ran: needs bad",
        "last": "cancelled, never ran: needs next",
    }
    assert runner.code() == 1
    assert ran(place) == {"bad": 2, "other": 1}
    assert facts_of(place, "next") == ["run.created", "run.cancel_requested", "run.cancelled"]


def test_a_job_that_takes_too_long_is_stopped(place: Path, start: Start) -> None:
    written(place, job("slow", STAYS, "timeout = 0.5"))
    runner = start()
    assert runner.summary()["slow"].startswith("timed_out")
    assert (runner.code(), ran(place)) == (1, {"slow": 1})


def test_no_more_jobs_run_at_a_time_than_wanted(place: Path, start: Start) -> None:
    # Two that wait for each other: there are two places. That there are not more, the facts tell.
    written(
        place,
        job("a", "touch a; until test -e b; do sleep 0.02; done"),
        job("b", "touch b; until test -e a; do sleep 0.02; done"),
        *(job(f"more-{number}") for number in range(4)),
    )
    assert start("--concurrency", "2").code() == 0
    active = most = 0
    with Ledger.open(f"sqlite:///{place / 'jobs.db'}") as ledger:
        for fact in ledger.facts(project="jobs", limit=500).items:
            active += {"attempt.claimed": 1, "attempt.succeeded": -1}.get(fact.type, 0)
            most = max(most, active)
    assert (active, most) == (0, 2)


def test_after_its_own_death_it_goes_on_and_no_job_runs_twice(place: Path, start: Start) -> None:
    written(
        place,
        job("before", "echo first"),
        job("during", f"{STAYS}; echo second", "after = ['before']"),
        job("after", "echo third", "after = ['during']"),
    )
    killed = start()
    wait_until(lambda: ran(place)["during"], "the second job runs")
    # Its confirmation is recorded before the gate opens, so the killed runner has left a Run that is running.
    killed.end()
    assert killed.code() == -signal.SIGKILL
    next_one = start()
    wait_until(lambda: "during: running" in next_one.told, "it is found under its keeper")
    assert ran(place) == {"before": 1, "during": 1}
    (place / "go").touch()
    assert next_one.code() == 0
    assert ran(place) == {"before": 1, "during": 1, "after": 1}
    shown = subprocess.run(
        [sys.executable, "-m", "jobrunner", "output", "jobs.toml", "monday"],
        env=environment() | {"PYTHONPATH": PATHS},
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == [
        "== before, attempt 1",
        "first",
        "== during, attempt 1",
        "second",
        "== after, attempt 1",
        "third",
    ]


def test_an_end_that_came_while_nobody_hosted_is_learnt_from_the_receipt(
    place: Path, start: Start, marked: Marked
) -> None:
    written(place, job("alone", f"{STAYS}; exit 3"))
    killed = start()
    wait_until(lambda: ran(place)["alone"], "the job runs")
    killed.end()
    (place / "go").touch()
    marked.wait_until_gone()
    next_one = start()
    assert next_one.summary() == {"alone": "failed, exit code 3"}
    assert ran(place) == {"alone": 1}


def test_ctrl_c_cancels_and_says_so_when_it_is_proven(place: Path, start: Start, marked: Marked) -> None:
    written(place, job("done"), job("long", STAYS, "after = ['done']"), job("never", "exit 0", "after = ['long']"))
    runner = start()
    wait_until(lambda: ran(place)["long"], "the job runs")
    runner.process.send_signal(signal.SIGINT)
    assert runner.summary() == {
        "done": "succeeded, exit code 0",
        "long": "cancelled, signal 15",
        "never": "cancelled, never ran: the batch was cancelled",
    }
    assert runner.code() == 130
    assert "long: asked to stop" in runner.told
    marked.wait_until_gone()
    # The batch stays cancelled: nothing of it runs when it is asked for again.
    again = start()
    assert again.code() == 1
    assert ran(place) == {"done": 1, "long": 1}


def test_who_presses_ctrl_c_twice_is_told_what_is_not_proven(place: Path, start: Start) -> None:
    # It ignores the polite signal, and the killing one comes only after the grace of five seconds.
    written(place, job("deaf", f"trap '' TERM; touch up; {STAYS}"))
    runner = start()
    wait_until((place / "up").exists, "the job runs")
    runner.process.send_signal(signal.SIGINT)
    wait_until(lambda: "deaf: asked to stop" in runner.told, "it is asked to stop")
    runner.process.send_signal(signal.SIGINT)
    runner.code()
    assert "deaf                 running" in (place / "runner.0.out").read_text()
    assert "asked to stop, and not proven to have stopped: deaf" in (place / "runner.0.out").read_text()
    with closing(Ledger.open(f"sqlite:///{place / 'jobs.db'}")) as ledger:
        assert ledger.runs(status=RunStatus.RUNNING).items[0].task == "deaf"
    next_one = start()
    assert next_one.summary()["deaf"].startswith("cancelled, signal 9")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "job: Field required"),
        (job("a", "exit 0", "colour = 'red'"), "job.0.colour: Extra inputs are not permitted"),
        (job("a") + job("a"), "two jobs have the same name"),
        (job("a", "exit 0", "after = ['b']"), "a is after b, which is no job"),
        (job("a", "exit 0", "after = ['a']"), "these wait for one another: a"),
        ("[[job", "Expected"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_recorded(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(text)
    with pytest.raises(BadPlan, match=re.escape(reason)):
        Plan.read(file)
