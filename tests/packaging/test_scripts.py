"""The scripts set up by themselves, from any path, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELL_SCRIPTS = sorted(
    path
    for path in (ROOT / "scripts").iterdir()
    if path.is_file() and path.suffix == "" and path.read_bytes().startswith(b"#!/bin/sh\n")
)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project below a folder with a space in its name, without any environment."""
    copy = tmp_path_factory.mktemp("a folder") / "the project"
    for name in ("pyproject.toml", "requirements.lock", "README.md", "LICENSE", "src", "scripts"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy(source, copy / name)
    return copy


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """As little of an environment as there can be."""
    # The uv that this checkout was set up with, so that it is not fetched again.
    own = next((str(path / "bin") for path in (ROOT / ".cache").glob("uv-*")), "")
    return {
        "HOME": os.environ.get("HOME", "/"),
        "PATH": os.pathsep.join(filter(None, [own, os.environ["PATH"]])),
        "RUNFACTS_PYTHON": sys.executable,
    }


@pytest.fixture(scope="module")
def run(checkout: Path, environment: dict[str, str]) -> Run:
    """Run a script of the copy, from another folder."""

    def run_script(*command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(checkout / command[0]), *command[1:]],
            cwd="/",
            env=environment | extra,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_script


def test_set_up_works_from_a_path_with_spaces_and_does_nothing_the_second_time(checkout: Path, run: Run) -> None:
    first = run("scripts/setup")
    assert (first.returncode, first.stderr.startswith("setting up .venv")) == (0, True), first.stderr
    stamp = checkout / ".venv" / ".stamp"
    made = stamp.stat().st_mtime_ns
    second = run("scripts/setup")
    assert (second.returncode, second.stderr, stamp.stat().st_mtime_ns) == (0, "", made)


def test_the_test_script_forwards_arguments_with_spaces(checkout: Path, run: Run) -> None:
    (checkout / "tests").mkdir(exist_ok=True)
    file = checkout / "tests" / "test_here.py"
    file.write_text(
        "import pytest\ndef test_short(): pass\n@pytest.mark.long\ndef test_lengthy(): pass\ndef test_other(): pass\n"
    )
    usual = run("scripts/test", "-q", "-k", "short or lengthy", str(file))
    assert "1 passed, 2 deselected" in usual.stdout
    with_long = run("scripts/test", "--long", "-q", "-k", "short or lengthy", str(file))
    assert "2 passed, 1 deselected" in with_long.stdout


def test_an_interrupted_set_up_is_done_again_by_one_of_two_callers(
    checkout: Path, environment: dict[str, str], run: Run
) -> None:
    run("scripts/setup")
    (checkout / ".venv" / ".stamp").unlink()
    callers = [
        subprocess.Popen(
            [str(checkout / "scripts/setup")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [caller.communicate()[1] for caller in callers]
    assert [caller.returncode for caller in callers] == [0, 0]
    assert "".join(said).count("setting up .venv") == 1


def test_an_interpreter_that_does_not_run_is_named(run: Run) -> None:
    refused = run("scripts/find-python", RUNFACTS_PYTHON="/no/such/python")
    assert refused.returncode == 1
    assert "RUNFACTS_PYTHON=/no/such/python" in refused.stderr


def test_the_interpreter_found_is_a_supported_one(run: Run) -> None:
    found = run("scripts/find-python", RUNFACTS_PYTHON="").stdout.strip()
    asked = subprocess.run(
        [found, "-c", "import sys; print(sys.version_info >= (3, 11))"], stdout=subprocess.PIPE, check=True
    )
    assert asked.stdout == b"True\n"


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_every_script_can_be_run_says_what_it_does_and_is_short(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert os.access(script, os.X_OK)
    assert lines[1].startswith("# ")
    assert "set -eu" in lines
    assert len(lines) <= 50
    subprocess.run(["sh", "-n", str(script)], check=True)
