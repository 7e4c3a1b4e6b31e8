"""Drivers that several modules of tests begin with."""

from __future__ import annotations

import pytest

from tests.core.driver import CHARGE, LOOK, Driver


@pytest.fixture
def hooked() -> Driver:
    """With a `reconcile` hook, and two tools."""
    driver = Driver(has_hook=True).opened()
    driver.listed(LOOK, CHARGE)
    return driver
