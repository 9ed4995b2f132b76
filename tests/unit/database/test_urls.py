"""Which URLs name a ledger; a refusal never repeats a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from runfacts.domain.errors import MalformedUrl
from runfacts.infrastructure.database.engines import parse_url, sqlite_path


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///ledger.db", "sqlite+pysqlite"),
        ("sqlite+pysqlite:////var/lib/ledger.db", "sqlite+pysqlite"),
        ("postgresql://localhost/ledger", "postgresql+psycopg"),
        ("postgres://localhost/ledger", "postgresql+psycopg"),
        ("postgresql+psycopg://ana:s%3Fcret@db:5433/ledger?sslmode=require", "postgresql+psycopg"),
    ],
)
def test_a_url_of_a_ledger(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


def test_a_sqlite_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert sqlite_path(parse_url("sqlite:///some where/ledger 50%.db")) == tmp_path / "some where" / "ledger 50%.db"
    assert sqlite_path(parse_url("sqlite:////var/lib/ledger.db")) == Path("/var/lib/ledger.db")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "not of the form"),
        ("ledger.db", "not of the form"),
        ("postgresql://ana:sesame@host:port/ledger", "not of the form"),
        ("mysql://ana:sesame@host/ledger", "'mysql' is neither sqlite nor postgresql"),
        ("postgresql+psycopg2://ana:sesame@host/ledger", "is neither sqlite nor postgresql"),
        ("sqlite://", "in memory"),
        ("sqlite:///", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:ledger.db?mode=ro", "without options"),
        ("sqlite:///file::memory:", "without options"),
        ("sqlite:///ledger.db?timeout=5", "without options"),
        ("sqlite://ana:sesame@host/ledger.db", "three slashes"),
        ("sqlite:///led%00ger.db\0", "NUL"),
    ],
)
def test_other_urls_are_refused_without_their_password(url: str, said: str) -> None:
    with pytest.raises(MalformedUrl, match=said) as caught:
        parse_url(url)
    assert "sesame" not in str(caught.value)
