"""What is built holds what users need, and importing it loads no more than they asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "runfacts"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution, built from a copy of what git would give."""
    copy = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    target = tmp_path_factory.mktemp("distributions")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(target)],
        cwd=copy,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return target


def wheel_names(distributions: Path) -> set[str]:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_of_the_package(distributions: Path) -> None:
    shipped = {
        f"runfacts/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped <= wheel_names(distributions)
    assert "runfacts/py.typed" in shipped
    assert any(name.endswith(".sql") for name in shipped)


def test_the_wheel_installs_one_top_level_package(distributions: Path) -> None:
    tops = {name.split("/")[0] for name in wheel_names(distributions)}
    assert tops == {"runfacts", "runfacts-0.1.0.dist-info"}


def test_the_wheel_registers_the_command_and_the_pytest_plugin(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read("runfacts-0.1.0.dist-info/entry_points.txt").decode()
        license_text = archive.read("runfacts-0.1.0.dist-info/licenses/LICENSE").decode()
    assert "runfacts = runfacts.infrastructure.cli:main" in entry_points
    assert "runfacts = runfacts.testing.plugin" in entry_points
    assert license_text.startswith("MIT License")


def test_the_source_distribution_holds_the_tests_and_the_scripts(distributions: Path) -> None:
    (source,) = distributions.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "requirements.lock", "scripts/test", "src/runfacts/py.typed"} <= names
    assert not [name for name in names if name.startswith((".venv", ".cache"))]


def test_the_wheel_alone_can_be_imported(distributions: Path) -> None:
    (wheel,) = distributions.glob("*.whl")
    program = "import sys, runfacts; sys.exit('.whl' not in runfacts.__file__)"
    # A wheel is a zip file, which Python imports from; isolated, so that the source tree cannot help.
    subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {program}"], check=True
    )


@pytest.mark.parametrize("unwanted", ["psycopg", "click", "rich", "opentelemetry", "pytest", "freezegun", "hypothesis"])
def test_importing_the_library_does_not_load(unwanted: str) -> None:
    # Every public name is asked for, since names may be loaded on demand.
    program = (
        "import sys, runfacts\n"
        "for name in dir(runfacts):\n"
        "    getattr(runfacts, name)\n"
        "sys.exit(sys.argv[1] in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, unwanted], check=True)


def test_the_pytest_plugin_loads_no_database_driver_and_no_ledger() -> None:
    program = (
        "import sys, runfacts.testing.plugin\n"
        "heavy = {'psycopg', 'sqlalchemy', 'eventsourcing', 'alembic', 'freezegun'} & sys.modules.keys()\n"
        "sys.exit(f'loaded: {sorted(heavy)}' if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_session_that_asks_for_no_fixture_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_alone.py").write_text("def test_alone(): pass\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "1 passed" in ended.stdout
