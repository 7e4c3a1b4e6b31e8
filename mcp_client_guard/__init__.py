"""A drop-in MCP client transport that proves every resume and gives every tool call an honest outcome."""

from __future__ import annotations

from ._connection import Connection
from ._errors import (
    GuardError,
    RequestFailed,
    StoreDamaged,
    StoreError,
    StoreInUse,
    StoreOwnershipLost,
    StoreWriteError,
)
from ._events import EventCallback
from ._guard import Guard
from ._reconcile import InDoubtCall, ReconcileHook, Reconciler
from .core.doubt import CallInDoubt, CallNotExecuted
from .core.event_id import IdScheme
from .core.model import Evidence, Generation, Grade, Outcome
from .core.policy import GuardPolicy, ResendRule
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
    SessionUnavailable,
    StandaloneUnavailable,
    StoreFailed,
    Unreachable,
    UnreadableDropped,
    Upgraded,
    UpgradeRefused,
)
from .core.verdicts import Fail, Resend, Resolve, Verdict
from .stores import Claim, Store, StoredCall, StoredSession
from .stores.memory import MemoryStore
from .stores.sqlite import SQLiteStore

__all__ = [
    "CallInDoubt",
    "CallNotExecuted",
    "CallSettled",
    "Claim",
    "Connected",
    "Connection",
    "Disconnected",
    "Discontinuity",
    "DuplicateDropped",
    "EndpointMoved",
    "EndpointRefused",
    "Event",
    "EventCallback",
    "Evidence",
    "Fail",
    "Generation",
    "Grade",
    "GenerationChosen",
    "Guard",
    "GuardError",
    "GuardPolicy",
    "IdScheme",
    "InDoubtCall",
    "ListenedAgain",
    "MaybeRedelivered",
    "MemoryStore",
    "NotificationLost",
    "OrphanDropped",
    "Outcome",
    "ReconcileHook",
    "Reconciler",
    "RefreshSuggested",
    "Reinitialized",
    "RepeatJoined",
    "RepeatRefused",
    "RequestFailed",
    "Resend",
    "ResendRule",
    "Resolve",
    "Resumed",
    "SQLiteStore",
    "SessionLost",
    "SessionUnavailable",
    "StandaloneUnavailable",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreInUse",
    "StoreOwnershipLost",
    "StoreWriteError",
    "StoredCall",
    "StoredSession",
    "Unreachable",
    "UnreadableDropped",
    "UpgradeRefused",
    "Upgraded",
    "Verdict",
]
