"""The server moves to another generation, under a connection that uses the old one (SPEC-FACTS §20, 23)."""

from __future__ import annotations

from attrs import define, field

from .actions import Report
from .classify import code_of, is_modern, knows_no_session, knows_only_sessions, may_be_legacy
from .ledger import Call, Refusal
from .model import JSON, Generation
from .recovery import Recovery
from .report import Connected, EndpointMoved
from .session import shown_server
from .state import SessionState, SessionStep
from .stream import Stream

MOVED = "the server now speaks 2026-07-28 only, which has no sessions: connect again"
NEVER_HAD = (
    "the server speaks 2026-07-28 only, which has no sessions: it needs a host of that revision, and generation"
    " 'auto' or 'host'"
)
_BACK = "a request of 2026-07-28 was refused as only a server with sessions refuses it"


@define(eq=False, repr=False)
class Moves(Recovery):
    """Tells an upgraded server from a lost session, and a rolled-back one from an answer. No cursor crosses."""

    _moved_to: tuple[Generation | None] | None = field(default=None, init=False)
    """What was last reported of the endpoint."""

    def endpoint_moved(self, to: Generation | None, reason: str) -> None:
        """What is remembered of this endpoint is wrong."""
        known = to is not None or self.session.generation is Generation.STATELESS_HTTP
        if known and self._moved_to != (to,):
            self._moved_to = (to,)
            self.out.append(Report(EndpointMoved(to, reason)))

    def speaks_stateless(self, version: str | None, info: JSON) -> None:
        """The server has answered a request of 2026-07-28 by a result."""
        session = self.session
        if session.state is SessionState.NEW and session.generation is not Generation.STATELESS_HTTP:
            session.generation = Generation.STATELESS_HTTP
            self._moved_to = None
            self.out.append(Report(Connected("-", version, session.generation, shown_server(info))))

    # Sessions, and the server knows none any more.

    def _ping_over(self, refusal: Refusal | None, answered: bool) -> None:
        if refusal is None or self.session.state is not SessionState.LIVE or not self._shows_upgrade(refusal):
            super()._ping_over(refusal, answered)
            self._ask_for_legacy(refusal)
            return
        self._last_word, self._last_word_of = refusal, self.session.incarnation
        self.lose_session("the server refuses it in the words of 2026-07-28", by_word=True)
        self.streams.ping_over(answered)

    def _shows_upgrade(self, refusal: Refusal) -> bool:
        """Whether a ping was refused by a server that knows no sessions."""
        if is_modern(refusal.body):
            return True
        drawn = [suspect.refusal for suspect in self._suspects if suspect.refusal is not None]
        alike = any(is_modern(one.body) or one.is_like(refusal) for one in drawn)
        return alike and knows_no_session(refusal.status, refusal.body)

    def _not_reopened(self, why: str, refusal: Refusal | None) -> None:
        if refusal is None or not self._is_refused_for_good(refusal):
            super()._not_reopened(why, refusal)
            return
        if self._suspicion is not None:
            self.lose_session(self._suspicion, by_word=True)
        self._initializing = None
        self._spend()
        self.session.move(SessionStep.REINITIALIZE_FAILED)
        self.endpoint_moved(Generation.STATELESS_HTTP, MOVED)
        # The next request tries again, within the budget: where replicas differ, another may answer.
        self._stay_lost(MOVED, again=False)

    def _is_refused_for_good(self, refusal: Refusal) -> bool:
        if is_modern(refusal.body):
            return True
        word = self._last_word
        said = word is not None and knows_no_session(word.status, word.body)
        return said and knows_no_session(refusal.status, refusal.body)

    # Streamable HTTP, and the server speaks legacy HTTP+SSE again.

    def _ask_for_legacy(self, refusal: Refusal | None) -> None:
        """A stream has brought an `endpoint`, and the ping drew this: where a legacy server may say so, too, it is
        found by an `initialize` beside this session. An error by POST is of a server that reads posts."""
        says_so = refusal is not None and may_be_legacy(refusal.status, refusal.body) and not code_of(refusal.body)
        is_live = self.session.state is SessionState.LIVE and not self.is_legacy
        if says_so and is_live and self.streams.brought_endpoint and self._may_look():
            self._suspicion = "one of its streams has brought an endpoint, and a ping was refused"
            self._open_another()

    def legacy_found(self) -> None:
        if self._suspicion is not None:
            # There can be no session beside it: a server that has that stream knows the suspected one no more.
            self.lose_session("the server speaks HTTP+SSE", by_word=True)
        super().legacy_found()

    # No sessions, and the server wants them again.

    def refused(self, call: Call, refusal: Refusal, *, session_sent: bool) -> None:
        # A tool's own error may have any code, and SDK 2.3 gives it the status of that code.
        says_so = knows_only_sessions(refusal.status, refusal.body) and not self._may_listen_again(call, refusal)
        if call.stateless and says_so and not refusal.names(call):
            self.endpoint_moved(None, _BACK)
        elif call.method == "initialize" and call.own is None and is_modern(refusal.body):
            self.endpoint_moved(Generation.STATELESS_HTTP, MOVED if self.session.incarnation else NEVER_HAD)
        super().refused(call, refusal, session_sent=session_sent)

    def opened(self, stream: Stream, params: JSON, result: JSON) -> None:
        self._moved_to = None
        super().opened(stream, params, result)
