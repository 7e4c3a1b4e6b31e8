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
    answer: JSON | None = field(default=None, repr=False)
    """The host's, less its ID."""


@define(eq=False, repr=False)
class Asked:
    """Server's IDs to ours and back: an ID of ours names one question of one session, and no other (S13)."""

    _by_id: dict[str, Question] = field(factory=dict, init=False)
    _by_number: dict[int, Question] = field(factory=dict, init=False)
    _numbers: dict[str, int] = field(factory=dict, init=False)

    def seen(self, message: JSON, incarnation: int) -> Question | None:
        """The question that this request of the server's repeats."""
        question = self._by_id.get(_canonical(message["id"]))
        same = question is not None and question.incarnation == incarnation and question.digest == _digest(message)
        return question if same else None

    def ask(self, message: JSON, incarnation: int, number: int) -> None:
        """Take down a new question, which the host is asked under this number."""
        name = _canonical(message["id"])
        question = Question(message["id"], incarnation, _digest(message))
        self._by_id.pop(name, None)
        self._by_id[name] = self._by_number[number] = question
        self._numbers[name] = number
        if len(self._by_number) > _KEPT:
            oldest = self._by_number.pop(next(iter(self._by_number)))
            name = _canonical(oldest.request_id)
            if self._by_id.get(name) is oldest:
                del self._by_id[name], self._numbers[name]

    def answered(self, message: JSON) -> Question | None:
        """The host's answer; None if nobody asked."""
        number = message.get("id")
        question = self._by_number.get(number) if isinstance(number, int) else None
        if question is not None:
            question.answer = {k: v for k, v in message.items() if k != "id"}
        return question

    def number_of(self, request_id: object) -> object:
        """The number under which the host was asked what the server calls this; or the same, if it was not."""
        return self._numbers.get(_canonical(request_id), request_id)

    def restore(self, answers: tuple[ServerAnswered, ...]) -> None:
        """What an earlier process has answered in this session."""
        for known in answers:
            question = Question(known.request_id, known.incarnation, known.digest, known.answer)
            self._by_id[_canonical(known.request_id)] = question

    def record_of(self, question: Question) -> ServerAnswered:
        return ServerAnswered(question.incarnation, question.request_id, question.digest, question.answer or {})


def _canonical(request_id: object) -> str:
    return dumps(request_id)


def _digest(message: JSON) -> bytes:
    text = dumps([message["method"], message.get("params")], sort_keys=True)
    return blake2b(text.encode(), digest_size=DIGEST_SIZE).digest()
