"""One HTTP request and its response, as far as it has come."""

from __future__ import annotations

import anyio
from attrs import define, field

from mcp_client_guard.core.actions import Get, Post


class BodyTooLarge(Exception):
    """A body is larger than the bound."""


@define(eq=False, repr=False)
class Exchange:
    """One HTTP request and its response."""

    order: Post | Get
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    last_byte: float = 0.0
    begun: bool = False
    answered: bool = False
    lingering: bool = False
    paused: bool = False
    """The host is behind, so that nothing is read: no byte can come."""
