"""nginx in front, HAProxy behind it, the servers behind that: each proxy a process of the test's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
from attrs import frozen

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-1; proxy_temp_path {folder}/nginx-2; fastcgi_temp_path {folder}/nginx-3;
    uwsgi_temp_path {folder}/nginx-4; scgi_temp_path {folder}/nginx-5;
    server {{
        listen 127.0.0.1:{port} reuseport backlog=1024;
        location / {{
            proxy_pass http://unix:{folder}/haproxy:;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_read_timeout 2s;
        }}
    }}
}}
"""

HAPROXY = """
global
    stats socket fd@{admin} level admin
    nbthread 1
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    retries 1
    option redispatch
frontend all
    bind fd@{entrance}
    default_backend mcp
backend mcp
    balance roundrobin
{sticky}
"""
STICKY = """
    stick-table type string len 64 size 10k expire 10m
    stick store-response res.hdr(Mcp-Session-Id)
    stick match req.hdr(Mcp-Session-Id)
"""


@frozen
class Proxies:
    """Both, running."""

    url: str
    """Where nginx listens."""
    _admin: Path

    async def ready(self, server: str) -> None:
        """New sessions may go to this server, too."""
        await self._order(f"set server mcp/{server} state ready")

    async def drain(self, server: str) -> None:
        """Only the sessions that it has go there."""
        await self._order(f"set server mcp/{server} state drain")

    async def remove(self, server: str) -> None:
        """Nothing goes there any more; what is under way goes on."""
        await self._order(f"set server mcp/{server} state maint")

    async def cut(self, server: str) -> None:
        """End every connection to this server."""
        await self._order(f"shutdown sessions server mcp/{server}")

    async def _order(self, order: str) -> None:
        async with await anyio.connect_unix(self._admin) as stream:
            await stream.send(order.encode() + b"\n")
            answer = b""
            try:
                while True:
                    answer += await stream.receive()
            except anyio.EndOfStream:
                pass
        if answer.strip():
            raise RuntimeError(f"{order!r}: {answer.decode()}")


@contextmanager
def proxied(servers: Mapping[str, int], folder: Path, *, sticky: bool) -> Iterator[Proxies]:
    """Proxies before these ports, by name; none of the servers is used before it is `ready`."""
    with ExitStack() as stack:
        # HAProxy is given sockets that listen already. nginx opens its own, at a port that nobody else can get.
        back = stack.enter_context(_bound(socket.AF_UNIX, str(folder / "haproxy")))
        admin = stack.enter_context(_bound(socket.AF_UNIX, str(folder / "admin")))
        front = stack.enter_context(_bound(socket.AF_INET, ("127.0.0.1", 0)))
        back.listen(1024)
        admin.listen()
        port = front.getsockname()[1]
        text = HAPROXY.format(admin=admin.fileno(), entrance=back.fileno(), sticky=STICKY if sticky else "")
        lines = [f"    server {name} 127.0.0.1:{number} disabled\n" for name, number in servers.items()]
        behind = _written(folder / "haproxy.cfg", text + "".join(lines))
        before = _written(folder / "nginx.conf", NGINX.format(folder=folder, port=port))
        stack.enter_context(_running(["haproxy", "-db", "-q", "-f", behind], folder, back, admin))
        nginx = stack.enter_context(_running(["nginx", "-e", "stderr", "-c", before], folder))
        _wait_for(port, nginx)
        yield Proxies(f"http://127.0.0.1:{port}/mcp", folder / "admin")


def _written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _bound(family: int, address: object) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)  # type: ignore[arg-type]
    return sock


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return


@contextmanager
def _running(command: list[str], folder: Path, *passed: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    program = shutil.which(command[0], path=path)
    if program is None:
        raise RuntimeError(f"{command[0]} is missing: run tests/real/install_proxies.sh")
    log = folder / f"{command[0]}.err"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=[each.fileno() for each in passed],
        )
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text(errors='replace')}")
    finally:
        process.kill()
        process.wait()
