"""Wire IDs: a block for each connection under a key, and which of them an earlier one may have used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_client_guard.core.wire_ids import BLOCKS, FIRST_IDS, EarlierIds, block_of, first_wire_id

NUMBERS = st.integers(0, 8 * BLOCKS)
CHOSEN = st.integers(0, FIRST_IDS - 1)


@given(NUMBERS, NUMBERS, CHOSEN, CHOSEN)
def test_no_two_connections_begin_within_8192_ids_of_each_other(one: int, other: int, nth: int, mth: int) -> None:
    distance = first_wire_id(other, mth) - first_wire_id(one, nth)
    assert not 0 <= distance < 8192 or (one - other) % (8 * BLOCKS) == 0


@given(NUMBERS, CHOSEN)
def test_ids_are_positive_and_fit_in_32_bits_with_blocks_to_spare(number: int, nth: int) -> None:
    first = first_wire_id(number, nth)
    assert 1 <= first <= 2**31 - 64 * 2**17
    assert block_of(first) == block_of(first + 8191)


@given(NUMBERS, CHOSEN, CHOSEN)
def test_two_of_the_same_number_meet_only_by_chance(number: int, nth: int, mth: int) -> None:
    """A store that was restored from a backup gives it again, in a session that lives on."""
    assert abs(first_wire_id(number, nth) - first_wire_id(number, mth)) == abs(nth - mth)


@given(NUMBERS, CHOSEN, st.integers(1, 400), st.integers(1, 32))
def test_one_of_millions_of_requests_meets_none_that_is_near_it(
    number: int, nth: int, others: int, more: int
) -> None:
    overflows = {block_of(first_wire_id(number, nth)) + block for block in range(more + 1)}
    assert block_of(first_wire_id(number + others, nth)) not in overflows
    assert number < others or block_of(first_wire_id(number - others, nth)) not in overflows


@given(NUMBERS, CHOSEN, st.integers(1, BLOCKS - 1), st.integers(0, 8191))
def test_an_earlier_connection_is_one_from_the_first_to_the_one_before(
    first: int, chosen: int, others: int, nth: int
) -> None:
    earlier = EarlierIds(first, first + others)
    assert first_wire_id(first, chosen) + nth in earlier
    assert first_wire_id(first + others - 1, chosen) + nth in earlier
    assert first_wire_id(first + others, chosen) + nth not in earlier


@pytest.mark.parametrize("own", [7, 5])
def test_where_there_was_none_none_is_known(own: int) -> None:
    """Slots of a store of the user's own may go down."""
    earlier = EarlierIds(7, own)
    assert not any(first_wire_id(number, 0) in earlier for number in range(BLOCKS))
