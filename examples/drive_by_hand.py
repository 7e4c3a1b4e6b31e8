"""The core, driven by hand: no network, no event loop, no MCP SDK. Each input is ours; what it makes the core
order is printed, and then how the session and its streams stand.

See that the row of a call is saved before its request is posted, and a position only when the host has taken what
was delivered. The connection is lost, and what follows the event *before* the last one is asked for: a server with
the same log must send the last one again. The first does; the second has started over.
"""

from __future__ import annotations

import json
from typing import Any

from attrs import define, field

from mcp_client_guard.core.actions import Action, CancelTimer, Deliver, Get, Post, Report, Save, SetTimer
from mcp_client_guard.core.inputs import Answered, BodyReceived, ConnectionLost, Drained, EventReceived, Input
from mcp_client_guard.core.inputs import MessageSubmitted as Submitted
from mcp_client_guard.core.machine import Machine

HALF = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "half done"}}
OTHER = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "of another caller"}}


def shown(action: Action) -> str:
    match action:
        case Save(records=records, durable=durable):
            return f"{', '.join(type(r).__name__ for r in records)}{', durable' if durable else ''}"
        case Post(message=message):
            return str(message["method"])
        case Get(last_event_id=last):
            return f"Last-Event-ID: {last}"
        case Deliver(message=message):
            return f"{json.dumps(message.get('result', message.get('params')))[:80]} ..."
        case Report(event=event):
            return f"{type(event).__name__} {getattr(event, 'evidence', '') or getattr(event, 'outcome', '')}"
        case SetTimer(timer=timer) | CancelTimer(timer=timer):
            return timer.kind.name
    return ""


@define
class Hand:
    machine: Machine = field(factory=lambda: Machine(opens_standalone=False))
    order: Any = None  # the newest exchange: a Post or a Get

    def tell(self, what: str, kind: type[Input], *said: Any) -> None:
        """One input. What the server says, it says on the newest exchange."""
        where = () if kind in (Submitted, Drained) else (self.order.stream, self.order.connection)
        print(f"  {what}: {kind.__name__}")
        for action in self.machine.receive(kind(*where, *said)):
            print(f"      {type(action).__name__:11} {shown(action)}".rstrip())
            self.order = action if isinstance(action, Post | Get) else self.order
        streams = [f"stream {s.name} is {s.state.name}" for s in self.machine._streams._streams.values()]
        print(f"    [{', '.join([f'session is {self.machine.session.state.name}', *streams])}]")

    def event(self, what: str, event_id: str, message: Any) -> None:
        self.tell(what, EventReceived, event_id, json.dumps(message).encode() if message else b"", message)


for server, again in (("A server that holds the log", HALF), ("\nA server that has started over", OTHER)):
    print(server)
    hand, session = Hand(), "session-1"
    hand.tell("the host initializes", Submitted, {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}})
    hand.tell("the server answers", Answered, 200, False, session)
    hand.tell("with JSON", BodyReceived, {"id": 1, "jsonrpc": "2.0", "result": {"protocolVersion": "2025-11-25"}})
    hand.tell("the host has taken its answer", Drained, 1)
    hand.tell("and confirms it", Submitted, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    hand.tell("the server accepts that", Answered, 202, False, session)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}
    hand.tell("the host calls a tool", Submitted, call, {}, "call-key")
    hand.tell("the server answers", Answered, 200, True, session)
    hand.event("with e1, which carries nothing", "e1", None)
    hand.event("and e2, a message", "e2", HALF)
    hand.tell("the host has taken it", Drained, 1)
    hand.tell("the connection is lost", ConnectionLost, 1.0, True, False, "reset")
    hand.tell("the GET is answered 200", Answered, 200, True, session)
    hand.event("e2 comes, the witness" if again is HALF else "e2 comes, with another message", "e2", again)
    hand.event("e3 comes", "e3", {"jsonrpc": "2.0", "id": hand.order.stream, "result": {"content": []}})
