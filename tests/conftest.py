"""What all tests share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Each `@pytest.mark.anyio` test runs on both event loops."""
    return request.param
