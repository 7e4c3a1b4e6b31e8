"""Messages from the server: whose answer each is, and what is learnt from it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from attrs import define, field

from .actions import Report, Save
from .asked import is_ping
from .classify import Ran, code_of
from .inputs import MessageSubmitted
from .ledger import Call, Own
from .listening import ACKNOWLEDGED
from .messages import result_of, tells_of_success
from .meta import subscription_of, with_subscription
from .model import JSON, NOT_KNOWN, Outcome, Taken, fingerprint
from .modern import as_complete, offers_itself, server_info_of, version_of
from .report import DuplicateDropped, NotificationLost, OrphanDropped
from .restoring import tools_of
from .rounds import Round, asks_for_input, awaited_key
from .stream import Stream
from .takeover import TakeOver

_DELIVERED = Taken.DELIVERED  # on Python 3.11 too slow to look up for every event


@define(eq=False, repr=False)
class Taking(TakeOver):
    """Takes what comes on any stream."""

    is_trying: bool = field(default=False, init=False)
    """A session was tried that is not the host's, or not yet."""

    def take(self, stream: Stream, message: JSON, *, direct: bool = False, event_id: str | None = None) -> Taken:
        """Deliver one message of the server's, if it is somebody's.

        `event_id`: of the event that carried it, where that identifies anything.
        `direct`: it came in the answer to our own POST, where an error with no ID of ours means that request
        (the Python SDK refuses under the ID `server-error`, others under null).
        """
        if "method" not in message:
            return self._take_answer(stream, message, direct)
        if stream.call is not None:
            stream.call.was_taken = True
        if is_ping(message) and "id" in message and self._is_opening(stream):
            self.streams.answer_ping(stream, message["id"])
            return Taken.DELIVERED
        if self.is_trying and self._hold(stream, message, event_id):
            return Taken.LATE
        if self._is_of_old_session(stream) and message["method"] != "notifications/progress":
            if "id" in message:
                self.asked_in_vain(None if is_ping(message) else stream.call, message["method"])
            return Taken.LATE
        if "id" not in message:
            if message["method"] == "notifications/progress":
                return self._take_progress(stream, message, event_id)
            if stream.call is not None and stream.call.is_subscription:
                return self._take_listened(stream, stream.call, message)
            if message["method"] == "notifications/cancelled":
                return self._take_cancel(stream, message)
        elif self._answer_replayed(stream, message, event_id):
            return Taken.LATE
        else:
            number = self.ledger.new_wire_id()
            self.asked.ask(message, self.session.incarnation, number, stream, event_id)
            stream.position.asked[number] = stream.trail.newest_number
            message = {**message, "id": number}
        self.streams.deliver(stream, message)
        return _DELIVERED

    def _is_opening(self, stream: Stream) -> bool:
        """Whether the answer to an `initialize` is still to come on this stream: its session is not ours yet."""
        if stream.call is not None:
            return stream.call.method == "initialize" and stream.call.in_flight
        in_flight = self.ledger.in_flight()
        return stream.legacy and any(call.legacy and call.method == "initialize" for call in in_flight)

    def open_question(self, stream: Stream, message: JSON) -> int | None:
        """The number of this request of the server's, if the host was asked and has not answered."""
        if "method" not in message or "id" not in message:
            return None
        return self.asked.open_under(message["id"], self.session.incarnation, stream)

    def asked_in_vain(self, call: Call | None, method: str) -> None:
        """The host's answer cannot be sent."""
        self.out.append(Report(NotificationLost(method, "the session that asked is gone")))
        self.waits_in_vain(call, "the server asked for something in a session that is gone")

    def waits_in_vain(self, call: Call | None, why: str) -> None:
        """The host's answer cannot reach the server: put the call that waits for it in doubt."""
        if call is not None and call.in_flight:
            self.streams.cancel(call)  # a late answer may come, but not for ever
            self.in_doubt(call, why, again=False)

    def _is_of_old_session(self, stream: Stream) -> bool:
        """A POST of a lost session may still be answered; whatever else comes with it is not of this session."""
        call = stream.call
        if call is None or call.stateless:
            return False
        return call.incarnation < self.session.incarnation and call.method != "initialize"

    def _answer_replayed(self, stream: Stream, message: JSON, event_id: str | None) -> bool:
        """Send again what the host has said to this, if it was asked before. Returns whether it was."""
        question = self.asked.seen(message, self.session.incarnation, stream, event_id)
        if question is None:
            return False
        if question.answer is not None:
            answer = {**question.answer, "id": question.request_id}
            self._post_note(MessageSubmitted(answer), "response")
        return True

    def _take_cancel(self, stream: Stream, message: JSON) -> Taken:
        """The server has no more use for what it asked: the host knows that by another number."""
        params = message.get("params") or {}
        number = self.asked.number_of(params.get("requestId"), self.session.incarnation, stream)
        if number is None:
            return Taken.LATE
        self.streams.deliver(stream, {**message, "params": {**params, "requestId": number}})
        self.streams.asked_no_more(number)
        return Taken.DELIVERED

    def _take_listened(self, stream: Stream, call: Call, message: JSON) -> Taken:
        """A notification on the stream of a subscription; the host knows that by the ID of its own request."""
        method, params = message["method"], message.get("params") or {}
        if method == "notifications/cancelled":
            if self.ledger.owing(params.get("requestId")) is call:
                # The server tears it down: one of the three ways in which that is said.
                self.in_doubt(call, "the server cancelled it")
                self.streams.abandon_call(call.wire_id)
            return Taken.LATE
        named = subscription_of(message)
        if named is not None and self.ledger.owing(named) is not call:
            self.out.append(Report(OrphanDropped(stream.name, "a message of another subscription")))
            return Taken.ORPHAN
        if method == ACKNOWLEDGED and not self.acknowledged(call, message):
            return Taken.LATE
        message = message if named is None else with_subscription(message, call.host_id)
        self.streams.deliver(stream, message)
        return _DELIVERED

    def _take_progress(self, stream: Stream, message: JSON, event_id: str | None) -> Taken:
        params = message.get("params") or {}
        token = params.get("progressToken")
        call = self.ledger.owing(token)
        if call is not None:
            call.was_taken = True
            if call.legacy:
                self.streams.shows_life(call)
        if call is not None and call.in_flight and call.host_token is not None:
            if stream.may_repeat_unknown and _is_behind(call, params.get("progress"), stream.call is call):
                self.out.append(Report(DuplicateDropped(stream.name, fingerprint(event_id, self.session.salt))))
                return Taken.LATE
            if not _advance(call, params.get("progress")):
                return Taken.LATE
            self.streams.deliver(stream, {**message, "params": {**params, "progressToken": call.host_token}})
            return Taken.DELIVERED
        if call is not None or self.ledger.was_issued(token, self.session.earlier):
            return Taken.LATE
        self.out.append(Report(OrphanDropped(stream.name, "progress for a token never issued")))
        return Taken.ORPHAN

    def _take_answer(self, stream: Stream, message: JSON, direct: bool) -> Taken:
        answered = message.get("id")
        call = self._owing(stream, answered)
        if call is None and direct and self.names_no_request(message) and stream.call is not None:
            call = self._owing(stream, stream.call.wire_id)
        if call is None:
            if self.ledger.was_issued(answered, self.session.earlier):
                return Taken.LATE
            self.out.append(Report(OrphanDropped(stream.name, "an answer to a request never sent")))
            return Taken.ORPHAN
        self._complete(stream, call, message)
        return Taken.DELIVERED

    def names_no_request(self, message: JSON) -> bool:
        """Whether this is an error under an ID that no request of ours can have."""
        return "error" in message and not self.ledger.may_be_issued(message.get("id"))

    def owed(self, stream: Stream, message: JSON) -> Call | None:
        """The request that this message answers, if it still waits for one or is in doubt."""
        return None if "method" in message else self._owing(stream, message.get("id"))

    def is_of_another(self, call: Call | None, wire_id: int) -> bool:
        """Whether another request than this has, or had, this ID."""
        given = self.ledger.was_issued(wire_id, self.session.earlier) or self.ledger.owing(wire_id) is not None
        return given and (call is None or call.wire_id != wire_id)

    def meant_by(self, body: Any) -> Call | None:
        """The request in flight that this, though no message, is meant as the answer to."""
        call = self.ledger.owing(body.get("id")) if isinstance(body, dict) and "method" not in body else None
        return call if call is not None and call.in_flight else None

    def owner_of(self, stream: Stream, message: JSON) -> Call | None:
        """The request that this message is an answer to, or progress of; None if it is of neither kind."""
        if message.get("method") != "notifications/progress":
            return self.owed(stream, message)
        return self._owing(stream, (message.get("params") or {}).get("progressToken"))

    def _owing(self, stream: Stream, answered: object) -> Call | None:
        """Only a request of this session, or of the stream itself (S8, S13)."""
        call = self.ledger.owing(answered)
        if call is None or call is stream.call:
            return call
        # Without a session an answer comes on the stream of its own request, or not at all.
        is_ours = call.incarnation == self.session.incarnation and not call.stateless and not stream.stateless
        return call if is_ours else None

    def _complete(self, stream: Stream, call: Call, message: JSON) -> None:
        if call.in_flight and self.suspect_answer(call, message, "an error that may mean a lost session"):
            call.suspected = True
        elif not call.is_of_a_host:
            if call.in_flight:
                self.own_answered(stream, call, message)
            elif call.own is Own.TRIAL:
                self._late_trial(stream, call, message)
        elif call.later is not None or (call.answered_as_earlier and not call.in_flight):
            self._take_surplus(stream, call, message)
        elif not self.is_taken_later(call, message):
            self.settle_answer(call, message, stream)
        self.streams.finish_call(call.wire_id, by=stream)

    @abstractmethod
    def _hold(self, stream: Stream, message: JSON, event_id: str | None) -> bool:
        """Keep back a message of a session that the host does not have: it may get one, and then this. Returns
        whether it is one."""
        ...

    @abstractmethod
    def _late_trial(self, stream: Stream, call: Call, message: JSON) -> None:
        """A session that was tried was opened after all."""
        ...

    def _take_surplus(self, stream: Stream, call: Call, message: JSON) -> None:
        """The answer to one of several sendings of a request, and not to the newest; or to that, and it had one.

        The first that tells of success is the answer. A failure is not, for another sending may do what this one
        has not done.
        """
        newest = call.newest
        if newest is call or not tells_of_success(message) or newest.outcome not in NOT_KNOWN:
            what = "the answer to another sending of a call that was sent again"
            self.out.append(Report(OrphanDropped(stream.name, what)))
            return
        newest.answered_as_earlier = True
        if newest.in_flight:
            self._stop(newest)
        self.settle_answer(newest, message, stream)

    # Nobody waits for it any more.

    def _withdraw(self, call: Call) -> bool:
        """Stop it where it has not left yet, and resume it no more. Returns whether it may have run."""
        return self._withdraw_newest(call) or call.repeats > 0

    def _withdraw_newest(self, call: Call) -> bool:
        """Stop its newest sending where that has not left yet, and resume it no more. Returns whether that sending
        may have run."""
        stranded = self._stranded.get(call.first_wire_id)
        call.is_unsent = not (self.streams.cancel(call) if stranded is None else stranded.ran is not Ran.NO)
        return not call.is_unsent

    def _stop(self, call: Call) -> None:
        if self._withdraw_newest(call):
            self._tell_cancelled(call, "an earlier request with the same call key was answered")

    def _tell_cancelled(self, call: Call, reason: str) -> None:
        """Tell the server that the guard has no more use for this request."""
        if self._hears_cancel(call):
            call.cancelled = True
            self._post_cancelled(call, reason)

    def _hears_cancel(self, call: Call) -> bool:
        """Whether the server can be told so, by a notification."""
        hears_none = call.stateless or call.method == "initialize" or self.is_over(call) or self.is_task(call)
        return not hears_none and self._known_as(call) is not None

    def _known_as(self, call: Call) -> int | None:
        """The wire ID under which the server may work on it: an earlier sending's, where the last has not left."""
        if not call.is_unsent:
            return call.wire_id
        incarnation, wire_id = call.may_run or (0, 0)
        return wire_id if incarnation == self.session.incarnation else None

    def _post_cancelled(self, call: Call, reason: str) -> None:
        params = {"requestId": self._known_as(call), "reason": reason}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self.streams.post_note(self.ledger.new_wire_id(), "notifications/cancelled", message, {})

    def _settled_first(self, call: Call) -> None:
        """Its outcome is on disk before its cancel leaves: to the next process, to which the call would have none,
        what acknowledges the cancel would be the answer."""
        if call.may_have_side_effects:
            self.out.append(Save((), durable=True))

    # Its answer.

    def settle_answer(self, call: Call, message: JSON, stream: Stream | None = None) -> None:
        """This is the answer of the request."""
        if call.own is Own.HOOK:
            self._settle(call, Outcome.COMPLETED, "answered")
            self._answer_others(call, message)
            return
        if not call.in_flight:
            if "result" in message or self._believe_late(call, message):
                self.learn_task(call, message)
                self._settle(call, Outcome.RECOVERED, "the answer came late", message)
            return
        if not tells_of_success(message) and self.doubt_failure(call, _failure_in(message), message):
            return
        if call.own is Own.HEIR:
            self.heir_answered(call, message)
            return
        self.learn_task(call, message)
        result = result_of(message)
        if result is not None:
            self._learn_from(stream, call, result)
        answer = {**(as_complete(message) if call.stateless else message), "id": call.host_id}
        if call.stateless and subscription_of(message) is not None:
            answer = with_subscription(answer, call.host_id)
        self.streams.deliver(stream, answer, call)
        late = 0 if call.continues is None else call.continues.others - call.went_along
        others = sum(other.stateless for other in call.joined) + late
        self._answer_others(call, message)
        if call.stateless and asks_for_input(message):
            key = awaited_key(call.method, call.params, message)
            self.shared.open_round(Round(key, call.call_key, call.named, others, call.consented_at))
            self._settle(call, Outcome.INPUT_REQUIRED, "the server asks for input", message)
        else:
            how = "an earlier sending of it was answered" if call.answered_as_earlier else "answered"
            self._settle(call, Outcome.COMPLETED, how, message)

    def _believe_late(self, call: Call, error: JSON) -> bool:
        """Look whether an error says what became of a call that was told in doubt, or given up. Returns whether.

        Not if it may only acknowledge the cancel (as SDK 1.x does), nor if it would have been no answer in time.
        """
        suspected = self.suspect_answer(call, error, "it came late")
        return not (suspected or call.cancelled or self.may_have_run_before(call))

    def _learn_from(self, stream: Stream | None, call: Call, result: JSON) -> None:
        method, params = call.method, call.params
        if call.stateless and call.sent is not None and offers_itself(method, result):
            self.speaks_stateless(version_of(call.sent.headers), server_info_of(result))
        if method == "initialize" and stream is not None:
            self.begin_anew()
            self.opened(self.streams.of(call) or stream, params, result)
        elif method == "tools/list":
            self._learn_tools(params, result)
        elif method == "logging/setLevel":
            self.log_level = params.get("level") if isinstance(params.get("level"), str) else None
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            uri = params.get("uri")
            if isinstance(uri, str):
                change = self.subscriptions.add if method.endswith("/subscribe") else self.subscriptions.discard
                change(uri)

    def _learn_tools(self, params: JSON, result: JSON) -> None:
        """What the host is told of the tools: from now on it decides by this."""
        if not params.get("cursor"):
            self.tools.clear()
        listed = tools_of(result)
        self.tools.update(listed)
        self.present_tools.update(listed)
        self._decide_all()  # a call may have waited for the guard's own list, which is late

    def _post_note(self, sent: MessageSubmitted, method: str) -> int | None:
        if self.is_lost and not self.session.is_stateless(sent.headers):
            self.out.append(Report(NotificationLost(method, "the session is lost")))
            return None
        return self.streams.post_note(self.ledger.new_wire_id(), method, sent.message, sent.headers)


def _failure_in(message: JSON) -> str:
    return "an error of the tool's" if "result" in message else f"error {code_of(message)}"


def _is_behind(call: Call, progress: Any, on_its_own: bool) -> bool:
    """Whether the host was told as much: by a server that keeps to the rule it is what was said before."""
    if call.progress is None or isinstance(progress, bool) or not isinstance(progress, (int, float)):
        return False
    return progress < call.progress or (progress == call.progress and not on_its_own)


def _advance(call: Call, progress: Any) -> bool:
    """It has come so far. Returns whether the host may be told: to it another sending is the same request, whose
    progress must increase (2025-11-25 progress, Behavior Requirements)."""
    if isinstance(progress, bool) or not isinstance(progress, (int, float)):
        return True
    if call.sendings > 1 and call.progress is not None and progress <= call.progress:
        return False
    call.progress = progress
    return True
