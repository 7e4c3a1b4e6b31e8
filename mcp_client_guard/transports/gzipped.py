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


def is_gzip(content_encoding: str) -> bool:
    return content_encoding.strip().lower() in ("gzip", "x-gzip")


def _new_member() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


@define(eq=False)
class Unzipped:
    """A body, decoded as it comes; no generator, which trio would warn of where it is left.

    Raises (iterated):
        httpx.DecodingError: what stands at the beginning or behind a member is no gzip. Padding is skipped.
    """

    chunks: AsyncIterator[bytes]
    _member: Any = field(factory=_new_member, init=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        decoded = b""
        while not decoded:
            decoded = self._decode(await self.chunks.__anext__())
        return decoded

    def _decode(self, chunk: bytes) -> bytes:
        decoded = []
        while chunk:
            if self._member.eof:
                chunk = chunk.lstrip(b"\0")
                if not chunk:
                    break
                self._member = _new_member()
            try:
                decoded.append(self._member.decompress(chunk))
            except zlib.error as error:
                raise httpx.DecodingError(str(error)) from error
            chunk = self._member.unused_data
        return b"".join(decoded)
