"""The guard's own answers: a code nobody retries, words a model can act on, and found again as typed values."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core import answers
from mcp_client_guard.core.answers import (
    error_answer,
    http_answer,
    in_doubt_answer,
    not_executed_answer,
    session_lost_answer,
    why_no_answer,
)
from mcp_client_guard.core.doubt import IN_DOUBT_KEY, CallInDoubt, CallNotExecuted
from mcp_client_guard.core.inputs import UNREADABLE, BodyReceived
from mcp_client_guard.core.ledger import Call
from mcp_client_guard.core.policy import HARMLESS_METHODS
from tests.core.driver import RESULT

DOUBT = CallInDoubt("its stream was cut", "tools/call", "charge", "key-1", "abcd1234", True)


def call_of(method: str = "tools/call") -> Call:
    return Call(5, "h1", method, "charge", {}, "key-1", True, 1)


def test_a_tool_call_in_doubt_is_an_error_result_with_what_is_known() -> None:
    answer = in_doubt_answer(call_of(), DOUBT, as_result=True)
    assert answer["id"] == "h1"
    assert answer["result"]["isError"] is True
    text = answer["result"]["content"][0]["text"]
    assert "may or may not have run" in text
    assert "charge" in text
    assert "key-1" in text
    assert CallInDoubt.find(answer["result"]) == DOUBT


@pytest.mark.parametrize(("method", "as_result"), [("tools/call", False), ("resources/read", True)])
def test_other_requests_and_by_choice_tool_calls_get_an_error(method: str, as_result: bool) -> None:
    answer = in_doubt_answer(call_of(method), DOUBT, as_result=as_result)
    assert CallInDoubt.from_json(answer["error"]["data"][IN_DOUBT_KEY]) == DOUBT


def test_our_codes_are_nobody_else_s_and_our_words_start_no_retry() -> None:
    """DESIGN §5: never -32000, -32001, ±32600 or 408, never "session terminated"."""
    codes = [v for k, v in vars(answers).items() if k.startswith("CODE_")]
    assert len(set(codes)) == len(codes) == 5
    assert not any(-32768 <= code <= -32000 for code in codes)
    texts = [str(DOUBT), session_lost_answer(1, "tools/call", "charge", "gone")["error"]["message"]]
    assert not any("session terminated" in text.lower() for text in texts)


def test_a_request_without_a_tool_is_named_by_its_method() -> None:
    assert "'resources/read'" in str(CallInDoubt("cut", "resources/read", None, "k", "-"))


class _Result:
    def __init__(self) -> None:
        self.meta = {IN_DOUBT_KEY: DOUBT.as_json()}


class _Error:
    def __init__(self) -> None:
        self.data = {IN_DOUBT_KEY: DOUBT.as_json()}


class McpError(Exception):
    error = _Error()


class Group(Exception):
    """As `ExceptionGroup`, which Python 3.10 lacks."""

    exceptions = (ValueError(), McpError())


def _caused(cause: BaseException) -> BaseException:
    error = RuntimeError("tool failed")
    error.__cause__ = cause
    return error


def _handled(context: BaseException) -> BaseException:
    """As where an error is made of another without `from`."""
    error = RuntimeError("tool failed")
    error.__context__ = context
    return error


class Carrying(Exception):
    """As frameworks do that keep the whole result."""

    def __init__(self, result: Any) -> None:
        super().__init__("tool failed")
        self.result = result


@pytest.mark.parametrize(
    "value",
    [
        _Result(),
        {"_meta": {IN_DOUBT_KEY: DOUBT.as_json()}},
        McpError(),
        _caused(McpError()),
        Group(),
        {"status": "error", "content": [], "metadata": {IN_DOUBT_KEY: DOUBT.as_json()}},  # Strands
        {"isError": True, "content": [], "meta": {IN_DOUBT_KEY: DOUBT.as_json()}},  # Google ADK
        _handled(McpError()),
        Carrying(_Result()),
        ValueError({"_meta": {IN_DOUBT_KEY: DOUBT.as_json()}}),
    ],
)
def test_a_doubt_is_found_in_what_the_host_got(value: Any) -> None:
    assert CallInDoubt.find(value) == DOUBT


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"_meta": None},
        {"_meta": {IN_DOUBT_KEY: {"outcome": "fine"}}},
        ValueError(),
        7,
        "it may or may not have run",
        [None, {"type": "text"}, {"type": "text", "text": 7}],
        {"content": [{"type": "text", "text": str(DOUBT)}]},  # a result says so by its `_meta`
    ],
)
def test_nothing_is_found_where_there_is_none(value: Any) -> None:
    assert CallInDoubt.find(value) is None


class TextBlock:
    text = str(DOUBT)


class Message:
    """Of LangChain."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Item:
    """Of the OpenAI Agents SDK."""

    def __init__(self, output: Any) -> None:
        self.output = output


class ResultWithoutMeta(Message):
    is_error = True


BLOCK = {"type": "text", "text": str(DOUBT)}


@pytest.mark.parametrize(
    "kept",
    [
        Message(str(DOUBT)),
        Message([TextBlock()]),
        Message(BLOCK),
        Item(BLOCK),
        BLOCK,
        {"type": "function_call_output", "output": [BLOCK]},
    ],
)
def test_a_doubt_is_found_in_what_a_framework_keeps_of_a_run(kept: Any) -> None:
    found = CallInDoubt.find(kept)
    assert found is not None
    assert found.call_key == DOUBT.call_key


@pytest.mark.parametrize(
    "kept", [ResultWithoutMeta([TextBlock()]), Message(Message(Message(Message(Message(str(DOUBT))))))]
)
def test_but_not_in_the_words_of_a_result_nor_ever_deeper(kept: Any) -> None:
    assert CallInDoubt.find(kept) is None


@pytest.mark.parametrize(
    "value",
    [
        ValueError(str(DOUBT)),  # FastMCP's ToolError, PydanticAI's ModelRetry
        str(DOUBT),
        [{"type": "text", "text": "before"}, {"type": "text", "text": str(DOUBT), "id": "lc_1"}],  # LangChain
        [TextBlock()],
    ],
)
def test_of_the_words_alone_a_doubt_is_found_with_what_they_say(value: Any) -> None:
    assert CallInDoubt.find(value) == CallInDoubt(DOUBT.reason, "tools/call", "charge", "key-1", "-", False)


def test_the_words_of_a_request_name_its_method() -> None:
    asked = CallInDoubt("cut.\nTwice (a proxy)", "resources/read", None, "k", "-")
    assert CallInDoubt.find(str(asked)) == asked


@pytest.mark.parametrize(
    "text",
    [
        f"Error: {DOUBT}",
        f"{DOUBT} ",
        str(DOUBT)[:-1],
        str(DOUBT).replace("'charge'", "charge"),
        str(DOUBT).replace("'charge'", "''"),
        str(DOUBT).replace("'charge'", "'a\nb'"),
        f"{str(DOUBT) * 20_000} ",
    ],
)
def test_words_that_are_not_exactly_ours_are_no_doubt(text: str) -> None:
    assert CallInDoubt.find(text) is None
    assert CallInDoubt.find(ValueError(text)) is None


def test_what_another_call_drew_before_is_no_word_on_an_answer() -> None:
    """It came while the other was handled: an `except` block that calls again."""
    refused = Raised(not_executed_answer("h1", "tools/call", "charge", "wire", "no network"))
    refused.__context__ = McpError()
    assert CallInDoubt.find(refused) is None
    doubtful = _handled(Raised(not_executed_answer("h1", "tools/call", "charge", "wire", "no network")))
    assert CallNotExecuted.find(doubtful) is None
    hidden = _handled(McpError())
    hidden.__suppress_context__ = True
    assert CallInDoubt.find(hidden) is None


@pytest.mark.parametrize("find", [CallInDoubt.find, CallNotExecuted.find])
def test_a_circle_of_causes_ends(find: Any) -> None:
    one = RuntimeError("one")
    one.__cause__ = two = RuntimeError("two")
    two.__cause__ = one
    assert find(one) is None
    deep = _caused(two)
    for _ in range(2000):
        deep = _caused(deep)
    assert find(deep) is None


@pytest.mark.parametrize("value", [None, {"isError": True}, "text", 7])
def test_what_is_no_exception_says_nothing_of_what_did_not_run(value: Any) -> None:
    assert CallNotExecuted.find(value) is None


def test_what_calls_itself_a_group_and_is_none_is_looked_at_alone() -> None:
    odd = ValueError("odd")
    odd.exceptions = 7  # type: ignore[attr-defined]
    assert CallNotExecuted.find(odd) is None
    odd.exceptions = [7]  # type: ignore[attr-defined]
    assert CallInDoubt.find(odd) is None


def test_a_doubt_that_says_little_is_still_one() -> None:
    assert CallInDoubt.from_json({"outcome": "in_doubt"}) == CallInDoubt("", "", None, "", "-", False)


def test_not_executed_says_by_whose_word() -> None:
    error = not_executed_answer("h1", "tools/call", "charge", "server", "HTTP 503", 503)["error"]
    assert error["data"] == {
        "outcome": "not_executed",
        "by": "server",
        "reason": "HTTP 503",
        "http_status": 503,
        "method": "tools/call",
        "tool": "charge",
    }
    assert error["message"] == "The tool call 'charge' was not executed: HTTP 503"


def test_a_request_of_the_host_s_own_is_not_taken_for_the_call_in_whose_place_its_error_is_raised() -> None:
    """SDKs list the tools after the first answer of one that they do not know: by then it has run."""
    answer = not_executed_answer("h1", "tools/list", None, "server", "HTTP 503", 503)
    assert answer["error"]["message"] == "The request 'tools/list' was not executed: HTTP 503"
    found = CallNotExecuted.find(Raised(answer))
    assert found is not None
    assert (found.method, found.tool) == ("tools/list", None)


@pytest.mark.parametrize(("status", "by"), [(404, "server"), (None, "wire")])
def test_a_lost_session_says_by_whose_word_nothing_ran(status: int | None, by: str) -> None:
    error = session_lost_answer("h1", "tools/call", "charge", "gone", status)["error"]
    assert (error["data"]["outcome"], error["data"]["by"], error["data"]["http_status"]) == (
        "not_executed",
        by,
        status,
    )
    assert "was not executed: gone" in error["message"]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"code": -32602, "message": "bad", "data": 1}}, -32602, "bad"),
        ({"error": {"code": -32602, "message": 7}}, -32602, ""),
        ({"error": {"code": "x"}}, answers.CODE_HTTP_STATUS, "The server answered HTTP 500"),
        ({"error": "x"}, answers.CODE_HTTP_STATUS, "The server answered HTTP 500"),
        ("<html>", answers.CODE_HTTP_STATUS, "The server answered HTTP 500"),
        (None, answers.CODE_HTTP_STATUS, "The server answered HTTP 500"),
    ],
)
def test_a_refusal_that_is_an_answer_is_the_server_s_error_or_the_status(
    body: Any, code: int, message: str
) -> None:
    answer = http_answer(call_of(), 500, body, "/mcp")
    assert answer["id"] == "h1"
    assert (answer["error"]["code"], answer["error"]["message"]) == (code, message)


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
@pytest.mark.parametrize(
    ("status", "path", "where"),
    [(404, "/wrong", " to POST /wrong"), (405, "/", " to POST /"), (404, None, ""), (400, "/", "")],
)
def test_where_there_may_be_no_endpoint_its_path_is_told(
    method: str, status: int, path: str | None, where: str
) -> None:
    answer = http_answer(call_of(method), status, None, path)
    assert answer["error"]["message"] == f"The server answered HTTP {status}{where}"
    assert answer["error"]["data"] == {"http_status": status}


@pytest.mark.parametrize("method", sorted(HARMLESS_METHODS))
def test_of_a_harmless_request_nobody_is_told_not_to_repeat_it(method: str) -> None:
    doubt = CallInDoubt("cut", method, None, "k", "-")
    assert str(doubt) == f"The request {method!r} had no answer: cut. It may safely be sent again. (call key k)"
    assert CallInDoubt.find(str(doubt)) == doubt


def test_of_any_other_request_everybody_is_told_not_to_repeat_it() -> None:
    text = str(CallInDoubt("cut", "tasks/cancel", None, "k", "-"))
    assert "may or may not have run: cut. Do not repeat it" in text
    assert CallInDoubt.find(text.replace("tasks/cancel", "ping")) is None
    assert (
        CallInDoubt.find(str(CallInDoubt("cut", "ping", None, "k", "-")).replace("ping", "tasks/cancel")) is None
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (BodyReceived(1, 1, None, 202), "the server accepted the request without an answer"),
        (
            BodyReceived(1, 1, UNREADABLE, 200, "text/html"),
            "the answer was no JSON-RPC message (HTTP 200, text/html)",
        ),
        (BodyReceived(1, 1, {}, 201), "the answer was no JSON-RPC message (HTTP 201, no media type)"),
        (BodyReceived(1, 1, {"jsonrpc": "2.0", "id": 7, "result": RESULT}), "what came was no answer to it"),
    ],
)
@pytest.mark.parametrize("method", ["initialize", "server/discover", "tools/call", "ping"])
def test_what_came_instead_of_an_answer_is_named(method: str, told: BodyReceived, why: str) -> None:
    is_doubted = "JSON-RPC" in why and method in ("initialize", "server/discover")
    said = why_no_answer(told, call_of(method))
    assert said == (f"{why}: this may not be the URL of an MCP endpoint" if is_doubted else why)


def test_an_error_without_data_has_none() -> None:
    assert "data" not in error_answer("h1", -1, "no")["error"]


class Raised(Exception):
    """As both SDK majors raise a JSON-RPC error."""

    def __init__(self, answer: Any) -> None:
        super().__init__("no")
        self.error = type("ErrorData", (), answer["error"])()


@pytest.mark.parametrize("status", [None, 404])
def test_a_request_that_did_not_run_is_found_in_an_exception_with_its_cause(status: int | None) -> None:
    known = CallNotExecuted("server" if status else "wire", "its cause", status, "tools/call", "charge")
    below = RuntimeError("wrapped")
    below.__cause__ = Raised(not_executed_answer("h1", "tools/call", "charge", known.by, "its cause", status))
    assert CallNotExecuted.find(below) == known
    assert str(known) == "The tool call 'charge' was not executed: its cause"
    assert (
        CallNotExecuted.find(Raised(session_lost_answer("h1", "tools/call", "charge", "its cause", status)))
        == known
    )
    assert CallInDoubt.find(below) is None
    assert CallNotExecuted.find(Raised(in_doubt_answer(call_of("ping"), DOUBT, as_result=False))) is None
    assert CallNotExecuted.find(ValueError("other")) is None


class Moody(Exception):
    """Its properties raise, as those of a lazy object may."""

    @property
    def result(self) -> Any:
        raise KeyError("not loaded")

    @property
    def error(self) -> Any:
        raise ZeroDivisionError

    @property
    def meta(self) -> Any:
        raise ValueError("lazy")


def test_what_the_properties_of_somebody_else_s_object_raise_is_nobody_s_answer() -> None:
    assert CallInDoubt.find(Moody()) is None
    assert CallInDoubt.find(type("Lazy", (), {"meta": Moody.meta})()) is None
    assert CallNotExecuted.find(Moody()) is None
