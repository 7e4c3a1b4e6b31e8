"""Wire IDs: a block for each connection under a key, and which of them an earlier one may have used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_client_guard.core.wire_ids import BLOCKS, EarlierIds, block_of, first_wire_id

NUMBERS = st.integers(0, 32 * BLOCKS)


@given(NUMBERS, NUMBERS)
def test_no_two_connections_begin_within_4096_ids_of_each_other(one: int, other: int) -> None:
    distance = abs(first_wire_id(one) - first_wire_id(other))
    assert distance >= 4096 or (one - other) % (32 * BLOCKS) == 0


@given(NUMBERS)
def test_ids_are_positive_and_fit_in_32_bits_with_blocks_to_spare(number: int) -> None:
    assert 1 <= first_wire_id(number) <= 2**31 - 64 * 2**17
    assert block_of(first_wire_id(number)) == block_of(first_wire_id(number) + 4095)


@given(NUMBERS, st.integers(1, 400), st.integers(1, 32))
def test_one_of_millions_of_requests_meets_none_that_is_near_it(number: int, others: int, more: int) -> None:
    overflows = {block_of(first_wire_id(number)) + block for block in range(more + 1)}
    assert block_of(first_wire_id(number + others)) not in overflows
    assert number < others or block_of(first_wire_id(number - others)) not in overflows


@given(NUMBERS, st.integers(1, BLOCKS - 1), st.integers(0, 4095))
def test_an_earlier_connection_is_one_from_the_first_to_the_one_before(first: int, others: int, nth: int) -> None:
    earlier = EarlierIds(first, first + others)
    assert first_wire_id(first) + nth in earlier
    assert first_wire_id(first + others - 1) + nth in earlier
    assert first_wire_id(first + others) + nth not in earlier


@pytest.mark.parametrize("own", [7, 5])
def test_where_there_was_none_none_is_known(own: int) -> None:
    """Slots of a store of the user's own may go down."""
    earlier = EarlierIds(7, own)
    assert not any(first_wire_id(number) in earlier for number in range(BLOCKS))
