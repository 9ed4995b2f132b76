"""
What is to be done: the jobs of a TOML file.

Whatever is wrong with the file is a ``BadPlan`` before anything is recorded.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfacts import RetryPolicy, Safety

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class BadPlan(Exception):
    """The file cannot be used; the message says why."""


class Job(BaseModel):
    """One job, as the file has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    after: tuple[str, ...] = ()
    """The jobs that must have succeeded before."""
    retries: Annotated[int, Field(ge=0, le=15)] = 0
    retry_wait: Seconds = 1.0
    """Seconds before the first retry; the wait doubles from one to the next."""
    replay_safe: bool = False
    """Whether running it twice does no harm: only then is it tried again after its end was never learnt."""
    timeout: Seconds | None = None
    """Seconds that an attempt may take."""

    @property
    def policy(self) -> RetryPolicy:
        """The same in the ledger's words (R12.1)."""
        return RetryPolicy(
            max_attempts=1 + self.retries,
            retry_on_failure=self.retries > 0,
            retry_on_lost=self.replay_safe,
            safety=Safety.IDEMPOTENT if self.replay_safe else Safety.UNKNOWN,
            backoff_ms=round(self.retry_wait * 1_000),
            backoff_max_ms=86_400_000,
        )

    @property
    def timeout_ms(self) -> int | None:
        """The same in milliseconds."""
        return None if self.timeout is None else round(self.timeout * 1_000)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Annotated[tuple[Job, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Plan:
    """The jobs by name, each after those that it needs."""

    project: str
    """The file's name without its ending."""
    folder: Path
    """Where the file lies, and the commands run."""
    jobs: Mapping[str, Job]

    @classmethod
    def read(cls, file: Path) -> Plan:
        """Read a file (``BadPlan``)."""
        try:
            jobs = _File.model_validate(tomllib.loads(file.read_text())).job
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadPlan(f"{file}: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            raise BadPlan(f"{file}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error
        return cls(file.stem, file.resolve().parent, {job.name: job for job in _ordered(file, jobs)})


def _ordered(file: Path, jobs: Sequence[Job]) -> Sequence[Job]:
    named = {job.name: job for job in jobs}
    if len(named) < len(jobs):
        raise BadPlan(f"{file}: two jobs have the same name")
    for job in jobs:
        for needed in job.after:
            if needed not in named:
                raise BadPlan(f"{file}: {job.name} is after {needed}, which is no job")
    try:
        order = TopologicalSorter({job.name: job.after for job in jobs}).static_order()
        return [named[name] for name in order]
    except CycleError as error:
        raise BadPlan(f"{file}: these wait for one another: {', '.join(error.args[1][1:])}") from error
