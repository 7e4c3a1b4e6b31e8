"""What the guard tells whoever listens (`on_event`, `guard.events()`): typed values, without secrets.

Session and event IDs appear as fingerprints only.
"""

from __future__ import annotations

from attrs import field, frozen

from .model import JSON, Evidence, Generation, Outcome


@frozen
class Connected:
    """A session was opened."""

    session: str
    """Fingerprint of the session ID, or `-` where the server gave none."""
    protocol_version: str | None
    generation: Generation
    server: str
    """The server's own name and version, as far as it tells them: unverified, for people."""


@frozen
class GenerationChosen:
    """How messages travel on this connection, and why so."""

    generation: Generation
    reason: str


@frozen
class EndpointMoved:
    """The endpoint no longer speaks the generation that this connection uses: connect again."""

    generation: Generation | None
    """What it speaks now; None: not known, the next connection finds out."""
    reason: str


@frozen
class Disconnected:
    """A stream was cut before it was finished."""

    stream: str
    reason: str
    undrained: int
    """Messages of this stream that were received but not yet taken by the host."""
    resumable: bool
    wait: float = 0.0
    """Seconds that the server has us wait before the stream may be opened again: its `retry:` or `Retry-After`."""
    attempt: int = 0
    """How often in a row it could not be opened again, for want of a connection or for what came (a status, no
    events); 0: it was cut, or is put off. The first one is logged as a warning. Where others wait for the server,
    too, the first to fail tells it."""


@frozen
class Unreachable:
    """Nothing of a request or notification could be sent, for want of a connection (legacy HTTP+SSE: of a stream
    that says where to post). It is tried again, `max_attempts` times. Where many wait for the same, the first to
    fail so often says so for all of them, until the server is heard again."""

    stream: str
    reason: str
    attempt: int
    """How many have failed in a row; the first one is logged as a warning."""


@frozen
class Resumed:
    """A stream was resumed, and this is what that resume is worth."""

    stream: str
    evidence: Evidence


@frozen
class Discontinuity:
    """Messages of this stream may be lost. Never silent, where the guard can know it."""

    stream: str
    reason: str
    last_good: str | None
    """Fingerprint of the last event received before the break."""
    first_seen: str | None
    """Fingerprint of the first event that did not fit, if one came."""


@frozen
class DuplicateDropped:
    """A replayed message that had been delivered already."""

    stream: str
    event: str
    """Fingerprint of its event ID, or `-` where it has none."""


@frozen
class OrphanDropped:
    """A message that belongs to no request of this session, or a further answer to a call that was sent again.
    Not delivered."""

    stream: str
    reason: str


@frozen
class UnreadableDropped:
    """An event that is not a JSON-RPC message, or is not named `message`, as MCP's are. Not delivered."""

    stream: str
    reason: str


@frozen
class CallSettled:
    """A request has its outcome."""

    wire_id: int
    """Of the sending that settled; `str(wire_id)` is the `stream` of what is told of its stream."""
    method: str
    tool: str | None
    call_key: str
    outcome: Outcome
    reason: str
    answer: JSON | None = field(default=None, repr=False)
    """The answer itself, for `recovered`: nobody may have been waiting for it."""


@frozen
class RepeatRefused:
    """A call equal to one in doubt was not sent: its caller got the same answer."""

    tool: str | None
    call_key: str
    """Of the call in doubt."""


@frozen
class RepeatJoined:
    """A call that repeats one in flight or one already answered was not sent: its caller gets the same answer."""

    tool: str | None
    call_key: str
    """Of the call that it was joined to."""


@frozen
class MaybeRedelivered:
    """This message may have reached the host once before, in the process that died."""

    stream: str
    event: str
    """Fingerprint of its event ID."""


@frozen
class EndpointRefused:
    """The server named a POST endpoint of another origin (legacy HTTP+SSE): nothing was sent there."""

    origin: str
    """Scheme, host and port; never the whole, which holds the session ID."""


@frozen
class StandaloneUnavailable:
    """The server offers no standalone stream (any more), or the client cannot ask for it: a login has failed.
    Requests are not touched by it."""

    reason: str


@frozen
class RefreshSuggested:
    """The host was told to read its lists again: the standalone stream could not be proven continuous, or a
    session or a subscription was opened in place of a lost one."""

    notifications: tuple[str, ...]


@frozen
class ListenedAgain:
    """The stream of a subscription (2026-07-28) was lost, and the server has acknowledged it anew.

    What it would have told meanwhile is lost: the host was sent the notifications that make it read all again.
    """

    stream: str
    missing: tuple[str, ...]
    """What of the subscription the server no longer honours."""


@frozen
class Reinitialized:
    """A session was opened in place of the lost one, and brought to where that was."""

    session: str
    """Fingerprint of the new session."""
    changed: tuple[str, ...]
    """What differs: `protocolVersion`, `serverInfo`, `capabilities`, and `tool NAME` for changed schemas."""
    not_restored: tuple[str, ...] = ()
    """Subscriptions and the like that the server refused, or has not answered for yet; and `tools/list`, where it
    has more pages than are read (100), or gives a cursor twice: what stands behind is not compared."""


@frozen
class SessionLost:
    """The session is gone. Another is opened, within `reinitialize_limit`: `Reinitialized` or `SessionUnavailable`
    follows."""

    session: str
    """Fingerprint of the session ID, or `-` where the server gave none."""
    reason: str


@frozen
class SessionUnavailable:
    """No session could be opened in place of the lost one, or none that lasted. The next request tries again."""

    reason: str
    wait: float | None
    """Seconds, or a little more, until the guard tries again by itself if no request does: the host may listen.
    None: it does not, since that would be of no use, or ask a person to log in."""
    attempt: int
    """How often in a row; the first one is logged as a warning."""


@frozen
class Upgraded:
    """The session goes on over a socket, which was proven to continue where the event stream was."""

    session: str
    """Fingerprint of the session ID."""


@frozen
class UpgradeRefused:
    """The session stays on its event streams, or is back on them: nothing is lost by that."""

    reason: str
    final: bool
    """It is not tried again in this session."""


@frozen
class NotificationLost:
    """A notification or an answer of the host's did not reach the server, or was refused."""

    method: str
    """Of the notification; `response` for an answer to the server."""
    reason: str


@frozen
class StoreFailed:
    """The ledger could not be written, or a write has not come back for 5 s. Requests with possible side effects
    are refused, or wait, while it lasts."""

    reason: str


Event = (
    Connected
    | GenerationChosen
    | EndpointMoved
    | Disconnected
    | Unreachable
    | Resumed
    | Discontinuity
    | DuplicateDropped
    | OrphanDropped
    | UnreadableDropped
    | CallSettled
    | RepeatRefused
    | RepeatJoined
    | MaybeRedelivered
    | ListenedAgain
    | Reinitialized
    | EndpointRefused
    | StandaloneUnavailable
    | RefreshSuggested
    | SessionLost
    | SessionUnavailable
    | Upgraded
    | UpgradeRefused
    | NotificationLost
    | StoreFailed
)
