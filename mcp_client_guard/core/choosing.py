"""Which generation a connection uses, where the server may speak several (DESIGN §6).

Hosts on SDK 2.x ask first whether the server speaks the revision of 2026-07-28 (`server/discover`), under which
nothing can be resumed. With `auto` that probe is held while a session is tried. Where its answer shows that it can
be resumed, the probe is answered with "no such method", upon which every host measured falls back to `initialize`,
and gets the session that was tried. Otherwise the probe passes.
"""

from __future__ import annotations

from abc import abstractmethod

from attrs import define, evolve, field

from .actions import Delay, EndSession, Report, Save
from .answers import error_answer
from .classify import (
    BUSY,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    code_of,
    is_of_gateway,
    is_suspect_answer,
    knows_no_session,
    may_pass,
)
from .heritage import OldSession
from .inputs import MessageSubmitted
from .ledger import Call, Own, Refusal
from .messages import result_of
from .meta import meta_object, without_meta
from .model import JSON, Generation, GenerationFound
from .modern import STATELESS_FROM
from .report import GenerationChosen, OrphanDropped
from .session import session_headers
from .state import SessionState, SessionStep, StreamState
from .stream import Stream
from .taking import Taking

_LAST_WITH_SESSIONS = "2025-11-25"
_CHOSEN = ("sessions", Generation.LEGACY_SSE.value)
_RESUMABLE = "sessions can be resumed: they and their events have IDs"
_DAY = 86_400.0
_NAMELESS: JSON = {"name": "mcp_client_guard", "version": "0"}


@define(eq=False, repr=False)
class TriedSession:
    """A session that was opened to see whether it can be resumed."""

    stream: Stream
    params: JSON
    message: JSON

    @property
    def result(self) -> JSON:
        return result_of(self.message) or {}

    @property
    def is_over(self) -> bool:
        """Its carrier is lost."""
        return self.stream.legacy and self.stream.state is StreamState.DONE

    @property
    def shortcoming(self) -> str | None:
        """Why it cannot be resumed. A server with an event log answers by events that have IDs."""
        if "result" not in self.message:
            return "initialize was answered with an error"
        if self.stream.offered_session_id is None:
            return "sessions have no ID here"
        return None if self.stream.trail.cursor is not None else "events have no IDs here"

    @property
    def is_word(self) -> bool:
        """It shows what sessions are like here, and not only how the server is at the moment."""
        return code_of(self.message) != INTERNAL_ERROR and not is_suspect_answer(self.message)


@define(eq=False, repr=False)
class Choosing(Taking):
    """Owns the host's probe, and the session tried meanwhile."""

    generation: str
    """`auto`, `sessions` or `legacy-sse` (the probe is answered here), or `host` (it passes)."""
    _probes: list[MessageSubmitted] = field(factory=list, init=False)
    """Held while a session is tried."""
    _tried: TriedSession | None = field(default=None, init=False)
    """Kept for the host's `initialize`."""
    _trial: Call | None = field(default=None, init=False)
    """The newest request that tried one; there is one at a time."""
    _said: list[tuple[Stream, JSON, str | None]] = field(factory=list, init=False)
    """What the server said in it, and under which event ID. It is no loss if nobody takes the session."""
    _why: str = field(default="", init=False)
    """Why this generation, if the host has asked."""
    _has_no_sessions: bool = field(default=False, init=False)
    """None that can be resumed: the server has said so to the newest trial."""
    _reported: Generation | None = field(default=None, init=False)
    _is_guess: bool = field(default=False, init=False)
    """The host was told that the server does not speak 2026-07-28, since there is a session to go on with."""

    def _probe(self, sent: MessageSubmitted) -> None:
        """The host asks whether the server speaks 2026-07-28."""
        fresh = self.session.state is SessionState.NEW
        has_old_session = self.heritage is not None and self.heritage.session is not None
        if fresh and self.generation != "auto":
            self._why = f"chosen by the user: generation={self.generation!r}"
        if self.generation in _CHOSEN:
            self._refuse_probe(sent)
        elif self.generation == "auto" and fresh and has_old_session:
            self._why = "an earlier process has left a session"
            self._is_guess = True
            self._refuse_probe(sent)
        elif self.generation == "host" or not fresh:
            self._pass_on(sent)
        elif self._knows_of_no_sessions:
            self._why = "remembered of this endpoint"
            self._pass_on(sent)
        else:
            self._probes.append(sent)
            self._hold_back(sent)
            if self._trial is None or not self._trial.in_flight:
                self._end_trial()  # of an earlier probe, if the host has not taken it
                self.is_trying = True
                self._trial = self._send_own(Own.TRIAL, "initialize", _initialize_params(sent.message))

    @property
    def _knows_of_no_sessions(self) -> bool:
        """Whether it was found lately that none can be resumed here. A server that is given an event log tells
        nobody: it is looked at again every day, and by every process."""
        is_fresh = self.clock.now - self.shared.found_at < _DAY
        return self.shared.found is Generation.STATELESS_HTTP and is_fresh

    def _refuse_probe(self, sent: MessageSubmitted) -> None:
        self._let_go(sent)
        self._deliver(error_answer(sent.message["id"], METHOD_NOT_FOUND, "Method not found"))

    @abstractmethod
    def _pass_on(self, sent: MessageSubmitted) -> None:
        """Send this request of the host's."""
        ...

    def refused(self, call: Call, refusal: Refusal, *, session_sent: bool) -> None:
        opens = call.method == "initialize" and call.own is None
        if opens and self._is_guess and knows_no_session(refusal.status, refusal.body):
            # It does, and has been upgraded since: SDK 2.x asks again at this word alone.
            data = {"supported": [STATELESS_FROM], "requested": call.params.get("protocolVersion")}
            body = error_answer(call.wire_id, UNSUPPORTED_VERSION, "Unsupported protocol version", data)
            refusal = evolve(refusal, body=body)
        if call.own is Own.TRIAL and call.in_flight and self._may_try_later(call, refusal):
            self._put(call, Delay(call.sendings, None, refusal.wait))
            call.sendings += 1
            call.refusal = refusal
        else:
            super().refused(call, refusal, session_sent=session_sent)

    def _may_try_later(self, trial: Call, refusal: Refusal) -> bool:
        """A server that is away for a moment has said nothing of its generation: it is asked again while the probe
        can be held."""
        is_away = refusal.status in BUSY or is_of_gateway(refusal.status, refusal.body)
        in_time = refusal.wait < self._trial_seconds
        return is_away and in_time and trial.sendings < self.policy.max_attempts

    def _take_trial(self, stream: Stream, call: Call, message: JSON) -> None:
        trial = TriedSession(stream, call.params, message)
        reason = "the server speaks HTTP+SSE" if trial.stream.legacy else _RESUMABLE
        # Not where the host has given its question up, nor beside a session that it opens, or has opened, itself.
        is_wanted = bool(self._probes) and self.session.state is SessionState.NEW
        self._tried = trial
        if not (is_wanted and trial.result):
            self._end_trial()
        if trial.shortcoming is not None and not (trial.stream.legacy and trial.result):
            # Kept until the probe is answered: a server without 2026-07-28 has nothing better.
            self._has_no_sessions = trial.is_word
            self._pass_probes(trial.shortcoming)
            return
        self._chose(self.session.generation, reason)
        probes, self._probes = self._probes, []
        for sent in probes:
            self._refuse_probe(sent)

    def _pass_probes(self, why: str) -> None:
        self._why = why
        probes, self._probes = self._probes, []
        for sent in probes:
            self._pass_on(sent)

    def _failed_otherwise(self, call: Call, reason: str, refusal: Refusal | None) -> None:
        if call.own is Own.TRIAL:
            if refusal is None and call.refusal is not None:
                reason = f"HTTP {call.refusal.status}"
            self._said.clear()
            self._has_no_sessions = refusal is not None and refusal.status >= 400 and not may_pass(refusal.status)
            self._pass_probes(f"no session could be opened: {reason}")
        else:
            super()._failed_otherwise(call, reason, refusal)

    def _late_trial(self, stream: Stream, call: Call, message: JSON) -> None:
        """It was given up before it was answered."""
        self._end(TriedSession(stream, call.params, message), at_once=True)

    def _end_trial(self, *, at_once: bool = True) -> None:
        trial, self._tried = self._tried, None
        self._said.clear()
        if trial is not None:
            self._end(trial, at_once=at_once)

    def _end(self, trial: TriedSession, *, at_once: bool) -> None:
        session_id, version = trial.stream.offered_session_id, trial.result.get("protocolVersion")
        if session_id is not None and not trial.stream.legacy:
            headers = session_headers(session_id, version if isinstance(version, str) else None)
            self.out.append(EndSession(headers, at_once))

    def _give_trial(self, sent: MessageSubmitted) -> bool:
        """Answer the host's `initialize` with the session that was tried, or end that. Returns whether it fits."""
        trial = self._tried
        if trial is None or trial.is_over or without_meta(sent.message.get("params")) != trial.params:
            self._end_trial()
            return False
        self._tried = None
        self._let_go(sent)
        self.session.move(SessionStep.INITIALIZE_SENT)
        self.begin_anew()
        self.opened(trial.stream, trial.params, trial.result)
        self._deliver({**trial.message, "id": sent.message["id"]})
        held, self._said = self._said, []
        for stream, message, event_id in held:
            self.take(stream, message, event_id=event_id)
        self._release()
        return True

    def _hold(self, stream: Stream, message: JSON, event_id: str | None) -> bool:
        in_flight = self._trial is not None and self._trial.in_flight
        may_be_taken = in_flight or self._tried is not None
        is_its_own = stream.call is not None and stream.call.own is Own.TRIAL
        is_nobody_s = self.session.state is SessionState.NEW  # given up, but its stream may speak yet
        if not (is_its_own or (stream.legacy and (may_be_taken or is_nobody_s))):
            return False
        if may_be_taken and len(self._said) < self.policy.max_held:
            self._said.append((stream, message, event_id))
        elif may_be_taken:
            self.out.append(Report(OrphanDropped(stream.name, "one too many for a session that is tried")))
        return True

    def _drop_probe(self, host_id: object) -> bool:
        """The host asks no longer."""
        dropped = [sent for sent in self._probes if sent.message["id"] == host_id]
        self._probes = [sent for sent in self._probes if sent not in dropped]
        for sent in dropped:
            self._let_go(sent)
        return bool(dropped)

    # What is found.

    def speaks_stateless(self, version: str | None, info: JSON) -> None:
        super().speaks_stateless(version, info)
        if self.session.needs_none:
            # Also where the host asks what was recovered before it sends anything else.
            self._account_for_heirs("the host opened no session")
            self._end_trial()
            # What was not found, or not asked for, is tried by the next connection.
            self._chose(Generation.STATELESS_HTTP, self._why, is_known=self._has_no_sessions)

    def endpoint_moved(self, to: Generation | None, reason: str) -> None:
        super().endpoint_moved(to, reason)
        self._remember(to)

    def _adopt(self, sent: MessageSubmitted, old: OldSession) -> None:
        super()._adopt(sent, old)
        self._chose(self.session.generation, self._why)

    def opened(self, stream: Stream, params: JSON, result: JSON) -> None:
        if self.session.generation in (Generation.STATELESS_HTTP, Generation.WEBSOCKET):
            self.session.generation = Generation.STREAMABLE_HTTP
        self.is_trying = self._trial is not None and self._trial.in_flight
        self._chose(self.session.generation, self._why)
        super().opened(stream, params, result)

    def _chose(self, generation: Generation, why: str, *, is_known: bool = True) -> None:
        if why and self._reported is not generation:
            self.out.append(Report(GenerationChosen(generation, why)))
        self._reported = generation
        if is_known:
            self._remember(generation)

    def _remember(self, generation: Generation | None) -> None:
        """What is tried first by the next connection to this endpoint."""
        before, self.shared.found = self.shared.found, generation
        if generation is Generation.STATELESS_HTTP:
            self.shared.found_at = self.clock.now
        if _stored(before) is not _stored(generation):
            self.out.append(Save((GenerationFound(_stored(generation)),)))


def _stored(found: Generation | None) -> Generation | None:
    """What the next process begins with."""
    return None if found is Generation.STATELESS_HTTP else found


def _initialize_params(probe: JSON) -> JSON:
    """What the host would say in its `initialize`, as far as its probe tells."""
    meta = meta_object(probe)
    capabilities = meta.get("io.modelcontextprotocol/clientCapabilities")
    info = meta.get("io.modelcontextprotocol/clientInfo")
    return {
        "protocolVersion": _LAST_WITH_SESSIONS,
        "capabilities": capabilities if isinstance(capabilities, dict) else {},
        "clientInfo": info if isinstance(info, dict) else _NAMELESS,
    }
