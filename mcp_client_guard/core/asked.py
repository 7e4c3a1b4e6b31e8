"""Requests of the server's: asked of the host once, answered from what it said when they are replayed.

The same ID and the same text are no sign of a replay: servers count their requests per stream, or from 1 again
once they were restarted. So a question is one that was asked before only if its event says so, by its ID; or if it
comes without one where it may be replayed, on its own stream, resumed. What an earlier process was asked comes
again there alone: which other events that process has seen nobody knows. Anything else is asked of the host: what
it has accepted once, it has not accepted twice.
"""

from __future__ import annotations

from json import dumps

from attrs import define, field

from .model import JSON, ServerAnswered, digest_of
from .stream import Stream

_KEPT = 1024


@define(eq=False)
class Question:
    """One request of the server's."""

    request_id: str | int
    """What the server calls it."""
    incarnation: int
    digest: bytes
    number: int | None = None
    """What the host knows it by; None if it was an earlier process that was asked."""
    stream: int | None = None
    """On which it came; None if it is not known, of an earlier version's record."""
    event_id: str | None = field(default=None, repr=False)
    answer: JSON | None = field(default=None, repr=False)
    """The host's, less its ID."""
    awaited_on: int | None = None
    """The stream whose call waits for the answer: none does for that to a ping."""

    def is_replayed_on(self, stream: Stream, event_id: str | None) -> bool:
        """Whether one that looks the same, and came on this stream in this event, is this one come again."""
        is_here = self.stream == stream.number and (stream.connection.resumed or self.answer is None)
        if self.event_id is None or event_id is None:
            return is_here
        return self.event_id == event_id and (is_here or self.number is not None)


@define(eq=False, repr=False)
class Asked:
    """Server's IDs to ours and back: an ID of ours names one question of one session, and no other (S13)."""

    _known: list[Question] = field(factory=list, init=False)
    """Oldest first."""
    _open: dict[int, Question] = field(factory=dict, init=False)
    """Those that the host has not answered, by number."""

    def seen(self, message: JSON, incarnation: int, stream: Stream, event_id: str | None) -> Question | None:
        """The question that this request of the server's repeats."""
        digest = _digest(message)
        alike = [q for q in self._of(message["id"], incarnation) if q.digest == digest]
        return next((q for q in reversed(alike) if q.is_replayed_on(stream, event_id)), None)

    def ask(self, message: JSON, incarnation: int, number: int, stream: Stream, event_id: str | None) -> None:
        """Take down a new question, which the host is asked under this number."""
        digest = _digest(message)
        question = Question(message["id"], incarnation, digest, number, stream.number, event_id)
        question.awaited_on = None if is_ping(message) else stream.number
        self._open[number] = question
        if len(self._open) > _KEPT:
            del self._open[next(iter(self._open))]
        self._remember(question)

    def answered(self, message: JSON) -> Question | None:
        """The host's answer; None if nobody asked, or it has answered already."""
        number = message.get("id")
        question = self._open.pop(number, None) if isinstance(number, int) else None
        if question is not None:
            question.answer = {k: v for k, v in message.items() if k != "id"}
        return question

    def number_of(self, request_id: object, incarnation: int, stream: Stream) -> int | None:
        """The number under which the host was asked what the server calls this in this session, if it was."""
        known = self._of(request_id, incarnation)
        here = [q for q in known if q.stream == stream.number]
        question = next(reversed(here or known), None)
        return None if question is None else question.number

    def open_under(self, request_id: object, incarnation: int, stream: Stream) -> int | None:
        """The number under which the host was asked that, if it has not answered."""
        number = self.number_of(request_id, incarnation, stream)
        return number if number in self._open else None

    def restore(self, answers: tuple[ServerAnswered, ...]) -> None:
        """What an earlier process has answered in this session."""
        for known in answers:
            where = (None, known.stream, known.event_id)
            self._remember(Question(known.request_id, known.incarnation, known.digest, *where, known.answer))

    def record_of(self, question: Question) -> ServerAnswered:
        answer, where = question.answer or {}, (question.stream, question.event_id)
        return ServerAnswered(question.incarnation, question.request_id, question.digest, answer, *where)

    def _of(self, request_id: object, incarnation: int) -> list[Question]:
        name = _canonical(request_id)
        return [q for q in self._known if q.incarnation == incarnation and _canonical(q.request_id) == name]

    def _remember(self, question: Question) -> None:
        self._known.append(question)
        if len(self._known) > _KEPT:
            del self._known[0]


def is_ping(message: JSON) -> bool:
    return bool(message["method"] == "ping")


def _canonical(request_id: object) -> str:
    return dumps(request_id)


def _digest(message: JSON) -> bytes:
    try:
        text = dumps({"jsonrpc": "2.0", "method": message["method"], "params": message.get("params")})
    except RecursionError:  # read as far as it could be, and nested as deep: two of these look alike
        text = message["method"]
    return digest_of(text.encode())
