"""What a server wrote behind a whole response: no answer to the next request of that connection.

h11 keeps such bytes; httpcore looks at the socket only before it uses the connection again, and would read them as
the response to a request that the server has not even seen.
"""

from __future__ import annotations

import ssl
from typing import Any

_DEEPEST = 8
_WITHIN = ("stream", "core", "_stream", "_httpcore_stream", "_connection")


async def let_go(response: Any) -> None:
    """Close a response, and its connection too if there is more on it.

    A client that httpcore is not below is left alone; one that closes a whole response by itself may have used the
    connection again by now.
    """
    connection = _connection_of(response)
    if connection is None or not _holds_more(connection, response.extensions["network_stream"]):
        await response.aclose()
    elif connection.is_idle():
        await connection.aclose()
        await response.aclose()
    else:
        connection._h11_state.send_failed()  # then httpcore does not keep it
        await response.aclose()


def _connection_of(response: Any) -> Any | None:
    """The HTTP/1.1 connection of httpcore's below it."""
    found = response
    for _ in range(_DEEPEST):
        if type(getattr(found, "_h11_state", None)).__module__.startswith("h11."):
            return found
        found = next((below for name in _WITHIN if (below := getattr(found, name, None)) is not None), None)
    return None


def _holds_more(connection: Any, network: Any) -> bool:
    read = connection._h11_state
    if read.their_state.__name__ != "DONE" and not connection.is_idle():
        return False  # not whole, so that it is not used again; or another request's already
    return bool(read.trailing_data[0]) or _tls_holds_more(network.get_extra_info("ssl_object"))


def _tls_holds_more(tls: Any) -> bool:
    """Whether decrypted or encrypted bytes were taken from the socket and not asked for yet."""
    if not isinstance(tls, ssl.SSLObject):
        return False
    try:
        tls.read(1)
    except ssl.SSLWantReadError:
        return False
    except ssl.SSLError:
        pass
    return True
