"""Which rows of a read are in order, and what a checkpoint is as text (R3.9)."""

from __future__ import annotations

import pytest

from runfacts import Checkpoint, InvalidCursor
from runfacts.infrastructure.stores.ordered import in_order

HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("positions", "after", "final", "ready", "gap"),
    [
        ([], 0, 0, 0, None),
        ([1, 2, 3], 0, 0, 3, None),
        ([2, 3], 0, 0, 0, 1),
        ([1, 2, 4], 0, 0, 2, 3),
        ([6, 7], 5, 0, 2, None),
        ([7, 8], 5, 0, 0, 6),
        # Up to 7 nothing comes any more: the missing 3 and 6 are no gaps, the missing 8 is one.
        ([1, 2, 4, 5, 7], 0, 7, 5, None),
        ([4, 5, 7, 9], 2, 7, 3, 8),
        ([9], 2, 7, 0, 8),
        ([8], 2, 7, 1, None),
        ([9, 10], 8, 7, 2, None),
        ([10], 8, 7, 0, 9),
    ],
)
def test_rows_are_in_order_up_to_the_first_position_that_may_still_come(
    positions: list[int], after: int, final: int, ready: int, gap: int | None
) -> None:
    assert in_order([(position,) for position in positions], after, final) == (ready, gap)


def test_a_checkpoint_is_stored_as_text() -> None:
    checkpoint = Checkpoint(17, HASH)
    assert str(checkpoint) == f"17:{HASH}"
    assert Checkpoint.parse(f"17:{HASH}") == checkpoint
    assert Checkpoint.parse(f"9223372036854775807:{HASH}").position == (1 << 63) - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17",
        f"0:{HASH}",
        f"017:{HASH}",
        f"-1:{HASH}",
        f"17:{HASH[:-1]}",
        f"17:{HASH.upper()}",
        f"17:{HASH}\n",
        f"9223372036854775808:{HASH}",
        f"\u0661:{HASH}",
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        Checkpoint.parse(text)
