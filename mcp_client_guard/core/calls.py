"""Requests and the session they go out in: what the host sends, and whose answer a message is."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Any

from attrs import define, field

from .actions import CancelTimer, Report, Save, SetTimer, Timer, TimerKind
from .answers import error_answer, session_lost_answer
from .inputs import MessageSubmitted
from .ledger import Call, arguments_digest, host_token_of, subscription_of, to_wire, with_subscription
from .model import JSON, CallSent, Generation, Outcome
from .outcomes import Outcomes, deadline_timer
from .report import Connected, NotificationLost, OrphanDropped
from .state import SessionState, SessionStep
from .stream import Stream

CONFIRM_SECONDS = 0.5
"""How long requests wait for the server to have taken `notifications/initialized`. Servers refuse requests
that overtake it; a slow answer to it must not hold the host up."""

_STATELESS_FROM = "2026-07-28"


class Taken(Enum):
    """What became of a message from the server."""

    DELIVERED = auto()
    LATE = auto()
    ORPHAN = auto()


_DELIVERED = Taken.DELIVERED  # on Python 3.11 too slow to look up for every event


@define(eq=False, repr=False)
class Calls(Outcomes):
    """What passes between the host and its requests."""

    answers_probe: bool
    """Answer the host's `server/discover` locally, so that it falls back to sessions."""
    opens_standalone: bool
    annotations: dict[str, JSON] = field(factory=dict, init=False)
    subscriptions: set[str] = field(factory=set, init=False)
    _waiting: deque[MessageSubmitted] = field(factory=deque, init=False)
    _confirming: int | None = field(default=None, init=False)

    @property
    def queued(self) -> int:
        """Requests that wait for `notifications/initialized` to be taken."""
        return len(self._waiting)

    # From the host.

    def submit(self, sent: MessageSubmitted) -> None:
        message = sent.message
        if "method" not in message:
            self._post_note(sent, "response")
        elif "id" in message:
            self._request(sent)
        else:
            self._notification(sent)

    def _request(self, sent: MessageSubmitted) -> None:
        method = sent.message["method"]
        if method == "server/discover" and self.answers_probe:
            self._deliver(error_answer(sent.message["id"], -32601, "Method not found"))
            return
        if method == "initialize":
            self.session.move(SessionStep.INITIALIZE_SENT)
        elif self.session.state is SessionState.LOST:
            self._deliver(session_lost_answer(sent.message["id"], "the session is lost"))
            return
        elif self.session.state is SessionState.CONFIRMING and method != "ping":
            self._waiting.append(sent)
            return
        self._send(sent)

    def _send(self, sent: MessageSubmitted) -> None:
        call = self._call_from(sent)
        self.ledger.admit(call)
        row = CallSent(
            call.incarnation,
            call.wire_id,
            call.method,
            call.tool,
            call.call_key,
            arguments_digest(call.params),
            call.may_have_side_effects,
        )
        self.out.append(SetTimer(deadline_timer(call), self.policy.deadline_of(call.tool)))
        # The row before the Post: no byte of a side-effecting request leaves before it is on disk (S12).
        self.out.append(Save((row,), durable=call.may_have_side_effects))
        self.streams.post_call(call, to_wire(sent.message, call), sent.headers)

    def _call_from(self, sent: MessageSubmitted) -> Call:
        message = sent.message
        method: str = message["method"]
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        name = params.get("name") if method == "tools/call" else None
        tool = name if isinstance(name, str) else None
        version = sent.headers.get("mcp-protocol-version", "")
        return Call(
            wire_id=self.ledger.new_wire_id(),
            host_id=message["id"],
            method=method,
            tool=tool,
            params=params,
            call_key=sent.call_key,
            may_have_side_effects=self.policy.may_have_side_effects(method, self.annotations.get(tool or "")),
            incarnation=self.session.incarnation,
            stateless=self.session.state is SessionState.NEW and version >= _STATELESS_FROM,
            host_token=host_token_of(message),
        )

    def _notification(self, sent: MessageSubmitted) -> None:
        method = sent.message["method"]
        if method == "notifications/cancelled":
            self._cancel(sent)
            return
        number = self._post_note(sent, method)
        if method == "notifications/initialized" and number is not None:
            self.session.move(SessionStep.INITIALIZED_SENT)
            self._confirming = number
            self.out.append(SetTimer(Timer(TimerKind.CONFIRM, number), CONFIRM_SECONDS))

    def _post_note(self, sent: MessageSubmitted, method: str) -> int | None:
        if self.session.state is SessionState.LOST:
            self.out.append(Report(NotificationLost(method, "the session is lost")))
            return None
        return self.streams.post_note(self.ledger.new_wire_id(), method, sent.message, sent.headers)

    def _cancel(self, sent: MessageSubmitted) -> None:
        params = sent.message.get("params")
        params = params if isinstance(params, dict) else {}
        call = self.ledger.by_host_id(params.get("requestId"))
        if call is None:
            self._waiting = deque(w for w in self._waiting if w.message["id"] != params.get("requestId"))
            return
        self.streams.conclude(call)
        if not call.in_flight:
            return
        sent_before = self.streams.cancel(call)
        if sent_before and not call.stateless:
            message = {**sent.message, "params": {**params, "requestId": call.wire_id}}
            headers = sent.headers
            self.streams.post_note(self.ledger.new_wire_id(), "notifications/cancelled", message, headers)
        call.cancelled = sent_before
        before = "" if sent_before else " before it was sent"
        self._settle(call, Outcome.CANCELLED, f"cancelled by the caller{before}")

    def confirmed(self, number: int) -> None:
        """`notifications/initialized` was taken, or its time is over: requests may go out."""
        if self._confirming != number or self.session.state is not SessionState.CONFIRMING:
            return
        self._confirming = None
        self.out.append(CancelTimer(Timer(TimerKind.CONFIRM, number)))
        self.session.move(SessionStep.INITIALIZED_TAKEN)
        if self.session.session_id is not None and self.opens_standalone:
            self.streams.open_standalone()
        self._release()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for sent in waiting:
            self._request(sent)

    # From the server.

    def take(self, stream: Stream, message: JSON, *, direct: bool = False) -> Taken:
        """Deliver one message of the server's, if it is somebody's.

        `direct`: it came in the answer to our own POST, where an error without an ID means that request.
        """
        if "method" not in message:
            return self._take_answer(stream, message, direct)
        if "id" not in message:
            if message["method"] == "notifications/progress":
                return self._take_progress(stream, message)
            if stream.call is not None and stream.call.stateless and subscription_of(message) is not None:
                message = with_subscription(message, stream.call.host_id)
        self.streams.deliver(stream, message)
        return _DELIVERED

    def _take_progress(self, stream: Stream, message: JSON) -> Taken:
        params = message.get("params") or {}
        token = params.get("progressToken")
        call = self.ledger.owing(token)
        if call is not None and call.in_flight and call.host_token is not None:
            self.streams.deliver(stream, {**message, "params": {**params, "progressToken": call.host_token}})
            return Taken.DELIVERED
        if call is not None or self.ledger.was_issued(token):
            return Taken.LATE
        self.out.append(Report(OrphanDropped(stream.name, "progress for a token never issued")))
        return Taken.ORPHAN

    def _take_answer(self, stream: Stream, message: JSON, direct: bool) -> Taken:
        answered = message.get("id")
        call = self._owing(stream, answered)
        if call is None and answered is None and direct and "error" in message and stream.call is not None:
            call = self._owing(stream, stream.call.wire_id)
        if call is None:
            if self.ledger.was_issued(answered):
                return Taken.LATE
            self.out.append(Report(OrphanDropped(stream.name, "an answer to a request never sent")))
            return Taken.ORPHAN
        self._complete(stream, call, message)
        return Taken.DELIVERED

    def owed(self, stream: Stream, message: JSON) -> Call | None:
        """The request that this message answers, if it still waits for one or is in doubt."""
        return None if "method" in message else self._owing(stream, message.get("id"))

    def is_answer_of(self, call: Call, body: Any) -> bool:
        """Whether this, though no message, is meant as the answer to this request."""
        return (
            call.in_flight
            and isinstance(body, dict)
            and "method" not in body
            and self.ledger.owing(body.get("id")) is call
        )

    def owner_of(self, stream: Stream, message: JSON) -> Call | None:
        """The request that this message is an answer to, or progress of; None if it is of neither kind."""
        if message.get("method") != "notifications/progress":
            return self.owed(stream, message)
        return self._owing(stream, (message.get("params") or {}).get("progressToken"))

    def _owing(self, stream: Stream, answered: object) -> Call | None:
        """Only a request of this session, or of the stream itself (S8, S13)."""
        call = self.ledger.owing(answered)
        if call is None or call is stream.call or call.incarnation == self.session.incarnation:
            return call
        return None

    def _complete(self, stream: Stream, call: Call, message: JSON) -> None:
        late = not call.in_flight
        if not late and call.host_id is not None:
            self._learn_from(stream, call, message)
            answer = {**message, "id": call.host_id}
            if call.stateless and subscription_of(message) is not None:
                answer = with_subscription(answer, call.host_id)
            self.streams.deliver(stream, answer)
        if late:
            self._settle(call, Outcome.RECOVERED, "the answer came late")
        else:
            self._settle(call, Outcome.COMPLETED, "answered")
        self.streams.finish_call(call.wire_id, by=stream)

    def _learn_from(self, stream: Stream, call: Call, message: JSON) -> None:
        result = message.get("result")
        if not isinstance(result, dict):
            return
        if call.method == "initialize":
            self._opened(stream, call, result)
        elif call.method == "tools/list":
            self._learn_tools(result)
        elif call.method in ("resources/subscribe", "resources/unsubscribe"):
            uri = call.params.get("uri")
            if isinstance(uri, str):
                change = (
                    self.subscriptions.add if call.method.endswith("/subscribe") else self.subscriptions.discard
                )
                change(uri)

    def _opened(self, stream: Stream, call: Call, result: JSON) -> None:
        self.streams.forget_session(stream)
        self.subscriptions.clear()
        record = self.session.opened(stream.offered_session_id, call.params, result)
        info = result.get("serverInfo")
        info = info if isinstance(info, dict) else {}
        self.out.append(Save((record,)))
        self.out.append(
            Report(
                Connected(
                    self.session.fingerprint,
                    self.session.protocol_version,
                    Generation.STREAMABLE_HTTP,
                    f"{info.get('name', '?')} {info.get('version', '?')}",
                )
            )
        )

    def _learn_tools(self, result: JSON) -> None:
        tools = result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                annotations = tool.get("annotations")
                self.annotations[tool["name"]] = annotations if isinstance(annotations, dict) else {}

    def ping(self) -> Call:
        """Send a ping of our own."""
        call = Call(self.ledger.new_wire_id(), None, "ping", None, {}, "", False, self.session.incarnation)
        self.ledger.admit(call)
        self.streams.post_call(call, {"jsonrpc": "2.0", "id": call.wire_id, "method": "ping"}, {})
        return call

    def close(self) -> None:
        """The host has left: what is unanswered stays in the ledger as what it is."""
        self._waiting.clear()
        for call in self.ledger.in_flight():
            self.streams.conclude(call)
        for call in self.ledger.in_flight():
            sent = self.streams.cancel(call)
            outcome = Outcome.IN_DOUBT if sent else Outcome.CANCELLED
            self._settle(call, outcome, "the host closed the connection" + ("" if sent else " before it was sent"))
        self.session.move(SessionStep.CLOSED)
