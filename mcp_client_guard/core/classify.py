"""What a failure says of a request: the one table (DESIGN §5).

| seen | it ran | the session |
|---|---|---|
| nothing written (connect, pool or TLS error; a row that could not be saved) | no, by wire | |
| a result under the ID of this request, with any status (`Streams.refused`) | answered | |
| 404 with our session ID, unless -32601, or as in the next row | no, by server | gone |
| 404 with an error that names the request, and no suspect code | answered, or by server if it is gone | ask |
| 404 without one | answered | |
| 404, 405 or 421 without a JSON-RPC error, more than a second after an unsafe call was sent | may have run | ask |
| 401, 403, 307, 308 | no, by server | ask |
| 413, 415 | no, by server | |
| 429, 503 | no, by server (a proxy may say so after it ran: only safe calls are sent again) | ask at 503 |
| 503 without `Retry-After`, to an unsafe call | may have run, also if it is gone | ask |
| 414, 431, 404 with -32601 | answered | |
| 400, 402, 405-407, 409-412, 417, 419, 421-423, 425, 426, 428, 440, 451 | answered, or by server if gone | ask |
| of these, with an error of -32602 that has an ID | answered, or may have run if it is gone | ask |
| of these, with an error of -32020 (2026-07-28: a header that does not fit the body) | no, and answered | ask |
| any other 4xx | answered, or may have run if it is gone or to an unsafe call | ask |
| 502, 504, 520, 522, 524 without a JSON-RPC error | may have run: a proxy lost the server | ask |
| any other 5xx | answered, or may have run if it is gone or to an unsafe call | ask |
| any of these with an error that names the request, and no suspect code | answered | ask |
| the same, by 408, 424, 499, 502-504, 52x or with a code of a lost connection, if unsafe | may have run | ask |
| any other 3xx (302 to a page to log in) | may have run | ask |
| 200 with an error of -32600 | answered, or by server if the session is gone | ask |
| 200 with an error of -32000 or -32001 | answered, or may have run if it is gone or to an unsafe call | ask |
| 200 with an error of 408, 0, -32003 or -32004 | answered, or may have run to an unsafe call | |
| any other answer with 200 | answered | |
| 2xx with what is no answer: HTML, nothing, an error that is no JSON-RPC | may have run | ask |
| written, then lost | may have run | |

"Ask", where our session ID was sent: a `ping` under it decides. If it draws the same refusal, the session is gone,
provided that another can be opened in which a `ping` is answered, or refused as only a session does it. "If it is
gone" holds for requests that drew just what the ping drew; any other refusal is what it is, even if the session is
known to be gone by other signs. An unsafe call may have side effects, and no consent to be sent again: a gateway
says such of whatever was running when it lost its server, and may answer a `ping` itself. A server that was
upgraded to 2026-07-28 ignores the session ID, and refuses the ping in the words of that revision, whichever they
are; without a session ID such words are answers, and any other 4xx shows a server that knows sessions (again).
Whatever came for a request before (an event, progress) shows that it was taken: then nothing says that it did not
run.
-32000 and -32001 with 200 do not say so either: the TypeScript SDK has them for "connection closed" and "request
timed out", which a gateway says of whatever was running when its own connection was lost; the Go SDK has 0 for any
error of Go's, -32003 and -32004 for a side that closes. With 400 they come from a server that has not read the
request.
Prose is never read; for odd servers there is `GuardPolicy.is_session_lost`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

from attrs import frozen

from .messages import is_message


class Ran(Enum):
    """Whether a request can have run."""

    NO = auto()
    MAYBE = auto()
    REFUSED = auto()
    """No, and what came is its answer all the same."""
    ANSWERED = auto()
    """What came is its answer, whatever it says."""


class SessionWord(Enum):
    """What an answer says of the session it was sent under."""

    ALIVE = auto()
    GONE = auto()
    ASK = auto()


@frozen
class Ruling:
    """What a refusal means for the request that drew it, and for its session."""

    ran: Ran
    session: SessionWord = SessionWord.ALIVE
    ran_if_gone: Ran = Ran.NO
    """If the session turns out to be gone."""


_NOT_RUN = frozenset({307, 308, 401, 403, 413, 415})
"""307 and 308 ask for the same request elsewhere. Other redirects may come from a request that has run."""
BUSY = frozenset({429, 503})
LOCKED = frozenset({401, 403})
_LATER = LOCKED | {408, 409, 425, 429}
_GATEWAY = frozenset({502, 504, 520, 522, 524})
"""A proxy sent the request on and got no answer, or none that it could read (RFC 9110; 52x: Cloudflare)."""
_SUSPECT_CODES = frozenset({-32000, -32001, -32600, 32600})
"""JSON-RPC codes under which servers in the field report dead sessions (HAZARDS); they say other things, too."""
_MAY_MEAN_LEGACY = frozenset({400, 404, 405})
_SAID_OF_RUNNING = frozenset({0, -32000, -32001, -32003, -32004, 408})
"""JSON-RPC codes of the SDKs for a connection that was closed and a request that took too long: gateways say so of
what they had running."""
_SAYS_NOTHING = frozenset({413, 414, 415, 429, 431})
"""Said of the request alone, like 404 with -32601. Every other refusal may be the word of a server that has lost
the session: they use them all (302 to a page to log in, 419, 428, 440)."""
_REFUSED_UNREAD = frozenset(
    {400, 402, 404, 405, 406, 407, 409, 410, 411, 412, 417, 419, 421, 422, 423, 425, 426, 428, 440, 451}
)
"""Where the session is gone, this was said of the session, before the request was looked at. 408, 424 (what AWS
makes of a container that failed) or 499 may be said of one that is running."""

_NO_SUCH_PLACE = frozenset({404, 405, 421})
"""Said before anything runs, and so at once. nginx says 404 of a request whose time is up where its error page is
missing."""
_OF_RUNNING = _GATEWAY | {408, 424, 499, 503}
"""Gateways that speak MCP say so with an error under the ID of the request, too."""
HEADER_MISMATCH = -32020
"""Compared before a tool runs. The other errors of 2026-07-28 a tool can raise itself."""

LONGEST_RETRY_AFTER = 60.0
"""Seconds that a server may have us wait before anything is tried again."""

UNSUPPORTED_VERSION = -32022
MODERN_CODES = frozenset({HEADER_MISMATCH, -32021, UNSUPPORTED_VERSION})
"""The errors by which a server of 2026-07-28 is recognised (SPEC-FACTS §15); -32001, -32003 and -32004 are not."""
INVALID_PARAMS, METHOD_NOT_FOUND = -32602, -32601
INTERNAL_ERROR = -32603
_WITHOUT_SESSIONS_ONLY = frozenset({400, 404, 405, 406, 410, 422, 426})


def code_of(body: Any) -> int | None:
    """The JSON-RPC error code in a parsed body. Where that does not say what it is, a positive one is a REST
    gateway's, whose errors have codes, too."""
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    is_rpc_s = isinstance(code, int) and (code <= 0 or body.get("jsonrpc") == "2.0")
    return code if is_rpc_s else None


def is_modern(body: Any) -> bool:
    """Whether only a server of 2026-07-28 says so, whatever it was asked."""
    return code_of(body) in MODERN_CODES


def knows_no_session(status: int, body: Any) -> bool:
    """Whether a server of 2026-07-28 may say so to a `ping` or an `initialize`: that revision knows neither.

    A server of an earlier one that does not speak the version asked for says -32602, too, and names what it does.
    """
    if is_modern(body):
        return True
    code = code_of(body)
    names_versions = code is not None and _names_versions(body["error"].get("data"))
    return (status, code) in ((400, INVALID_PARAMS), (404, METHOD_NOT_FOUND)) and not names_versions


def _names_versions(data: Any) -> bool:
    words = data if isinstance(data, dict) else (data,)
    return any(isinstance(word, str) and "supported" in word for word in words)


def knows_only_sessions(status: int, body: Any) -> bool:
    """Whether no server of 2026-07-28 says so to a request of that revision (SPEC-FACTS §13)."""
    return status in _WITHOUT_SESSIONS_ONLY and not knows_no_session(status, body)


def rule_on(
    status: int,
    body: Any,
    *,
    session_sent: bool,
    names_it: bool = False,
    unsafe: bool = False,
    may_retry: bool = False,
    is_late: bool = False,
    is_session_lost: Callable[[int, Any], bool] | None = None,
) -> Ruling:
    """What this status, on the POST of a request, says of it. Total: never raises.

    `body`: with 2xx, the one message that answers the request, or whatever came instead. A result is an answer,
    of which no predicate is asked. `names_it`: it has the ID of the request. `unsafe`: that is a call which may
    have side effects. `may_retry`: there is a `Retry-After`. `is_late`: the request had had time to run.
    """
    if status < 300 and _is_result(body):
        return Ruling(Ran.ANSWERED)
    if session_sent and is_session_lost is not None and _says_so(is_session_lost, status, body):
        return Ruling(Ran.NO, SessionWord.GONE)
    if status < 300:
        return _rule_on_answer(body, SessionWord.ASK if session_sent else SessionWord.ALIVE, unsafe=unsafe)
    said = _Said(status, body, code_of(body), session_sent, names_it, unsafe, may_retry, is_late)
    return Ruling(_ran(said), _word(said), _ran_if_gone(said))


@frozen
class _Said:
    """A refusal, with a status from 300 on, and what bears on it (`rule_on`)."""

    status: int
    body: Any
    code: int | None
    session_sent: bool
    names_it: bool
    unsafe: bool
    may_retry: bool
    is_late: bool

    @property
    def is_of_the_request(self) -> bool:
        """It names the request, and its code is none under which servers report dead sessions."""
        return self.names_it and self.code is not None and self.code not in _SUSPECT_CODES

    @property
    def is_the_servers_own(self) -> bool:
        """Nor does a gateway say so of what was running when it lost its server."""
        is_of_running = self.status in _OF_RUNNING or self.code in _SAID_OF_RUNNING
        return self.is_of_the_request and not is_of_running

    @property
    def blames_arguments(self) -> bool:
        """As a tool does by -32602, which it says of its own output, too; but not with 404, nor of no request."""
        return self.code == INVALID_PARAMS and self.status != 404 and self.body.get("id") is not None

    @property
    def knows_no_method(self) -> bool:
        return self.status == 404 and self.code == METHOD_NOT_FOUND

    @property
    def may_be_of_a_mesh(self) -> bool:
        """A service mesh says 503, and no `Retry-After`, of what was running as well."""
        return self.status == 503 and self.unsafe and not self.may_retry

    @property
    def may_be_of_a_timeout(self) -> bool:
        """Too late to be said before anything ran, as a server says it."""
        return self.unsafe and self.is_late and is_of_router(self.status, self.body)

    @property
    def may_be_of_running(self) -> bool:
        """Whoever says so may have passed the request on, whatever the session has come to."""
        is_redirect = self.status < 400 and self.status not in _NOT_RUN
        is_of_proxy = self.may_be_of_a_mesh or self.may_be_of_a_timeout or is_of_gateway(self.status, self.body)
        return is_redirect or is_of_proxy


def _word(said: _Said) -> SessionWord:
    """What a refusal says of the session."""
    if not said.session_sent or said.status in _SAYS_NOTHING or said.knows_no_method:
        return SessionWord.ALIVE
    if said.status == 404 and not (said.is_of_the_request or said.may_be_of_a_timeout):
        return SessionWord.GONE
    return SessionWord.ASK


def _ran(said: _Said) -> Ran:
    """What it says of the request, if the session lives; or if it says itself that the session is gone."""
    if said.may_be_of_running:
        return Ran.MAYBE
    if _word(said) is SessionWord.GONE or said.status in _NOT_RUN or said.status in BUSY:
        return Ran.NO
    if said.code == HEADER_MISMATCH:
        return Ran.REFUSED
    is_unread = said.status in _REFUSED_UNREAD or said.status in _SAYS_NOTHING
    return Ran.ANSWERED if is_unread or said.is_the_servers_own or not said.unsafe else Ran.MAYBE


def _ran_if_gone(said: _Said) -> Ran:
    """What it says of the request, if a ping shows that the session is gone."""
    if said.may_be_of_running:
        return Ran.MAYBE
    if said.status in _NOT_RUN or said.status in BUSY:
        return Ran.NO
    return Ran.NO if said.status in _REFUSED_UNREAD and not said.blames_arguments else Ran.MAYBE


def is_of_gateway(status: int, body: Any) -> bool:
    """Whether a proxy says so that got no answer from the server."""
    return status in _GATEWAY and code_of(body) is None


def may_pass(status: int) -> bool:
    """Whether a refusal is of the moment, or of who asks then: what is asked may be granted later."""
    return status >= 500 or status in _LATER


def is_of_moment(status: int) -> bool:
    """Whether it is not a word on who asks either: a proxy may say so of what is running."""
    return may_pass(status) and status not in LOCKED


def is_worth_repeating(status: int) -> bool:
    """Whether what does no harm by coming twice may be taken a little later. To a POST, 409 is a word on what was
    posted."""
    return is_of_moment(status) and status != 409


def may_be_away(status: int) -> bool:
    """Whether a server that is away for a while, or overloaded, says so, or what stands before it does."""
    return status >= 500 or status in BUSY


def is_of_router(status: int, body: Any) -> bool:
    """Whether what stands before the server may say so, while that is replaced, of an endpoint that has worked
    (Traefik, the default backend of Kubernetes, the files that nginx has instead)."""
    return status in _NO_SUCH_PLACE and code_of(body) is None


def is_unread(status: int) -> bool:
    """Whether only a server, or what stands before it, says so that has not passed the request on."""
    return (status in _REFUSED_UNREAD or status in _SAYS_NOTHING) and not may_pass(status)


def once_taken(ran: Ran, status: int, *, unsafe: bool) -> Ran:
    """Whether a request has run for which something had come before: it was not refused unread, whatever says so.

    `unsafe`: a call which may have side effects, and no error under its ID says what became of it.
    """
    is_unread_word = ran is Ran.ANSWERED and unsafe and status in _REFUSED_UNREAD
    return Ran.MAYBE if is_unread_word or ran in (Ran.NO, Ran.REFUSED) else ran


def may_be_legacy(status: int, body: Any) -> bool:
    """Whether an `initialize` is refused as a server does that speaks HTTP+SSE only (2026-07-28 transports,
    Backwards Compatibility; never at 401, 403 or 429, nor at a 5xx)."""
    return status in _MAY_MEAN_LEGACY and not is_modern(body)


def ends_legacy(status: int) -> bool:
    """Whether a refusal that may mean a lost session means so where the session is a stream that stands, or has
    ended: there is no opening another beside it to see."""
    return status < 500 and status not in LOCKED


def _is_result(body: Any) -> bool:
    return isinstance(body, dict) and is_message(body) and body.get("result") is not None


def _rule_on_answer(body: Any, word: SessionWord, *, unsafe: bool) -> Ruling:
    if not isinstance(body, dict) or not is_message(body):
        return Ruling(Ran.MAYBE, word, Ran.MAYBE)
    code = code_of(body)
    is_of_running = code in _SAID_OF_RUNNING
    ran = Ran.MAYBE if is_of_running and unsafe else Ran.ANSWERED
    if code not in _SUSPECT_CODES:
        return Ruling(ran)
    return Ruling(ran, word, Ran.MAYBE if is_of_running else Ran.NO)


def is_suspect_answer(message: Any) -> bool:
    """Whether an answer with status 200 may be the word of a server that has lost the session."""
    return code_of(message) in _SUSPECT_CODES


def is_said_in_session(status: int, body: Any) -> bool:
    """Whether a refusal sounds as that of a server which has the session: likely, and no proof that it does."""
    return status < 500 and code_of(body) is not None and not is_suspect_answer(body)


def _says_so(predicate: Callable[[int, Any], bool], status: int, body: Any) -> bool:
    try:
        return bool(predicate(status, body))
    except Exception:
        return False
