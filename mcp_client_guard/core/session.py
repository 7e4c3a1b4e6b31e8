"""What is known of the session, and the headers that go with it."""

from __future__ import annotations

from attrs import define, field

from .model import JSON, Generation, SessionOpened, fingerprint
from .state import SESSION, SessionState, SessionStep, step


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

    def move(self, by: SessionStep) -> None:
        self.state = step(SESSION, self.state, by)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.session_id, self.salt)

    def headers(self, method: str) -> dict[str, str]:
        """The headers of every request under this session (2025-11-25 transports, Session Management 2)."""
        return {} if method == "initialize" else session_headers(self.session_id, self.protocol_version)

    def opened(self, session_id: str | None, params: JSON, result: JSON) -> SessionOpened:
        """An `initialize` succeeded: the next incarnation begins."""
        self.incarnation += 1
        self._take(session_id, params, result)
        return SessionOpened(self.incarnation, self.generation, session_id, self.protocol_version, params, result)

    def adopt(self, incarnation: int, session_id: str | None, params: JSON, result: JSON) -> None:
        """Go on with a session that another process has opened."""
        self.incarnation = incarnation
        self._take(session_id, params, result)

    def forget(self) -> None:
        """It is not used; what comes next has the next number all the same."""
        self.session_id = self.protocol_version = self.initialize_params = None
        self.initialize_result, self.capabilities = {}, {}

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


def differences(before: JSON, after: JSON) -> tuple[str, ...]:
    """What the server says of itself in the new session that it did not say in the old one."""
    return tuple(
        name for name in ("protocolVersion", "serverInfo", "capabilities") if before.get(name) != after.get(name)
    )
