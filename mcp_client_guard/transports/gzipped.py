"""gzip, with all its members: httpx decodes the first, and drops the others without a word.

A server or proxy that ends the coder at each flush writes one for each event (RFC 1952, 2.2).
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
from attrs import define, field

if TYPE_CHECKING:
    from typing_extensions import Self

_MAGIC = b"\x1f\x8b"
"""A member begins with it."""
_PADDING = b"\0\r\n\t "


def is_gzip(content_encoding: str) -> bool:
    return content_encoding.strip().lower() in ("gzip", "x-gzip")


def _new_member() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


@define(eq=False)
class Unzipped:
    """A body, decoded as it comes; no generator, which trio would warn of where it is left.

    What stands behind the last member is not the body's, as for browsers; between two there may be padding, or
    line ends.

    Raises (iterated):
        httpx.DecodingError: no gzip at the beginning, a corrupt member, or anything else between two; what came
            before that is given first.
    """

    chunks: AsyncIterator[bytes]
    _member: Any = field(factory=_new_member, init=False)
    _behind: bytes = field(default=b"", init=False)
    """What has come behind the last member, save padding."""
    _error: httpx.DecodingError | None = field(default=None, init=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        decoded = b""
        while not decoded:
            if self._error is not None:
                raise self._error
            decoded = self._decode(await self.chunks.__anext__())
        return decoded

    def _decode(self, chunk: bytes) -> bytes:
        decoded = []
        while chunk := self._of_a_member(chunk):
            try:
                decoded.append(self._member.decompress(chunk))
            except zlib.error as error:
                self._error = httpx.DecodingError(str(error))
                break
            chunk = self._member.unused_data
        return b"".join(decoded)

    def _of_a_member(self, chunk: bytes) -> bytes:
        """What of this is to be decoded: where a member has ended, another one or nothing."""
        if not self._member.eof:
            return chunk
        is_other = self._behind not in (b"", _MAGIC[:1])
        behind = self._behind + chunk if is_other else (self._behind + chunk).lstrip(_PADDING)
        if behind.startswith(_MAGIC):
            self._member, self._behind = _new_member(), b""
            return behind
        if is_other or _MAGIC in behind:  # the body goes on behind what is no member
            self._error = httpx.DecodingError("something stands between two members of a gzip body")
        self._behind = behind[:2]
        return b""
