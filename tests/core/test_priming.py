"""A priming event that a server mints on a resume stands somewhere in its log: nobody can say where."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Save
from mcp_client_guard.core.model import Grade
from mcp_client_guard.core.policy import GuardPolicy
from mcp_client_guard.core.report import Discontinuity

from .driver import Driver, evidence, of, outcomes, reports


def test_a_priming_event_minted_on_a_resume_is_neither_anchor_nor_cursor() -> None:
    """While p2 is stored and sent, e2, which is before it in the log, can still be on its way: after p2 the
    server has no e2 to replay. Asked from p2, an honest server would look broken (seen on FastMCP 4)."""
    call = Driver().opened().call()
    call.accept()
    call.event("p1")
    call.event("e1", call.progress(1))
    call.cut()
    call.accept()
    assert [e.grade for e in evidence(call.event("e1", call.progress(1)))] == [Grade.PROVEN]
    call.event("p2")
    call.cut()
    assert call.asked == "p1"
    call.accept()
    call.event("e1", call.progress(1))
    call.event("p3")
    call.event("e2", call.progress(2))
    call.cut()
    assert call.asked == "e1"
    call.accept()
    assert [e.grade for e in evidence(call.event("e2", call.progress(2)))] == [Grade.PROVEN]


def test_a_priming_event_whose_id_cannot_be_sent_back_stores_nothing() -> None:
    driver = Driver().opened()
    driver.drain(99)
    call = driver.call()
    call.accept()
    assert not of(call.event(" p"), Save)
    assert of(driver.drain(99), Save) == []


@pytest.mark.parametrize(("scheme", "polls"), [("opaque", 300), ("monotone", 3), ("contiguous", 3)])
def test_a_server_that_polls_for_hours_takes_no_overlap_away(scheme: str, polls: int) -> None:
    """It primes each connection, closes it, and wants to be asked again."""
    driver = Driver(GuardPolicy(id_scheme=scheme)).opened()  # type: ignore[arg-type]
    call = driver.call()
    call.accept()
    call.event("1", None, retry=1000)
    call.event("2", call.progress(2))
    call.event("3", call.progress(3))
    driver.drain(9)

    def polled() -> None:
        call.end(after=1)
        call.begin()
        call.accept()
        assert call.asked == "2"
        assert evidence(call.event("3", call.progress(3)))[0].grade is Grade.PROVEN

    for number in range(4, 4 + polls):
        polled()
        call.event(str(number))
    polled()
    for number in range(4, 4 + polls):
        assert not reports(call.event(str(number)), Discontinuity), "its log has them, too"
    assert outcomes(call.event(str(4 + polls), call.result()) + call.end())
