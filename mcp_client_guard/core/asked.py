"""Requests of the server's: asked of the host once, answered from what it said when they are replayed."""

from __future__ import annotations

from hashlib import blake2b
from json import dumps

from attrs import define, field

from .model import DIGEST_SIZE, JSON, ServerAnswered

_KEPT = 1024


@define(eq=False)
class Question:
    """One request of the server's."""

    request_id: str | int
    """The server's."""
    incarnation: int
    digest: bytes
    number: int | None = None
    """What the host knows it by; None if it was an earlier process that was asked."""
    answer: JSON | None = field(default=None, repr=False)
    """The host's, less its ID."""


@define(eq=False, repr=False)
class Asked:
    """Server's IDs to ours and back: an ID of ours names one question of one session, and no other (S13)."""

    _by_id: dict[str, Question] = field(factory=dict, init=False)
    """The newest of each of the server's IDs."""
    _open: dict[int, Question] = field(factory=dict, init=False)
    """Those that the host has not answered, by number."""

    def seen(self, message: JSON, incarnation: int) -> Question | None:
        """The question that this request of the server's repeats."""
        question = self._by_id.get(_canonical(message["id"]))
        same = question is not None and question.incarnation == incarnation and question.digest == _digest(message)
        return question if same else None

    def ask(self, message: JSON, incarnation: int, number: int) -> None:
        """Take down a new question, which the host is asked under this number."""
        question = Question(message["id"], incarnation, _digest(message), number)
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

    def number_of(self, request_id: object, incarnation: int) -> int | None:
        """The number under which the host was asked what the server calls this in this session, if it was."""
        question = self._by_id.get(_canonical(request_id))
        return question.number if question is not None and question.incarnation == incarnation else None

    def restore(self, answers: tuple[ServerAnswered, ...]) -> None:
        """What an earlier process has answered in this session."""
        for known in answers:
            self._remember(Question(known.request_id, known.incarnation, known.digest, None, known.answer))

    def record_of(self, question: Question) -> ServerAnswered:
        return ServerAnswered(question.incarnation, question.request_id, question.digest, question.answer or {})

    def _remember(self, question: Question) -> None:
        name = _canonical(question.request_id)
        self._by_id.pop(name, None)
        self._by_id[name] = question
        if len(self._by_id) > _KEPT:
            del self._by_id[next(iter(self._by_id))]


def _canonical(request_id: object) -> str:
    return dumps(request_id)


def _digest(message: JSON) -> bytes:
    text = dumps([message["method"], message.get("params")], sort_keys=True)
    return blake2b(text.encode(), digest_size=DIGEST_SIZE).digest()
