"""What is known of the session, and the headers that go with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from .messages import says_the_same
from .model import JSON, Generation, SessionOpened, fingerprint
from .modern import version_of, without_session
from .state import SESSION, SessionState, SessionStep, step
from .wire_ids import EarlierIds

_HEADER_FROM = "2025-06-18"
"""The revision that introduced `Mcp-Protocol-Version`, "if using HTTP": so it holds for HTTP+SSE, too."""


@define(eq=False, repr=False)
class Session:
    """The present session of a connection. `state` changes through `move` alone."""

    salt: str = field(default="", repr=False)
    """Keys the fingerprints, so that they cannot be looked up."""
    state: SessionState = SessionState.NEW
    generation: Generation = Generation.STREAMABLE_HTTP
    """How its messages travel."""
    incarnation: int = 0
    session_id: str | None = field(default=None, repr=False)
    protocol_version: str | None = None
    capabilities: JSON = field(factory=dict)
    initialize_params: JSON | None = field(default=None, repr=False)
    """The host's own, for opening another session in its name."""
    initialize_result: JSON = field(factory=dict, repr=False)
    earlier: EarlierIds | None = None
    """Of the requests of earlier connections, if it was opened by one."""

    def move(self, by: SessionStep) -> None:
        self.state = step(SESSION, self.state, by)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.session_id, self.salt)

    @property
    def word(self) -> str:
        """How it stands, for people."""
        return "stateless" if self.needs_none else self.state.name.lower()

    @property
    def needs_none(self) -> bool:
        """The server speaks the generation without sessions, and the host has chosen it."""
        return self.state is SessionState.NEW and self.generation is Generation.STATELESS_HTTP

    def is_stateless(self, stamped: Mapping[str, str]) -> bool:
        """Whether a message with these headers of the host's travels without a session.

        A host that initialized a session stamps the revision agreed on there, whichever that is.
        """
        version = version_of(stamped)
        return (
            self.generation is not Generation.LEGACY_SSE
            and version is not None
            and version != self.protocol_version
        )

    def stamp(self, method: str, stamped: Mapping[str, str]) -> dict[str, str]:
        """The headers of a message that the host has stamped so."""
        if self.is_stateless(stamped):
            return without_session(stamped)
        # Ours win: after a re-initialization the host still stamps the version of the first session.
        return {**stamped, **self.headers(method)}

    def headers(self, method: str) -> dict[str, str]:
        """The headers of every request under this session (2025-11-25 transports, Session Management 2)."""
        return {} if method == "initialize" else session_headers(self.session_id, self._sent_version)

    @property
    def _sent_version(self) -> str | None:
        version, is_legacy = self.protocol_version, self.generation is Generation.LEGACY_SSE
        return None if is_legacy and version is not None and version < _HEADER_FROM else version

    def opened(self, session_id: str | None, params: JSON, result: JSON) -> SessionOpened:
        """An `initialize` succeeded: the next incarnation begins."""
        self.incarnation += 1
        self.earlier = None
        self._take(session_id, params, result)
        return SessionOpened(self.incarnation, self.generation, session_id, self.protocol_version, params, result)

    def adopt(
        self, incarnation: int, session_id: str | None, params: JSON, result: JSON, earlier: EarlierIds | None
    ) -> None:
        """Go on with a session that another process has opened."""
        self.incarnation, self.earlier = incarnation, earlier
        self._take(session_id, params, result)

    def forget(self) -> None:
        """It is not used; what comes next has the next number all the same."""
        self.session_id = self.protocol_version = self.initialize_params = None
        self.initialize_result, self.capabilities = {}, {}
        self.earlier = None

    def _take(self, session_id: str | None, params: JSON, result: JSON) -> None:
        self.session_id = session_id
        self.initialize_params, self.initialize_result = params, result
        version = result.get("protocolVersion")
        self.protocol_version = version if isinstance(version, str) else None
        capabilities = result.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}


def session_headers(session_id: str | None, protocol_version: str | None) -> dict[str, str]:
    headers = {}
    if session_id is not None:
        headers["mcp-session-id"] = session_id
    if protocol_version is not None:
        headers["mcp-protocol-version"] = protocol_version
    return headers


def shown_server(info: Any) -> str:
    """Name and version, from what a server says of itself: unverified, for people. "?" if it says neither."""
    said = [info.get(part) for part in ("name", "version")] if isinstance(info, dict) else []
    named = [str(part).strip() for part in said if isinstance(part, (str, int, float))]
    return " ".join(filter(None, named)) or "?"


def differences(before: JSON, after: JSON) -> tuple[str, ...]:
    """What the server says of itself in the new session that it did not say in the old one."""
    return tuple(
        name
        for name in ("protocolVersion", "serverInfo", "capabilities")
        if not says_the_same(before.get(name), after.get(name))
    )
