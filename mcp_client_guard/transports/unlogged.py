"""Keeps the URLs that are credentials out of what client libraries log.

httpx and httpx2 log the URL of each request at INFO; of a legacy session that is where messages are posted, which
whoever knows it can do (S14).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import urlsplit

_LOGGERS = ("httpx", "httpx2")
_is_secret: ContextVar[bool] = ContextVar("mcp_client_guard_is_secret", default=False)


class _Filter(logging.Filter):
    """Lets everything pass, but for a guarded request without all that a URL has besides its origin."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _is_secret.get() and isinstance(record.args, tuple):
            record.args = tuple(_shown(one) for one in record.args)
        return True


_FILTER = _Filter()


def _shown(argument: object) -> object:
    text = str(argument)
    if "://" not in text:
        return argument
    parts = urlsplit(text)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/[not shown]"


@contextmanager
def unlogged() -> Iterator[None]:
    """What this task requests meanwhile is logged without its URL."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)  # the same one twice is one
    before = _is_secret.set(True)
    try:
        yield
    finally:
        _is_secret.reset(before)
