"""The two kinds of host, and what a given environment can run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from mcp_client_guard.core import upgrading
from mcp_client_guard.core.actions import Delay
from mcp_client_guard.transports import retry

from . import hosts

# httpx2 comes with SDK 2.x only. Its tests are collected where it is installed, and run there (nox does both);
# where it is not, no user can hold such a client, so that nothing is left unproven.
collect_ignore = [] if find_spec("httpx2") else ["test_httpx2.py"]

# SDK 1.x alone has a WebSocket transport of its own, of which it is shown what it loses.
collect_ignore += [] if find_spec("mcp.client.websocket") else ["test_sdk_websocket.py"]


@pytest.fixture(params=["plain", "sdk"])
def playing(request: pytest.FixtureRequest) -> Any:
    """A test that takes it runs with plain JSON and with the installed SDK's `ClientSession`."""
    return hosts.plainly if request.param == "plain" else hosts.by_sdk


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backoff starts at 2 ms instead of 100, so that tests of many attempts do not wait."""
    monkeypatch.setattr(retry, "_FIRST", 0.002)
    monkeypatch.setattr(upgrading, "_FIRST_PAUSE", 0.002)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the guard would have waited before each request, which it does not."""
    monkeypatch.undo()  # the real backoff, see `quick_backoff`
    seconds, seen = retry.seconds, []

    def none(delay: Delay) -> float:
        seen.append(seconds(delay))
        return 0.0

    monkeypatch.setattr(retry, "seconds", none)
    return seen
