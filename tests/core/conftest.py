"""What several modules of tests begin with."""

from __future__ import annotations

import pytest

from tests.core.driver import CHARGE, LOOK, Driver
from tests.core.scenes import Connection, Process, opened


@pytest.fixture
def hooked() -> Driver:
    """With a `reconcile` hook, and two tools."""
    driver = Driver(has_hook=True).opened()
    driver.listed(LOOK, CHARGE)
    return driver


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def one(process: Process) -> Connection:
    return opened(process)
