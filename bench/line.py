"""A line of some length between a client and a server that are on one machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit


@asynccontextmanager
async def far_away(url: str, trip: float) -> AsyncIterator[str]:
    """The same server, at another URL, a round trip of so many seconds away. To connect takes one, too."""
    parts = urlsplit(url)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(trip)
        up_reader, up_writer = await asyncio.open_connection(parts.hostname, parts.port)
        await asyncio.gather(_delayed(reader, up_writer, trip / 2), _delayed(up_reader, writer, trip / 2))

    listening = await asyncio.start_server(carry, "127.0.0.1")
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield urlunsplit(parts._replace(netloc=f"127.0.0.1:{port}"))


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 16):
        loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)
