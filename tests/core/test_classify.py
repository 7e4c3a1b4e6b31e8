"""The one table of what a refusal says: exhaustive in status, JSON-RPC code and whether a session was sent."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from mcp_client_guard.core import classify
from mcp_client_guard.core.classify import Ran, Ruling, SessionWord, code_of, is_suspect_answer, rule_on

STATUSES = [*range(300, 320), *range(400, 452), 499, *range(500, 512), 520, 599]
NOT_RUN = {307, 308, 401, 403, 413, 415, 429, 503}
GATEWAY = {502, 504, 520, 522, 524}
SAYS_NOTHING = {413, 414, 415, 429, 431}
MAY_RUN_STILL = {408, 416, 418, 420, 424, 427, 429, 430, 499}


def body_with(code: int | None) -> Any:
    return None if code is None else {"jsonrpc": "2.0", "error": {"code": code, "message": "no"}}


@pytest.mark.parametrize("session_sent", [True, False])
@pytest.mark.parametrize("code", [None, -32601, -32000, -32001, -32600])
def test_every_status_says_whether_the_request_ran_and_what_it_says_of_the_session(
    session_sent: bool, code: int | None
) -> None:
    for status in STATUSES:
        ruling = rule_on(status, body_with(code), session_sent=session_sent)
        if status == 404 and session_sent and code != -32601:
            assert ruling == Ruling(Ran.NO, SessionWord.GONE)
            continue
        asks = session_sent and status not in SAYS_NOTHING and status != 404
        word = SessionWord.ASK if asks else SessionWord.ALIVE
        assert ruling.session is word, status
        by_proxy = status in GATEWAY and code is None
        ran = Ran.NO if status in NOT_RUN else Ran.MAYBE if status < 400 or by_proxy else Ran.ANSWERED
        assert ruling.ran is ran, status
        if word is SessionWord.ASK and status not in NOT_RUN:
            unread = status in (400, 402, 405, 409, 410, 419, 422, 428, 440)
            may_run = status < 400 or status >= 500 or status in MAY_RUN_STILL
            assert ruling.ran_if_gone is Ran.NO or not unread, status
            assert ruling.ran_if_gone is Ran.MAYBE or not may_run, status


@pytest.mark.parametrize("status", [404, 405, 421])
@pytest.mark.parametrize("session_sent", [True, False])
def test_what_is_said_before_anything_runs_is_said_at_once(status: int, session_sent: bool) -> None:
    word = SessionWord.ASK if session_sent else SessionWord.ALIVE
    late = rule_on(status, None, session_sent=session_sent, unsafe=True, is_late=True)
    assert late == Ruling(Ran.MAYBE, word, Ran.MAYBE)
    for same in ({"unsafe": True}, {"is_late": True}):
        assert rule_on(status, None, session_sent=session_sent, **same).ran is not Ran.MAYBE
    said = rule_on(status, body_with(-32600), session_sent=session_sent, unsafe=True, is_late=True)
    assert said.ran is not Ran.MAYBE, "the server's own word"


@pytest.mark.parametrize("session_sent", [True, False])
def test_of_the_errors_of_2026_07_28_one_alone_is_always_said_before_a_tool_runs(session_sent: bool) -> None:
    rulings = [
        rule_on(400, body_with(code), session_sent=session_sent, names_it=True, unsafe=True).ran
        for code in (-32020, -32021, -32022)
    ]
    assert rulings == [Ran.REFUSED, Ran.ANSWERED, Ran.ANSWERED]


@pytest.mark.parametrize(
    ("status", "code", "ran"),
    [
        *((status, -32603, Ran.MAYBE) for status in (408, 424, 499, 502, 503, 504, 520, 522, 524)),
        *((500, code, Ran.MAYBE) for code in (0, -32000, -32001, -32003, -32004, 408)),
        (500, -32603, Ran.ANSWERED),
        (501, -32603, Ran.ANSWERED),
    ],
)
def test_a_gateway_that_speaks_mcp_says_so_under_the_id_of_the_request(status: int, code: int, ran: Ran) -> None:
    assert rule_on(status, body_with(code), session_sent=False, names_it=True, unsafe=True).ran is ran


@pytest.mark.parametrize(
    ("status", "named", "ran"),
    [
        (400, None, Ran.NO),
        (400, 7, Ran.MAYBE),
        (400, "server-error", Ran.MAYBE),
        *((status, None, Ran.MAYBE) for status in (408, 424, 499, 500, 502, 503, 504)),
    ],
)
def test_bad_parameters_of_no_request_were_said_before_any_tool(status: int, named: Any, ran: Ran) -> None:
    """mcp-go says so of a session that it does not know; with an ID it is what a tool says, too."""
    body = {**body_with(-32602), "id": named}
    assert rule_on(status, body, session_sent=True, unsafe=True).ran_if_gone is ran


@pytest.mark.parametrize("code", [-32002, -32602, -32603, 0, 7, 1404])
def test_404_that_names_the_request_asks_unless_its_code_is_said_of_sessions(code: int) -> None:
    """-32002 is MCP's own word for a resource that does not exist."""
    asked = Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.NO)
    assert rule_on(404, body_with(code), session_sent=True, names_it=True) == asked
    assert rule_on(404, body_with(code), session_sent=True) == Ruling(Ran.NO, SessionWord.GONE)
    assert rule_on(404, body_with(code), session_sent=False, names_it=True).session is SessionWord.ALIVE


@pytest.mark.parametrize("code", [None, -32000, -32001, -32600, 32600])
def test_404_that_names_it_with_another_code_is_a_lost_session(code: int | None) -> None:
    ruling = rule_on(404, body_with(code), session_sent=True, names_it=True)
    assert ruling == Ruling(Ran.NO, SessionWord.GONE)


@pytest.mark.parametrize("session_sent", [True, False])
@pytest.mark.parametrize("status", STATUSES)
def test_a_user_s_predicate_is_asked_first_but_only_where_a_session_was_sent(
    status: int, session_sent: bool
) -> None:
    ruling = rule_on(status, "odd", session_sent=session_sent, is_session_lost=lambda s, body: body == "odd")
    assert (ruling.session is SessionWord.GONE) is session_sent


@pytest.mark.parametrize("answer", [False, None, ""])
def test_a_predicate_that_says_no_leaves_the_table(answer: Any) -> None:
    assert rule_on(418, None, session_sent=True, is_session_lost=lambda s, b: answer) == Ruling(
        Ran.ANSWERED, SessionWord.ASK, Ran.MAYBE
    )


def test_a_predicate_that_raises_says_no() -> None:
    assert rule_on(418, None, session_sent=True, is_session_lost=lambda s, b: b["x"]).ran is Ran.ANSWERED


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"jsonrpc": "2.0", "error": {"code": 7}}, 7),
        ({"error": {"code": -32601}}, -32601),
        ({"error": {"code": 504}}, None),
        ({"error": {"code": "7"}}, None),
        ({"error": "x"}, None),
        ({}, None),
        ("x", None),
        (None, None),
        ([{"error": {"code": 7}}], None),
    ],
)
def test_the_code_is_found_where_there_is_one(body: Any, code: int | None) -> None:
    assert code_of(body) == code


@pytest.mark.parametrize("code", [-32000, -32001, -32600, 32600])
def test_the_codes_of_dead_sessions_are_suspect(code: int) -> None:
    assert is_suspect_answer(body_with(code))


@pytest.mark.parametrize("code", [-32601, -32602, -32603, -32700, 0, None])
def test_other_answers_are_not(code: int | None) -> None:
    assert not is_suspect_answer(body_with(code))


def answer_with(code: int) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}


@pytest.mark.parametrize("session_sent", [True, False])
@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize(
    ("body", "ruling"),
    [
        ({"jsonrpc": "2.0", "id": 1, "result": {"isError": True}}, Ruling(Ran.ANSWERED)),
        (answer_with(-32600), Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.NO)),
        (answer_with(32600), Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.NO)),
        (answer_with(-32000), Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.MAYBE)),
        (answer_with(-32001), Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.MAYBE)),
        (answer_with(-32603), Ruling(Ran.ANSWERED)),
        (None, Ruling(Ran.MAYBE, SessionWord.ASK, Ran.MAYBE)),
        ("<html>", Ruling(Ran.MAYBE, SessionWord.ASK, Ran.MAYBE)),
        ({"error": {"code": -32001}}, Ruling(Ran.MAYBE, SessionWord.ASK, Ran.MAYBE)),
        ({"jsonrpc": "2.0", "id": 1, "result": "x"}, Ruling(Ran.MAYBE, SessionWord.ASK, Ran.MAYBE)),
    ],
)
def test_what_comes_with_200_is_an_answer_or_has_the_session_asked(
    status: int, body: Any, ruling: Ruling, session_sent: bool
) -> None:
    asked = ruling.session if session_sent else SessionWord.ALIVE
    assert rule_on(status, body, session_sent=session_sent) == evolve(ruling, session=asked)


@pytest.mark.parametrize("body", [None, answer_with(-32603), {"detail": "odd"}])
def test_the_predicate_is_asked_of_what_is_no_result(body: Any) -> None:
    assert rule_on(200, body, session_sent=True, is_session_lost=lambda s, b: True).session is SessionWord.GONE
    result = {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert rule_on(200, result, session_sent=True, is_session_lost=lambda s, b: True) == Ruling(Ran.ANSWERED)


ANSWERED, MAYBE = Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.MAYBE), Ruling(Ran.MAYBE, SessionWord.ASK, Ran.MAYBE)
UNREAD = Ruling(Ran.ANSWERED, SessionWord.ASK, Ran.NO)
NO_WORD = (Ran.ANSWERED, SessionWord.ALIVE)
NAMED, UNSAFE = {"names_it": True}, {"unsafe": True}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "nothing written": [],
    "a result under the ID": [],
    "404 with our session ID": [
        (Ruling(Ran.NO, SessionWord.GONE), [404], None, {}),
        (Ruling(Ran.NO, SessionWord.GONE), [404], -32600, NAMED),
    ],
    "404 with an error that names": [(UNREAD, [404], -32002, NAMED | UNSAFE)],
    "404 without one": [(Ruling(*NO_WORD), [404], None, {"session_sent": False})],
    "404, 405 or 421 without": [(MAYBE, [404, 405, 421], None, UNSAFE | {"is_late": True})],
    "401, 403, 307, 308": [(Ruling(Ran.NO, SessionWord.ASK), [401, 403, 307, 308], None, UNSAFE)],
    "413, 415": [(Ruling(Ran.NO), [413, 415], None, UNSAFE)],
    "429, 503": [
        (Ruling(Ran.NO), [429], None, UNSAFE),
        (Ruling(Ran.NO, SessionWord.ASK), [503], None, UNSAFE | {"may_retry": True}),
        (Ruling(Ran.NO, SessionWord.ASK), [503], None, {}),
    ],
    "503 without": [(MAYBE, [503], None, UNSAFE)],
    "414, 431, 404 with -32601": [
        (Ruling(*NO_WORD, Ran.MAYBE), [414, 431], None, UNSAFE),
        (Ruling(*NO_WORD), [404], -32601, UNSAFE),
    ],
    "400, 402": [
        (UNREAD, [400, 402, 405, 406, 407, 409, 410, 411, 412, 417, 419], None, UNSAFE),
        (UNREAD, [421, 422, 423, 425, 426, 428, 440, 451], -32600, UNSAFE),
    ],
    "of these, with an error of -32602": [(ANSWERED, [400, 422], -32602, UNSAFE)],
    "of these, with an error of -32020": [(Ruling(Ran.REFUSED, SessionWord.ASK), [400], -32020, UNSAFE)],
    "any other 4xx": [
        (ANSWERED, [408, 418, 424, 499], None, {}),
        (MAYBE, [408, 418, 424, 499], None, UNSAFE),
    ],
    "502, 504": [(MAYBE, [502, 504, 520, 522, 524], None, {})],
    "any other 5xx": [(ANSWERED, [500, 501, 599], None, {}), (MAYBE, [500, 501, 599], -32603, UNSAFE)],
    "any of these with an error": [(ANSWERED, [418, 500, 501], -32603, NAMED | UNSAFE)],
    "the same, by 408": [
        (MAYBE, [408, 424, 499, 502, 504, 520], -32603, NAMED | UNSAFE),
        (MAYBE, [500], -32003, NAMED | UNSAFE),
    ],
    "any other 3xx": [(MAYBE, [300, 302, 303], None, {})],
    "200 with an error of -32600": [(UNREAD, [200], -32600, UNSAFE)],
    "200 with an error of -32000": [(ANSWERED, [200], -32001, {}), (MAYBE, [200], -32001, UNSAFE)],
    "200 with an error of 408": [
        (Ruling(*NO_WORD), [200], -32003, {}),
        (Ruling(Ran.MAYBE), [200], -32003, UNSAFE),
    ],
    "any other answer": [(Ruling(*NO_WORD), [200], -32603, UNSAFE)],
    "2xx with what is no answer": [(MAYBE, [200, 202, 204], None, {})],
    "written, then lost": [],
}
"""The rows of the table in the module's docstring, by how they begin; those without cases draw no status."""


def test_the_table_is_what_the_rows_in_its_docstring_say() -> None:
    written = [line.removeprefix("| ") for line in (classify.__doc__ or "").splitlines() if line.startswith("| ")]
    assert len(written) - 1 == len(ROWS)
    for line, (row, cases) in zip(written[1:], ROWS.items(), strict=True):
        assert line.startswith(row)
        for ruling, statuses, code, given in cases:
            body = None if code is None else answer_with(code)
            for status in statuses:
                assert rule_on(status, body, **{"session_sent": True, **given}) == ruling, (row, status)
