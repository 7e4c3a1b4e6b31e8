"""The core, driven by hand: no network, no event loop, no MCP SDK. Each input is ours; each action is printed.

A call is sent, two events come, the connection is lost. The guard then asks for what follows the event *before*
the last one, so that a server which holds the log must send the last one again. The first server here does; the
second has started over.
"""

from __future__ import annotations

import json
from typing import Any

from mcp_client_guard.core import inputs
from mcp_client_guard.core.actions import Action, Deliver, Get, Post, Report
from mcp_client_guard.core.machine import Machine
from mcp_client_guard.core.report import CallSettled, Resumed

HALF = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "half done"}}
OTHER = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "of another caller"}}


def tell(machine: Machine, what: str, told: inputs.Input) -> list[Action]:
    """Give one input, and print the actions in their order (without timers, ledger rows and some reports)."""
    print(f"  {what}")
    actions = machine.receive(told)
    for action in actions:
        match action:
            case Post(message=message):
                print(f"      -> POST {message['method']}")
            case Get(last_event_id=last):
                print(f"      -> GET with Last-Event-ID {last}")
            case Deliver(message=message):
                print(f"      -> deliver {json.dumps(message.get('result', message.get('params')))[:96]} ...")
            case Report(event=Resumed(evidence=evidence)):
                print(f"      -> report: resumed, {evidence}")
            case Report(event=CallSettled(method=method, outcome=outcome)):
                print(f"      -> report: {method} is {outcome.value}")
            case Report(event=event):
                print(f"      -> report: {type(event).__name__}")
    return actions


def event(order: Post | Get, event_id: str, message: Any) -> inputs.EventReceived:
    data = json.dumps(message).encode() if message else b""
    return inputs.EventReceived(order.stream, order.connection, event_id, data, message)


def cut_in_the_middle_of_a_call() -> tuple[Machine, int, Get]:
    """The machine, the ID of the call on the wire, and the order to resume."""
    machine = Machine()
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    actions = tell(machine, "the host opens a session", inputs.MessageSubmitted(hello))
    post = next(a for a in actions if isinstance(a, Post))
    machine.receive(inputs.Answered(post.stream, post.connection, 200, is_events=False, session_id="session-1"))
    answer = {"jsonrpc": "2.0", "id": post.message["id"], "result": {"protocolVersion": "2025-11-25"}}
    tell(machine, "the server answers", inputs.BodyReceived(post.stream, post.connection, answer))

    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge"}}
    actions = tell(machine, "the host calls a tool", inputs.MessageSubmitted(call, call_key="a-uuid"))
    post = next(a for a in actions if isinstance(a, Post))
    machine.receive(inputs.Answered(post.stream, post.connection, 200, is_events=True, session_id="session-1"))
    tell(machine, "event e1 comes, without a message", event(post, "e1", None))
    tell(machine, "event e2 comes", event(post, "e2", HALF))
    machine.receive(inputs.Drained(2))
    lost = inputs.ConnectionLost(post.stream, post.connection, at=1.0, written=True, clean=False, why="reset")
    get = next(a for a in tell(machine, "the connection is lost", lost) if isinstance(a, Get))
    tell(machine, "the GET is answered 200", inputs.Answered(get.stream, get.connection, 200, True, "session-1"))
    return machine, post.message["id"], get


print("A server that holds the log")
guarded, wire_id, resume = cut_in_the_middle_of_a_call()
tell(guarded, "e2 comes again: the witness", event(resume, "e2", HALF))
tell(guarded, "e3 comes", event(resume, "e3", {"jsonrpc": "2.0", "id": wire_id, "result": {"content": []}}))

print("\nA server that has started over")
guarded, _, resume = cut_in_the_middle_of_a_call()
tell(guarded, "e2 comes, but it is another message", event(resume, "e2", OTHER))
