"""What the user may choose, and the one table that says what a refusal means for a request."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from attrs import field, frozen, validators

from .event_id import IdScheme
from .model import JSON, Outcome

_MiB = 1024 * 1024

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
    """A resumable stream without a single byte for this long counts as cut."""
    max_attempts: int = field(default=10, validator=_positive)
    """Failed attempts to open, in a row and without progress, before a call is given up."""
    max_event_size: int = field(default=16 * _MiB, validator=_positive)
    """Bytes in one SSE event or one JSON body."""
    max_held: int = field(default=4096, validator=_positive)
    """Events held while a resumed stream is on trial."""
    trail_size: int = field(default=256, validator=_positive)
    """Received events remembered per stream."""
    trust_read_only_hint: bool = True
    """Whether a tool that says `readOnlyHint` is believed to have no side effects."""

    def deadline_of(self, tool: str | None) -> float:
        """The deadline of a request, in seconds."""
        if not isinstance(self.call_deadline, Mapping):
            return self.call_deadline
        for pattern, seconds in self.call_deadline.items():
            if fnmatchcase(tool or "", pattern):
                return seconds
        return 3600.0

    def may_have_side_effects(self, method: str, annotations: JSON | None) -> bool:
        """Whether a request must be on disk before its first byte leaves.

        Absent annotations mean the worst (schema 2025-11-25, ToolAnnotations: readOnlyHint defaults to false).
        """
        if method != "tools/call":
            return method not in HARMLESS_METHODS
        return not (self.trust_read_only_hint and annotations and annotations.get("readOnlyHint") is True)


@frozen
class Ruling:
    """What an HTTP refusal means for the request that drew it."""

    outcome: Outcome
    by: str
    """`server` if it is the server's word that nothing ran, `answer` if it is an answer like any other."""
    session_gone: bool = False


NOT_RUN_STATUSES = frozenset({307, 308, 401, 403, 413, 415})
"""307 and 308 ask for the same request elsewhere. Other redirects may come from a request that has run."""
BUSY_STATUSES = frozenset({429, 503})


def rule_on(status: int, *, session_sent: bool, rpc_code: int | None) -> Ruling:
    """What this status, on the POST of a request, says of it (DESIGN §5).

    404 means a lost session only if a session ID was sent and the body is not an unknown method (-32601 at
    404 is what 2026-07-28 says for that).
    """
    if status == 404 and session_sent and rpc_code != -32601:
        return Ruling(Outcome.NOT_EXECUTED, "server", session_gone=True)
    if status in NOT_RUN_STATUSES or status in BUSY_STATUSES:
        return Ruling(Outcome.NOT_EXECUTED, "server")
    if 300 <= status < 400:
        return Ruling(Outcome.IN_DOUBT, "server")
    return Ruling(Outcome.COMPLETED, "answer")
