"""What the user may choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeVar

from attrs import field, frozen

from .event_id import IdScheme
from .model import JSON

_MiB = 1024 * 1024

ResendRule = Literal["always", "never", "if_idempotent"]
"""May a call that may have run be sent again. (`Resend` is a verdict of the `reconcile` hook's.)"""

HARMLESS_METHODS = frozenset(
    {
        "initialize",
        "ping",
        "server/discover",
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
        "logging/setLevel",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "subscriptions/listen",
    }
)
"""Methods that the protocol makes harmless to repeat; every other request may have side effects."""

OPENING_METHODS = frozenset({"initialize", "server/discover"})
"""What a host begins with: where one fails, the URL may be none of an MCP server."""


_STARS_ALONE = re.compile(r"[^?\[\]]*")


def _refuse_unreached(name: str, by_tool: Mapping[str, Any]) -> None:
    """A pattern behind one that fits whatever it fits never counts: who wrote `{"*": "always", "pay_*": "never"}`
    meant something else."""
    for last, pattern in enumerate(patterns := [each for each in by_tool if "*" in each]):
        for earlier in patterns[:last]:
            if _STARS_ALONE.fullmatch(earlier) and fnmatchcase(pattern, earlier):
                raise ValueError(f"{name}: {pattern!r} never counts behind {earlier!r}, put it first")


def _wanted(what: str, fits: Callable[[Any], bool]) -> Callable[[Any, Any, Any], None]:
    """A validator: what does not fit is refused, in words that say what would."""

    def check(_: Any, attribute: Any, value: Any) -> None:
        if not fits(value):
            raise ValueError(f"{attribute.name} must be {what}, not {value!r}")
        if isinstance(value, Mapping):
            _refuse_unreached(attribute.name, value)

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _by_glob(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and fits(v) for k, v in value.items())


def _is_resend(value: Any) -> bool:
    return value in ("always", "never", "if_idempotent")


def _one_of(*words: str) -> Callable[[Any, Any, Any], None]:
    return _wanted(" or ".join(map(repr, words)), lambda value: value in words)


_seconds = _wanted("a number of seconds, more than 0", _is_number)
_seconds_by_tool = _wanted(
    "a number of seconds, more than 0, or one per tool, such as {'report_*': 7200}",
    lambda value: _is_number(value) or _by_glob(value, _is_number),
)
_count = _wanted("a whole number, 1 or more", lambda value: _is_number(value) and isinstance(value, int))
_flag = _wanted("True or False", lambda value: isinstance(value, bool))
_resend_by_tool = _wanted(
    "'always', 'never' or 'if_idempotent' per tool, such as {'get_*': 'always'}",
    lambda value: _by_glob(value, _is_resend),
)
_argument_by_tool = _wanted(
    "the name of an argument per tool, such as {'order': 'idempotency_key'}",
    lambda value: _by_glob(value, _is_name),
)
_predicate = _wanted(
    "a function that is not async, or None",
    lambda value: value is None or (callable(value) and not iscoroutinefunction(value)),
)


_Names = list[str] | tuple[str, ...] | AbstractSet[str]


def _names(value: _Names, which: str) -> tuple[str, ...]:
    """Not any iterable: a text is one, of its letters, and a `*` among them would fit every tool."""
    if not isinstance(value, (list, tuple, AbstractSet)) or not all(map(_is_name, value)):
        raise ValueError(f"{which} must be a list of names, such as ['order_*'], not {value!r}")
    return tuple(value)


def _honouring(value: _Names) -> tuple[str, ...]:
    return _names(value, "honours_call_key")


def _joining(value: _Names) -> tuple[str, ...]:
    return _names(value, "join_in_flight")


def _scheme(value: IdScheme | str) -> IdScheme:
    try:
        return IdScheme(value)
    except ValueError:
        words = ", ".join(repr(scheme.value) for scheme in IdScheme)
        raise ValueError(f"id_scheme must be one of {words}, not {value!r}") from None


@frozen(kw_only=True)
class GuardPolicy:
    """How a guarded connection behaves. All times are in seconds. The fields say more of each.

    Args:
        call_deadline: For a request's outcome (3600), or one per tool, by glob; then it is in doubt.
        open_timeout: The same for `initialize` and `server/discover` (300).
        in_doubt_as: A tool call in doubt is a `"result"` with `isError` (default), or an `"error"`.
        on_unverified: A witness never came: `"settle"` its calls as in doubt (default), or `"continue"`.
        id_scheme: What the server promises of its event IDs: `"opaque"` (default), `"monotone"`, `"contiguous"`.
        witness_timeout: For a resumed stream to prove itself (5).
        settle_after: Of resumes that end at once with nothing new, after which a call is given up (60).
        recheck: Without a message on a resumed stream, after which it is resumed once more (15).
        max_idle: Without a byte, after which a resumable stream counts as cut (90).
        max_attempts: Failed attempts to open, in a row, before the last one (10).
        max_event_size: Bytes in one event or body (16 MiB).
        max_held: Events held while a stream is on trial (4096).
        trail_size: Received events remembered per stream (256).
        trust_read_only_hint: Believe `readOnlyHint` (True).
        trust_idempotent_hint: Believe `idempotentHint` (False).
        trust_status: Believe 429 and 503 that nothing ran (False).
        resend: May a call that may have run be sent again: a `ResendRule` per tool, by glob.
        honours_call_key: Tools (globs) whose server runs a call key at most once.
        call_key_argument: Copy the call key into this argument, per tool, by glob.
        is_session_lost: Whether this status and body say that the session is gone.
        reconcile_timeout: For the `reconcile` hook and one call (30).
        reinitialize_limit: Sessions opened in place of lost ones within a minute (5).
        repeat_window: In which a repeat of a call in doubt is not sent (60), from when somebody was told of it.
        join_in_flight: Tools (globs) of which an equal call in flight is that one come again.
        keep_results: Keep the answers of tool calls after the host has taken them (False).

    Raises:
        ValueError: what cannot be meant: a time or a bound that is not positive, an unknown word, a text in place
            of a list, a number or a truth value. It says what is wanted.
    """

    call_deadline: float | Mapping[str, float] = field(default=3600.0, validator=_seconds_by_tool)
    """The guard's own deadline for a request; or one per tool, by glob (`{"report_*": 7200, "*": 600}`), an
    hour where none fits. Then the call is in doubt, and a repeat is refused. Set it below the host's own timeout:
    SDK 1.x tells a transport nothing of that one, so that a retry after it runs the tool a second time."""
    open_timeout: float = field(default=300.0, validator=_seconds)
    """The same for what a host begins with (`initialize`, `server/discover`), however often that is tried, unless
    `call_deadline` is less: for servers that accept and stay silent. As long as the SDKs' own transports wait; set
    it below what your host waits itself. What the guard tries first meanwhile takes half of it at most."""
    in_doubt_as: Literal["result", "error"] = field(default="result", validator=_one_of("result", "error"))
    """How a tool call in doubt is reported: an `isError` result (frameworks do not repeat those), or an error.
    One that asks for a task (2025-11-25) has an error, whatever this says."""
    on_unverified: Literal["settle", "continue"] = field(default="settle", validator=_one_of("settle", "continue"))
    """When a witness was due and never came: give its calls up as in doubt, or go on waiting."""
    id_scheme: IdScheme = field(default=IdScheme.OPAQUE, converter=_scheme)
    """Declare `"monotone"` or `"contiguous"` only for a server that promises it: a violation breaks the stream."""
    witness_timeout: float = field(default=5.0, validator=_seconds)
    """How long a resumed stream has to prove itself, and what is overdue has to follow, such as an answer in the
    place of one that could not be read."""
    settle_after: float = field(default=60.0, validator=_seconds)
    """Give a call up after this long of resumes that each ended within 5 s without anything new (five or more in a
    row; a server that holds one open for longer waits for the call, too). Where answers come on another stream
    than their POST's (legacy HTTP+SSE, and servers that were seen to do so): so long a call waits for its answer
    after its POST was lost, or drew what a proxy may say."""
    recheck: float = field(default=15.0, validator=_seconds)
    """Resume once more if a resumed stream stays without a message this long; doubles up to a minute."""
    max_idle: float = field(default=90.0, validator=_seconds)
    """A resumable stream without a single byte for this long counts as cut. One that nobody waits for any more
    (its call was cancelled, say) is closed after this long, whatever comes on it."""
    max_attempts: int = field(default=10, validator=_count)
    """Failed attempts to open, in a row and without progress, after which a call is tried once more and given up:
    10 are eleven attempts, over about 43 s where each fails at once (the waits between them double from 0.1 s to
    10 s; a server's `retry:` makes them longer). What may be sent again, and draws 429 or 503, or 502, 504 or
    a cut within a second, is sent ten times in all, over about 33 s."""
    max_event_size: int = field(default=16 * _MiB, validator=_count)
    """Bytes in one SSE event or one JSON body."""
    max_held: int = field(default=4096, validator=_count)
    """Events held while a resumed stream is on trial."""
    trail_size: int = field(default=256, validator=_count)
    """Received events remembered per stream."""
    trust_read_only_hint: bool = field(default=True, validator=_flag)
    """Whether a tool that says `readOnlyHint` is believed to have no side effects, and may be sent again."""
    trust_idempotent_hint: bool = field(default=False, validator=_flag)
    """Whether a tool that says `idempotentHint` may be sent again."""
    trust_status: bool = field(default=False, validator=_flag)
    """Whether 429 and 503 are believed to say that nothing ran, for calls with side effects, too; also 503 without
    `Retry-After`."""
    resend: Mapping[str, ResendRule] = field(factory=dict, validator=_resend_by_tool)
    """May a call that may have run be sent again: `"always"`, `"never"` or `"if_idempotent"` by the tool's own
    hints, by name or glob (`{"get_*": "always", "charge": "never"}`). A tool's own name counts before any glob; of
    globs, the first that fits. Names are the server's, without a prefix that a framework puts before them."""
    honours_call_key: tuple[str, ...] = field(default=(), converter=_honouring)
    """Tools (globs) whose server runs a call key at most once: they may be sent again with the same key."""
    call_key_argument: Mapping[str, str] = field(factory=dict, validator=_argument_by_tool)
    """Copy the call key into this argument of these tools (globs), for servers that de-duplicate by one. One that
    the host has put there is left as it is, and tells two calls apart: keep it from models, which make one up."""
    is_session_lost: Callable[[int, Any], bool] | None = field(default=None, validator=_predicate)
    """For odd servers: given HTTP status and parsed body, whether that says that the session is gone. Asked of
    refusals, of errors with status 200, and of what is no answer; never of a result. What is no JSON is None.
    It must be quick and must not raise (one that does counts as False)."""
    reconcile_timeout: float = field(default=30.0, validator=_seconds)
    """How long the `reconcile` hook may take over one call; then the call is in doubt."""
    reinitialize_limit: int = field(default=5, validator=_count)
    """Sessions opened in place of lost ones within a minute; then requests are refused until it is over."""
    repeat_window: float = field(default=60.0, validator=_seconds)
    """An unsafe call equal to one in doubt is not sent for this long."""
    join_in_flight: tuple[str, ...] = field(default=(), converter=_joining)
    """Tools (globs) of which an equal unsafe call, while one is in flight, is that one come again, even if nothing
    is wrong with it, and gets its answer: for hosts on SDK 1.x, whose timeouts no transport hears of.
    Else two equal calls on healthy streams are two. Two that are meant at once need names (`Guard.call_key`)."""
    keep_results: bool = field(default=False, validator=_flag)
    """Keep the answers of tool calls in the store after the host has taken them. Those of calls that the host
    has named are always kept."""

    def deadline_of(self, tool: str | None, method: str = "tools/call") -> float:
        """The deadline of a request, in seconds."""
        by_tool = self.call_deadline
        seconds = _first_match(by_tool, tool, 3600.0) if isinstance(by_tool, Mapping) else by_tool
        return min(seconds, self.open_timeout) if method in OPENING_METHODS else seconds

    def deadline_name(self, method: str) -> str:
        """What of these a request without an answer in time was held to."""
        opens = method in OPENING_METHODS and self.deadline_of(None, method) == self.open_timeout
        return "open_timeout" if opens else "call_deadline"

    def resend_of(self, tool: str | None) -> ResendRule | None:
        """What the user says of sending this tool's calls again, if anything."""
        return _first_match(self.resend, tool, None)

    def joins_in_flight(self, tool: str | None) -> bool:
        return any(fnmatchcase(tool or "", pattern) for pattern in self.join_in_flight)

    def call_key_argument_of(self, tool: str | None) -> str | None:
        return _first_match(self.call_key_argument, tool, None)

    def may_have_side_effects(self, method: str, annotations: JSON | None) -> bool:
        """Whether a request must be on disk before its first byte leaves.

        Absent annotations mean the worst (schema 2025-11-25, ToolAnnotations: readOnlyHint defaults to false).
        """
        if method != "tools/call":
            return method not in HARMLESS_METHODS
        return not (self.trust_read_only_hint and annotations and annotations.get("readOnlyHint") is True)


V = TypeVar("V")
D = TypeVar("D")


def _first_match(by_glob: Mapping[str, V], tool: str | None, otherwise: D) -> V | D:
    name = tool or ""
    if name in by_glob:
        return by_glob[name]
    return next((v for pattern, v in by_glob.items() if fnmatchcase(name, pattern)), otherwise)
