"""Whatever status a server has for a lost session: it is found out, and nothing runs twice for it."""

from __future__ import annotations

import pytest

from mcp_client_guard.core.actions import Post
from mcp_client_guard.core.classify import SessionWord, rule_on
from mcp_client_guard.core.model import Outcome
from mcp_client_guard.core.report import SessionLost
from tests.core.driver import Driver, of, outcomes, reports

UNREAD = (307, 400, 401, 403, 405, 410, 412, 419, 421, 422, 428, 440, 451)
MAY_HAVE_RUN = (302, 303, 304, 408, 418, 460, 499, 500, 501, 505, 511, 520, 599)
OF_THE_REQUEST_ALONE = (413, 414, 415, 429, 431)
DRIVEN = (*UNREAD, *MAY_HAVE_RUN)


@pytest.fixture
def driver() -> Driver:
    return Driver().opened()


def calls(driver: Driver) -> int:
    return sum(post.message.get("method") == "tools/call" for post in of(driver.log, Post))


@pytest.mark.parametrize("status", DRIVEN)
def test_a_session_that_is_gone_is_replaced_and_an_unsafe_call_sent_again_only_if_it_was_not_read(
    driver: Driver, status: int
) -> None:
    call = driver.call()
    call.refuse(status)
    driver.sent("ping").refuse(status)
    actions = driver.reinitialized()
    assert len(reports(driver.log, SessionLost)) == 1
    if status in UNREAD:
        assert calls(driver) == 2
        assert outcomes(driver.sent("tools/call").answer()) == [Outcome.COMPLETED]
    else:
        assert Outcome.IN_DOUBT in outcomes(actions)
        assert calls(driver) == 1
    assert outcomes(driver.call(n=2).answer()) == [Outcome.COMPLETED], "the session lives"


@pytest.mark.parametrize("status", DRIVEN)
def test_a_session_that_answers_its_ping_is_kept(driver: Driver, status: int) -> None:
    driver.call().refuse(status)
    driver.sent("ping").answer({})
    assert not reports(driver.log, SessionLost)
    assert calls(driver) == 1


@pytest.mark.parametrize("status", DRIVEN)
def test_so_is_one_that_says_so_to_everything_while_no_other_can_be_opened(driver: Driver, status: int) -> None:
    """A proxy that has everybody log in, or an outage."""
    driver.call().refuse(status)
    driver.sent("ping").refuse(status)
    driver.sent("initialize").refuse(status)
    assert not reports(driver.log, SessionLost)
    assert calls(driver) == 1


@pytest.mark.parametrize("status", OF_THE_REQUEST_ALONE)
def test_what_is_said_of_the_request_alone_asks_nothing(driver: Driver, status: int) -> None:
    driver.call().refuse(status)
    assert not driver.is_waited_for("ping")


def test_every_other_refusal_asks() -> None:
    for status in (*range(300, 404), *range(405, 600)):
        asks = rule_on(status, None, session_sent=True).session is SessionWord.ASK
        assert asks is (status not in OF_THE_REQUEST_ALONE), status
