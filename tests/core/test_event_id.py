"""Event IDs mean nothing of themselves; declared and learned schemes mean exactly what they say."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.event_id import IdScheme, fits_header, follows, goes_down, learn, number_of

OPAQUE, MONOTONE, CONTIGUOUS = IdScheme.OPAQUE, IdScheme.MONOTONE, IdScheme.CONTIGUOUS


@pytest.mark.parametrize(
    ("event_id", "fits"),
    [
        ("e1", True),
        ("é" * 4096, True),
        ("é" * 4097, False),
        ("x" * 8192, True),
        ("x" * 8193, False),
        ("", False),
        ("a\nb", False),
        ("a\rb", False),
        ("a\0b", False),
        ("a\x0bb", False),
        ("a\x0cb", False),
        ("a\x1fb", False),
        ("a\x7fb", False),
        ("a\tb", True),
        ("a b", True),
        (" a", False),
        ("a ", False),
        ("\ta", False),
        ("a\t", False),
        (" ", False),
        ("\u00a0a\u00a0", True),
        ("\ud800", False),
    ],
)
def test_an_id_can_be_sent_back_only_if_it_is_a_header_value(event_id: str, fits: bool) -> None:
    assert fits_header(event_id) is fits


@pytest.mark.parametrize(
    ("event_id", "number"),
    [
        ("42", ("", 42)),
        ("e-1042", ("e-", 1042)),
        ("s1_7", ("s1_", 7)),
        ("a\n7", ("a\n", 7)),
        ("uuid", None),
        ("7a", None),
        ("\u0663", None),
    ],
)
def test_the_number_of_an_id_is_its_trailing_decimal(event_id: str, number: tuple[str, int] | None) -> None:
    assert number_of(event_id) == number


@pytest.mark.parametrize(
    ("previous", "new", "monotone", "contiguous"),
    [
        ("1", "2", True, True),
        ("1", "3", True, False),
        ("2", "1", False, False),
        ("2", "2", False, False),
        ("e-9", "e-10", True, True),
        ("a-1", "b-2", False, False),
        ("x", "2", False, False),
        ("1", "x", False, False),
    ],
)
def test_what_may_follow_under_each_scheme(previous: str, new: str, monotone: bool, contiguous: bool) -> None:
    assert follows(OPAQUE, previous, new)
    assert follows(MONOTONE, previous, new) is monotone
    assert follows(CONTIGUOUS, previous, new) is contiguous


@pytest.mark.parametrize(
    ("event_ids", "scheme"),
    [
        ([], OPAQUE),
        (["1", "2"], OPAQUE),
        (["1", "2", "3"], CONTIGUOUS),
        (["1", "2", "4"], MONOTONE),
        (["1", "3", "2"], OPAQUE),
        (["a", "b", "c"], OPAQUE),
    ],
)
def test_a_scheme_is_learned_only_from_three_ids_that_all_keep_to_it(
    event_ids: list[str], scheme: IdScheme
) -> None:
    assert learn(event_ids) is scheme


@pytest.mark.parametrize(
    ("event_ids", "new", "down"),
    [
        (["4820", "4821"], "1", True),
        (["4821"], "1", True),
        (["4821"], "4822", False),
        (["9"], "10", False),
        ([], "1", False),
        (["7", "3"], "1", False),
        (["e-7"], "e-1", False),
        (["7"], "x", False),
        (["\u0667"], "1", False),
        (["1" * 19], "2", False),
        (["1"], "1" * 19, False),
    ],
)
def test_only_a_rising_decimal_counter_can_go_down(event_ids: list[str], new: str, down: bool) -> None:
    assert goes_down(event_ids, new) is down
