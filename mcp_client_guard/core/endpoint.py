"""Where a legacy server wants messages posted: what its `endpoint` event says, held to the origin of the stream.

Bytes and credentials go to the origin of the guard's own URL alone (S14; 2024-11-05 leaves it open): what is
returned is put together from that origin, so that no two ways of reading a URL can lead elsewhere.
"""

from __future__ import annotations

from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

_MOST = 8192
_PORTS = {"http": 80, "https": 443}


def endpoint_of(base: str, reference: bytes) -> str | None:
    """The URL to post to; None if the reference leads to another origin, or nowhere.

    `base`: where the stream was answered. `reference`: relative, rooted or absolute.
    """
    text = _text_of(reference)
    try:
        ours, theirs = urlsplit(base), urlsplit(urljoin(base, text))
        if not text or _origin(ours) is None or _origin(ours) != _origin(theirs):
            return None
    except ValueError:
        return None
    return urlunsplit((ours.scheme, ours.netloc, theirs.path or "/", theirs.query, ""))


def shown_origin(base: str, reference: bytes) -> str:
    """Scheme, host and port of where it leads, for people."""
    text = _text_of(reference)
    try:
        origin = _origin(urlsplit(urljoin(base, text))) if text else None
    except ValueError:
        origin = None
    return "no URL that can be used" if origin is None else "{}://{}:{}".format(*origin)


def _text_of(reference: bytes) -> str:
    """Empty where it is nothing that every reader of URLs reads alike."""
    try:
        text = reference.decode().strip(" ")
    except UnicodeDecodeError:
        return ""
    odd = len(text) > _MOST or "\\" in text or any(c <= " " or c == "\x7f" for c in text)
    return "" if odd else text


def _origin(parts: SplitResult) -> tuple[str, str, int] | None:
    default = _PORTS.get(parts.scheme)
    if default is None or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, parts.port or default
