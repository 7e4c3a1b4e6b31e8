"""How the messages of a connection travel: streamable HTTP, or legacy HTTP+SSE where the server has nothing else.

Found at an `initialize` (2026-07-28 transports, Backwards Compatibility): if its POST is refused as a legacy
server refuses it, a GET must bring `endpoint` as its first event. What else is refused in mid-session never says
it; but the session is lost then, or suspected, and the `initialize` that follows finds a server that went back.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from .actions import NO_DELAY, Delay, Report
from .classify import LOCKED, Ran, code_of, is_of_moment, is_unread, may_be_legacy, rule_on
from .ledger import Call, Own, Refusal
from .model import Generation
from .report import Connected, Unreachable
from .restoring import Restoring
from .session import shown_server

_NO_LEGACY_STREAM = (200, 400, 404, 405)
"""To a GET without a session; 200 without an `endpoint`.

400 is streamable HTTP's (2025-11-25 transports, Session Management 2; measured).
"""

_NO_ROOM = "if the server speaks HTTP+SSE, whose stream holds a connection, http_client must allow two or more"


@define(eq=False, repr=False)
class Detecting(Restoring):
    """Owns the generation of the session that is open, or is to be opened."""

    _is_known: bool = field(default=False, init=False)
    """A session was opened, or the server was asked for a legacy stream: what is remembered counts no more."""
    _refused: list[tuple[Call, Refusal]] = field(factory=list, init=False)
    """Every `initialize` that waits for what the GET brings, and what its POST drew."""
    is_remembered: bool = field(default=False, init=False)
    """A legacy stream is tried first, since it worked before."""
    _left_legacy: Sequence[Call] = field(default=(), init=False)
    """Every `initialize` that is tried with streamable HTTP since its GET has brought no legacy stream."""

    @property
    def is_legacy(self) -> bool:
        """The session is a stream, or is to be one."""
        return self.session.generation is Generation.LEGACY_SSE

    def may_have_moved(self, status: int) -> bool:
        """Whether a legacy stream that is refused so may be one that is no more: streamable HTTP is tried then."""
        if self.is_remembered:
            return status not in LOCKED and status < 500
        # What the user has chosen is kept until it has worked.
        return (self.session.incarnation > 0 or self._is_known) and status in _NO_LEGACY_STREAM

    @property
    def is_detecting(self) -> bool:
        """The server is being asked for a legacy stream."""
        return bool(self._refused)

    def hold_refusal(self, call: Call, refusal: Refusal, *, session_sent: bool) -> bool:
        """Have this refusal of an `initialize` wait for what a GET brings, if a legacy server may say so. Returns
        whether it waits."""
        if not call.in_flight:
            return False  # a late word on one that was given up says nothing of what is tried now
        if call in self._left_legacy:
            # The server has just been asked. Where it was a legacy one, the next `initialize` begins there again.
            self._left_legacy = ()
            was_legacy = self.session.incarnation > 0
            self.session.generation = Generation.LEGACY_SSE if was_legacy else Generation.STREAMABLE_HTTP
            return False
        if call.own is not None and self.streams.has_endpoint:
            return False  # the stream is found, and its session is the host's
        is_asked = not session_sent and may_be_legacy(refusal.status, refusal.body)
        # Who has had a session by POST knows what an error looks like that comes by it.
        reads_posts = self.session.incarnation > 0 and code_of(refusal.body) is not None
        if not is_asked or reads_posts:
            return False
        if not self.streams.may_carry:
            is_bare = code_of(refusal.body) is None
            if is_bare:
                self.out.append(Report(Unreachable("carrier", _NO_ROOM, 1)))
                self.unopened(call, f"HTTP {refusal.status}; {_NO_ROOM}", refusal)
            return is_bare
        if not self.streams.look_for_carrier():
            return False
        self._refused.append((call, refusal))
        if self.streams.has_endpoint:
            self.legacy_found()  # while this one was on its way
        return True

    def legacy_found(self) -> None:
        """The first event of the stream is an endpoint."""
        self.session.generation = Generation.LEGACY_SSE
        for call, _ in self._held():
            self._put(call)

    def legacy_not_found(self) -> None:
        """What was refused at first is refused for good."""
        for call, refusal in self._held():
            self._refused_for_good(call, refusal)

    def conclude_refusal(self, call: Call) -> None:
        """This request must have its outcome now."""
        for refusal in self.let_go_of(call):
            self._refused_for_good(call, refusal)

    def let_go_of(self, call: Call) -> list[Refusal]:
        """This request waits for no legacy stream any more. Returns what its POST drew, if it did."""
        mine = [refusal for held, refusal in self._refused if held is call]
        self._refused = [(held, refusal) for held, refusal in self._refused if held is not call]
        if mine and not self._refused:
            self.streams.look_no_more()
        return mine

    def generation_known(self, *, is_legacy: bool) -> None:
        """A session was opened. If that was by POST, no legacy stream is waited for that could end it."""
        self._is_known = True
        self.session.generation = Generation.LEGACY_SSE if is_legacy else Generation.STREAMABLE_HTTP
        self.is_remembered, self._left_legacy = False, ()
        if self._refused and not is_legacy:
            self.streams.close_carrier()
            self.legacy_not_found()

    def has_not_begun(self, call: Call) -> bool:
        """Whether nothing of this `initialize` of the guard's own could leave yet: it awaits a legacy endpoint, or
        the server wants it later. Both have bounds of their own."""
        own = self.streams.of(call)
        return call.own is Own.INITIALIZE and own is not None and not own.connection.begun

    def legacy_gone(self, calls: Sequence[Call]) -> None:
        """There is no legacy stream any more where one was: the server speaks streamable HTTP by now, or is gone.

        It is a new relationship (DESIGN §6): these `initialize` requests, of which nothing was sent, go there.
        """
        self.session.generation = Generation.STREAMABLE_HTTP
        self._is_known, self.is_remembered = True, False
        self._left_legacy = calls
        for call in calls:
            self._put(call)

    def _put(self, call: Call, delay: Delay = NO_DELAY) -> None:
        may_choose = not self._is_known and self.session.generation is Generation.STREAMABLE_HTTP
        is_found = self.shared.found is Generation.LEGACY_SSE and self.streams.may_carry
        if call.method == "initialize" and may_choose and is_found:
            self.is_remembered = True
            self.session.generation = Generation.LEGACY_SSE
        super()._put(call, delay)

    def unopened(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        """There is no stream that this request could be sent beside: nothing of it has left."""
        if call.own is not None:
            self._own_failed(call, reason, refusal)
        else:
            self.not_executed(call, "server" if refusal else "wire", reason, refusal.status if refusal else None)

    def _settle_refused(self, call: Call, ran: Ran, refusal: Refusal, *, may_wait: bool = True) -> None:
        """Where the status and the answer travel apart, a proxy's 503 is not the end of a call."""
        apart = call.legacy or self.streams.is_answered_elsewhere(call)
        if apart and not (ran is Ran.ANSWERED and refusal.names(call)):
            may_have_run = call.legacy and call.is_unsafe_call and is_of_moment(refusal.status)
            ran = Ran.MAYBE if may_have_run else self._as_taken(call, ran, refusal)
            may_follow = ran is Ran.MAYBE or (ran is Ran.ANSWERED and not is_unread(refusal.status))
            stands = may_wait and not self.is_over(call)
            if may_follow and stands and self.streams.await_answer(call, f"HTTP {refusal.status}"):
                call.drawn = ran, refusal
                return
        super()._settle_refused(call, ran, refusal, may_wait=may_wait)

    def believe_drawn(self, call: Call) -> None:
        """No answer has come on the carrier: what its POST drew is all that is known of it."""
        if call.in_flight and call.drawn is not None:
            super()._settle_refused(call, *call.drawn)

    def conclude_drawn(self, call: Call) -> None:
        """The time of this request is over: what its POST drew is all that is known of it. Not of one that may
        run, whose server is told so."""
        if call.drawn is not None and call.drawn[0] is Ran.ANSWERED:
            self.believe_drawn(call)
            self.streams.abandon_call(call.wire_id)

    def _report_connected(self) -> None:
        session = self.session
        server = shown_server(session.initialize_result.get("serverInfo"))
        connected = Connected(session.fingerprint, session.protocol_version, session.generation, server)
        self.out.append(Report(connected))

    def _held(self) -> list[tuple[Call, Refusal]]:
        held, self._refused = self._refused, []
        self._is_known = True
        return held

    def _refused_for_good(self, call: Call, refusal: Refusal) -> None:
        if call.own is not None:
            self._own_failed(call, f"HTTP {refusal.status}", refusal)
        else:
            ran = rule_on(refusal.status, refusal.body, session_sent=False).ran
            self._settle_refused(call, ran, refusal)
