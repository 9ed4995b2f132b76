"""Ids have one canonical text form, and only usual forms are taken (R2, words)."""

from __future__ import annotations

from uuid import UUID

import pytest

from runfacts.domain.errors import MalformedId
from runfacts.domain.ids import canonical_id

CANONICAL = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.mark.parametrize(
    "given",
    [CANONICAL, CANONICAL.upper(), CANONICAL.replace("-", ""), CANONICAL.replace("-", "").upper(), UUID(CANONICAL)],
)
def test_the_usual_forms_become_the_canonical_one(given: str | UUID) -> None:
    assert canonical_id("run id", given) == CANONICAL


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x",
        CANONICAL[:-1],
        CANONICAL + "0",
        f"{{{CANONICAL}}}",
        f"urn:uuid:{CANONICAL}",
        CANONICAL.replace("-", "_"),
        "g" + CANONICAL[1:],
        # 36 characters with the dashes elsewhere, which UUID() would take.
        "01890a5dac96-774b-bcce-b302-099a8057",
        "0189-0a5dac96774bbcceb302099a8057---",
        # Underscores between digits, and digits of another script, both of which int() would take.
        "0189_0a5dac96774bbcceb302099a805",
        "\N{ARABIC-INDIC DIGIT ZERO}" * 32,
        " " + CANONICAL[1:],
    ],
)
def test_anything_else_is_refused(given: str) -> None:
    with pytest.raises(MalformedId) as refused:
        canonical_id("run id", given)
    assert refused.value.what == "run id"
    assert str(refused.value).startswith("run id is not a UUID: ")


def test_a_long_wrong_id_is_shown_in_part() -> None:
    with pytest.raises(MalformedId) as refused:
        canonical_id("attempt id", "x" * 10_000)
    assert len(str(refused.value)) < 100
