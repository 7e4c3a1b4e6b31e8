"""A drop-in MCP client transport that proves every resume and gives every tool call an honest outcome."""

from __future__ import annotations

from ._errors import (
    GuardError,
    RequestFailed,
    StoreDamaged,
    StoreError,
    StoreInUse,
    StoreOwnershipLost,
    StoreWriteError,
)
from ._guard import Guard
from ._reconcile import InDoubtCall, Reconciler
from .core.answers import CallInDoubt, CallNotExecuted
from .core.model import Evidence, Grade, Outcome
from .core.policy import GuardPolicy
from .core.report import (
    CallSettled,
    Connected,
    Disconnected,
    Discontinuity,
    DuplicateDropped,
    EndpointMoved,
    EndpointRefused,
    Event,
    GenerationChosen,
    ListenedAgain,
    MaybeRedelivered,
    NotificationLost,
    OrphanDropped,
    RefreshSuggested,
    Reinitialized,
    RepeatJoined,
    RepeatRefused,
    Resumed,
    SessionLost,
    StandaloneUnavailable,
    StoreFailed,
    UnreadableDropped,
    Upgraded,
    UpgradeRefused,
)
from .core.verdicts import Fail, Resend, Resolve
from .stores.memory import MemoryStore
from .stores.sqlite import SQLiteStore

__all__ = [
    "CallInDoubt",
    "CallNotExecuted",
    "CallSettled",
    "Connected",
    "Disconnected",
    "Discontinuity",
    "DuplicateDropped",
    "EndpointMoved",
    "EndpointRefused",
    "Event",
    "Evidence",
    "Fail",
    "Grade",
    "GenerationChosen",
    "Guard",
    "GuardError",
    "GuardPolicy",
    "InDoubtCall",
    "ListenedAgain",
    "MaybeRedelivered",
    "MemoryStore",
    "NotificationLost",
    "OrphanDropped",
    "Outcome",
    "Reconciler",
    "RefreshSuggested",
    "Reinitialized",
    "RepeatJoined",
    "RepeatRefused",
    "RequestFailed",
    "Resend",
    "Resolve",
    "Resumed",
    "SQLiteStore",
    "SessionLost",
    "StandaloneUnavailable",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreInUse",
    "StoreOwnershipLost",
    "StoreWriteError",
    "UnreadableDropped",
    "UpgradeRefused",
    "Upgraded",
]
