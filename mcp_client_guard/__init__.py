"""A drop-in MCP client transport that proves every resume and gives every tool call an honest outcome."""

from __future__ import annotations

from ._errors import (
    GuardError,
    StoreDamaged,
    StoreError,
    StoreInUse,
    StoreOwnershipLost,
    StoreWriteError,
)
from ._guard import Guard
from .core.answers import CallInDoubt
from .core.model import Evidence, Grade, Outcome
from .core.policy import GuardPolicy
from .core.report import (
    CallSettled,
    Connected,
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    Event,
    NotificationLost,
    OrphanDropped,
    RefreshSuggested,
    Resumed,
    SessionLost,
    StandaloneUnavailable,
    StoreFailed,
    UnreadableDropped,
)
from .stores.memory import MemoryStore
from .stores.sqlite import SQLiteStore

__all__ = [
    "UnreadableDropped",
    "StoreFailed",
    "StandaloneUnavailable",
    "RefreshSuggested",
    "OrphanDropped",
    "NotificationLost",
    "CallInDoubt",
    "CallSettled",
    "Connected",
    "Disconnected",
    "Discontinuity",
    "DuplicateDropped",
    "Event",
    "Evidence",
    "Grade",
    "Guard",
    "GuardError",
    "GuardPolicy",
    "MemoryStore",
    "Outcome",
    "Resumed",
    "SQLiteStore",
    "SessionLost",
    "StoreDamaged",
    "StoreError",
    "StoreInUse",
    "StoreOwnershipLost",
    "StoreWriteError",
]
