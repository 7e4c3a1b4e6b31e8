"""What the user may choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from attrs import field, frozen, validators

from .event_id import IdScheme
from .model import JSON

_MiB = 1024 * 1024

Resend = Literal["always", "never", "if_idempotent"]

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


def _positive(_: Any, attribute: Any, value: Any) -> None:
    values = value.values() if isinstance(value, Mapping) else (value,)
    if not all(isinstance(v, (int, float)) and v > 0 for v in values):
        raise ValueError(f"{attribute.name} must be positive, not {value!r}")


def _resend_words(_: Any, attribute: Any, value: Any) -> None:
    wrong = [word for word in value.values() if word not in ("always", "never", "if_idempotent")]
    if wrong:
        raise ValueError(f"{attribute.name} must be 'always', 'never' or 'if_idempotent', not {wrong[0]!r}")


def _texts(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def _scheme(value: IdScheme | str) -> IdScheme:
    return IdScheme(value)


@frozen(kw_only=True)
class GuardPolicy:
    """How a guarded connection behaves. All times are in seconds.

    Raises:
        ValueError: a time or a bound that is not positive, or an unknown word.
    """

    call_deadline: float | Mapping[str, float] = field(default=3600.0, validator=_positive)
    """The guard's own deadline for a request; or one per tool, by glob (`{"report_*": 7200, "*": 600}`)."""
    in_doubt_as: Literal["result", "error"] = field(
        default="result", validator=validators.in_(("result", "error"))
    )
    """How a tool call in doubt is reported: an `isError` result (frameworks do not repeat those), or an error."""
    on_unverified: Literal["settle", "continue"] = field(
        default="settle", validator=validators.in_(("settle", "continue"))
    )
    """When a witness was due and never came: give its calls up as in doubt, or go on waiting."""
    id_scheme: IdScheme = field(default=IdScheme.OPAQUE, converter=_scheme)
    """Declare `"monotone"` or `"contiguous"` only for a server that promises it: a violation breaks the stream."""
    witness_timeout: float = field(default=5.0, validator=_positive)
    settle_after: float = field(default=60.0, validator=_positive)
    """Give a call up after this long of resumes that each ended without anything new (five or more in a row)."""
    recheck: float = field(default=15.0, validator=_positive)
    """Resume once more if a resumed stream stays without a message this long; doubles up to a minute."""
    max_idle: float = field(default=90.0, validator=_positive)
    """A resumable stream without a single byte for this long counts as cut. One that nobody waits for any more
    (its call was cancelled, say) is closed after this long, whatever comes on it."""
    max_attempts: int = field(default=10, validator=_positive)
    """Failed attempts to open, in a row and without progress, before a call is given up."""
    max_event_size: int = field(default=16 * _MiB, validator=_positive)
    """Bytes in one SSE event or one JSON body."""
    max_held: int = field(default=4096, validator=_positive)
    """Events held while a resumed stream is on trial."""
    trail_size: int = field(default=256, validator=_positive)
    """Received events remembered per stream."""
    trust_read_only_hint: bool = True
    """Whether a tool that says `readOnlyHint` is believed to have no side effects, and may be sent again."""
    trust_idempotent_hint: bool = False
    """Whether a tool that says `idempotentHint` may be sent again."""
    trust_status: bool = False
    """Whether 429 and 503 are believed to say that nothing ran, for calls with side effects, too."""
    resend: Mapping[str, Resend] = field(factory=dict, validator=_resend_words)
    """May a call that may have run be sent again: `"always"`, `"never"` or `"if_idempotent"` by the tool's own
    hints, by glob (`{"get_*": "always", "charge": "never"}`); the first that fits counts."""
    honours_call_key: tuple[str, ...] = field(default=(), converter=_texts)
    """Tools (globs) whose server runs a call key at most once: they may be sent again with the same key."""
    call_key_argument: Mapping[str, str] = field(factory=dict)
    """Copy the call key into this argument of these tools (globs), for servers that de-duplicate by one."""
    is_session_lost: Callable[[int, Any], bool] | None = None
    """For odd servers: given HTTP status and parsed body, whether that says that the session is gone. Asked of
    refusals, of errors with status 200, and of what is no answer; never of a result. What is no JSON is None.
    It must be quick and must not raise (one that does counts as False)."""
    reconcile_timeout: float = field(default=30.0, validator=_positive)
    """How long the `reconcile` hook may take over one call; then the call is in doubt."""
    reinitialize_limit: int = field(default=5, validator=_positive)
    """Sessions opened in place of lost ones within a minute; then requests are refused until it is over."""
    repeat_window: float = field(default=60.0, validator=_positive)
    """An unsafe call equal to one in doubt is not sent for this long."""
    keep_results: bool = False
    """Keep the answers of tool calls in the store after the host has taken them. Those of calls that the host
    has named are always kept."""

    def deadline_of(self, tool: str | None) -> float:
        """The deadline of a request, in seconds."""
        if not isinstance(self.call_deadline, Mapping):
            return self.call_deadline
        return _first_match(self.call_deadline, tool, 3600.0)

    def resend_of(self, tool: str | None) -> Resend | None:
        """What the user says of sending this tool's calls again, if anything."""
        return _first_match(self.resend, tool, None)

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
    return next((v for pattern, v in by_glob.items() if fnmatchcase(tool or "", pattern)), otherwise)
