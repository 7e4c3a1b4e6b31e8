"""What is done at most once a minute."""

from __future__ import annotations

from mcp_client_guard.core.pace import OncePerMinute


def test_the_first_is_done_at_once_and_the_next_a_minute_later() -> None:
    refreshes = OncePerMinute()
    assert refreshes.take(100.0) == 0.0
    assert refreshes.take(115.0) == 45.0
    assert refreshes.take(159.0) == 1.0, "one that has to wait does not put off the next"
    assert refreshes.take(160.0) == 0.0
    assert refreshes.take(161.0) == 59.0


def test_once_waited_for_it_is_done_whatever_the_clock_says() -> None:
    refreshes = OncePerMinute()
    refreshes.take(100.0)
    refreshes.waited()
    assert refreshes.take(159.9) == 0.0
    assert refreshes.take(160.0) > 59.0
