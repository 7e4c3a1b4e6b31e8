"""The body of a request of a caller's client, watched: until somebody reads it, none of it can leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any


def watch_body(request: Any, read: Callable[[], None]) -> None:
    """Have `read` called when somebody reads the body, as each transport must that sends it.

    Only where it is bytes, as what the guard sends is: a stream of the caller's own is left as it is.
    """
    body: Any = getattr(request, "stream", None)
    kind: Any = type(body)
    if kind.__name__ == "ByteStream":  # not watched yet
        request.stream = _kind(kind)(b"".join(body), read)


@cache
def _kind(of: type) -> Any:
    """A client takes no stream that is not of its own family."""
    return type("WatchedBody", (_Watched, of), {})


class _Watched:
    def __init__(self, content: bytes, read: Callable[[], None]) -> None:
        super().__init__(content)  # type: ignore[call-arg]
        self._read = read

    def __iter__(self) -> Iterator[bytes]:
        self._read()
        found: Iterator[bytes] = super().__iter__()  # type: ignore[misc]
        return found

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._read()
        found: AsyncIterator[bytes] = super().__aiter__()  # type: ignore[misc]
        return found
