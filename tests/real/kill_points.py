"""Where a process can be killed: before and after each write, flush, file operation and socket send.

`install` wraps what the guard and its store really call: `sqlite3.Connection.execute` for whatever is no mere
question (a commit is where SQLite writes and flushes), its `close`, the calls of `os` with which a store is made
and locked, and `send`, `sendall` and `sendmsg` of TCP sockets, which asyncio's and trio's transports end in.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

from attrs import define, field

FILE_CALLS = ("fsync", "fdatasync", "replace", "pwrite", "ftruncate", "unlink")


@define
class Points:
    """Counts, and kills this process when its number comes."""

    at: int = 0
    """The number of the point at which to die; 0: nowhere."""
    after: bool = False
    """Die after the operation, and not before it."""
    names: list[str] = field(factory=list)
    """Of the points that were passed."""
    is_off: bool = False
    _lock: threading.Lock = field(factory=threading.Lock)

    def around(self, name: str, operation: Callable[[], Any]) -> Any:
        """Carry out an operation that is a point."""
        if self.is_off:
            return operation()
        with self._lock:
            self.names.append(name)
            dies = len(self.names) == self.at
        if dies and not self.after:
            die()
        result = operation()
        if dies:
            die()
        return result


def die() -> None:
    """As by `kill -9`: nothing is flushed, closed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # the signal is on its way to whichever thread


def install(points: Points) -> None:
    """For the rest of this process's life."""

    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> Any:
            if _only_asks(sql):
                return super().execute(sql, *args)
            return points.around(f"sql {_said(sql)}", lambda: super(Connection, self).execute(sql, *args))

        def close(self) -> None:
            points.around("sql close", super().close)

    connect: Any = functools.partial(sqlite3.connect, factory=Connection)
    sqlite3.connect = connect
    for name in FILE_CALLS:
        if hasattr(os, name):
            setattr(os, name, _pointed(points, f"os {name}", getattr(os, name)))
    for name in ("send", "sendall", "sendmsg"):
        setattr(socket.socket, name, _sending(points, getattr(socket.socket, name)))


def _only_asks(sql: str) -> bool:
    return sql.startswith(("SELECT", "BEGIN")) or (sql.startswith("PRAGMA") and "=" not in sql)


def _said(sql: str) -> str:
    first, _, rest = sql.partition(" ")
    if first == "UPDATE" or first == "PRAGMA":
        return f"{first} {rest.split(' ')[0]}"
    if first in ("INSERT", "DELETE", "CREATE"):
        words = rest.split(" ")
        return f"{first} {words[words.index('INTO') + 1] if 'INTO' in words else words[1]}"
    return first


def _pointed(points: Points, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def pointed(*args: Any, **options: Any) -> Any:
        return points.around(name, lambda: call(*args, **options))

    return pointed


def _sending(points: Points, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def sending(self: socket.socket, *args: Any) -> Any:
        if self.family not in (socket.AF_INET, socket.AF_INET6):
            return call(self, *args)  # asyncio wakes itself over a pair of sockets
        return points.around(f"send {_method(args[0])}", lambda: call(self, *args))

    return sending


def _method(sent: Any) -> str:
    """`POST tools/call`, as far as it is in these bytes."""
    data = bytes(sent) if isinstance(sent, (bytes, bytearray, memoryview)) else b"".join(sent)
    verb = data.split(b" ", 1)[0].decode("latin-1")
    _, found, rest = data.partition(b'"method":"')
    method = rest.partition(b'"')[0].decode("latin-1")
    return f"{verb} {method}" if found else verb
