"""Every script of four steps, on each kind of server: what random scripts might miss in the small."""

from __future__ import annotations

from itertools import product

import pytest

from tests.core.model_server import TRIMS, Ids, Step, Unknown, Variant, World

pytestmark = pytest.mark.no_cover  # the tables cover every branch; tracing would double the time

# One call that has received its priming event and one message, as in the seeds.
OPENING: list[Step] = [("call", 0, 0), ("serve", 0, 0), ("emit", 0, 1), ("deliver", 0, 5)]
STEPS: list[Step] = [("emit", 0, 0), ("serve", 0, 0), ("deliver", 0, 0), ("cut", 0, 0), ("end", 0, 0)]
LENGTH = 4


@pytest.mark.parametrize(
    "variant",
    [
        Variant(),
        Variant(inclusive=True),
        Variant(primes=False, ids="shared"),
        Variant(indexed=True),
        Variant(primes_again="before"),
        Variant(primes_again="after", drops=True),
    ],
)
def test_no_short_script_makes_the_guard_doubt_an_honest_server(variant: Variant) -> None:
    for script in product(STEPS, repeat=LENGTH):
        World(variant).run([*OPENING, *script])


@pytest.mark.parametrize("unknown", ["refuse", "end"])
@pytest.mark.parametrize("ids", ["opaque", "shared"])
def test_no_short_script_makes_the_guard_doubt_a_log_that_keeps_what_follows_the_cursor_and_no_more(
    unknown: Unknown, ids: Ids
) -> None:
    variant = Variant(is_short=True, unknown=unknown, ids=ids)
    for script in product([*STEPS, (TRIMS, 0, 0)], repeat=LENGTH):
        World(variant).run([*OPENING, *script])


@pytest.mark.parametrize(
    "variant",
    [
        Variant(fault="trim", unknown="start"),
        Variant(fault="trim", unknown="end"),
        Variant(fault="fork", inclusive=True),
        Variant(fault="fork", indexed=True),
        Variant(fault="reset", unknown="live", ids="shared"),
        Variant(fault="reset", unknown="refuse"),
        Variant(fault="reset", unknown="end", ids="shared"),
        Variant(fault="empty"),
    ],
)
def test_no_short_script_lets_a_dishonest_server_lose_anything_in_silence(variant: Variant) -> None:
    for script in product([*STEPS, ("fault", 0, 2)], repeat=LENGTH):
        World(variant).run([*OPENING, *script])
