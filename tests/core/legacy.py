"""Scenes of a legacy session: the carrier, and what is posted beside it."""

from __future__ import annotations

from typing import Any

from attrs import define

from mcp_client_guard.core.actions import Action, Get, Post
from mcp_client_guard.core.inputs import Answered, IdleElapsed
from mcp_client_guard.core.model import JSON
from tests.core.driver import RESTORED, RESULT, Driver, Peer

URL = "http://h/sse"
LEGACY_RESULT: JSON = {**RESULT, "protocolVersion": "2024-11-05"}


@define
class Legacy(Driver):
    """A connection that begins with the legacy generation, unless `generation` says otherwise."""

    generation: str = "legacy-sse"
    served: int = 0
    """Endpoints named."""

    @property
    def carrier(self) -> Peer:
        return self.peer(0)

    @property
    def get(self) -> Get:
        order = self.orders[0]
        assert isinstance(order, Get)
        return order

    def accepts(self, session_id: str | None = None, url: str | None = URL) -> list[Action]:
        """The GET is answered with a stream."""
        return self.feed(Answered(0, self.carrier.connection, 200, True, session_id, self.now, None, url))

    def names(self, endpoint: str | bytes = "") -> list[Action]:
        """The carrier says where to post."""
        self.served += 1
        data = endpoint or f"/messages?session={self.served}"
        return self.carrier.event(None, data if isinstance(data, bytes) else data.encode(), name="endpoint")

    def serves(self, endpoint: str | bytes = "", *, session_id: str | None = None) -> list[Action]:
        return self.accepts(session_id) + self.names(endpoint)

    def carries(self, message: Any, event_id: str | None = None, **rest: Any) -> list[Action]:
        """A message on the carrier."""
        return self.carrier.event(event_id, message, **rest)

    def takes(self, peer: Peer, status: int = 202) -> list[Action]:
        """The POST is answered without content."""
        return peer.accept(status=status, events=False) + peer.body(None)

    def answers(self, peer: Peer, result: JSON | None = None) -> list[Action]:
        """The POST is taken, and the answer carried."""
        return self.takes(peer) + self.carries(peer.result(result))

    def opened(self, session_id: str | None = None, *, standalone: bool = False) -> Legacy:
        sent = self.request("initialize", {"protocolVersion": "2025-11-25"})
        peer = self.sent("initialize") if sent.stream != -1 else sent
        self.serves(session_id=session_id)
        peer = self.sent("initialize")
        self.answers(peer, LEGACY_RESULT)
        self.notify("notifications/initialized")
        self.takes(self.sent("notifications/initialized"))
        return self

    def reopened(self, session_id: str | None = None, **changed: Any) -> list[Action]:
        """The guard's own `initialize` is answered on a carrier of its own."""
        actions = self.serves()
        actions += self.answers(self.sent("initialize"), {**LEGACY_RESULT, **changed})
        actions += self.takes(self.sent("notifications/initialized"))
        while waiting := [o for o in self.orders.values() if isinstance(o, Post) and self._restores(o)]:
            order = waiting[0]
            assert order.message["method"] in RESTORED
            granted: JSON = {"tools": []} if order.message["method"] == "tools/list" else {}
            actions += self.answers(self.peer(order.stream), granted)
        return actions

    def silent(self, since: float) -> list[Action]:
        """No byte came on the carrier for `max_idle`."""
        self.now += 90
        return self.feed(IdleElapsed(0, self.carrier.connection, self.now, since))
