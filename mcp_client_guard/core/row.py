"""One received event, as a trail holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from .model import Seen, digest_of

if TYPE_CHECKING:
    from .trail import Trail


EMPTY = digest_of(b"")


@define(slots=True, eq=False, repr=False)
class Row:
    """One received event. Its digest is made when somebody asks for it, as for most events nobody does."""

    event_id: str | None
    data: bytes | None
    """The raw data, kept instead of a digest unless it is large."""
    carried: bool
    """Whether it carried a message; a priming event did not."""
    connection: int
    number: int
    trail: Trail
    _digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            assert self.data is not None
            self._digest = digest_of(self.data)
        return self._digest

    def forget_data(self) -> None:
        self._digest, self.data = self.digest, None

    def matches(self, data: bytes) -> bool:
        return self.data == data or self.digest == digest_of(data)

    @property
    def is_message(self) -> bool:
        """Whether it can be a witness."""
        return self.carried and self.event_id is not None

    @property
    def seen(self) -> Seen:
        """What is stored of it. Whoever reads that can tell by the digest alone whether it carried a message."""
        return Seen(self.event_id, self.digest if self.carried else EMPTY)


Index = dict[str, Row]
"""Every identified row of every trail of one session: event IDs are unique per session."""
