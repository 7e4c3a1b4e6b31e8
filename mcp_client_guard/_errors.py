"""Every exception of this package's own. Wrong arguments are `ValueError`, a missing extra is `ImportError`.

    GuardError
    ├── RequestFailed             a request of the `reconcile` hook's own drew an error
    └── StoreError
        ├── StoreInUse            a live owner holds the key
        ├── StoreOwnershipLost    another owner took the key over
        ├── StoreDamaged          foreign, newer or corrupt: refused, never replaced
        └── StoreWriteError       disk full or failed: the call was not sent

What the guard concludes about a call is a value (`CallInDoubt`), not one of these.
"""

from __future__ import annotations

from typing import Any


class GuardError(Exception):
    """Base of what goes wrong at run time. Wrong arguments are `ValueError`, a missing extra is `ImportError`."""


class RequestFailed(GuardError):
    """A request that the `reconcile` hook sent was answered with a JSON-RPC error, or its answer was lost."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"{message} (JSON-RPC error {code})")
        self.code = code
        self.data = data
        self._message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled by what it was made of: its `args` are the text."""
        return type(self), (self.code, self._message, self.data), vars(self)


class StoreError(GuardError):
    """The store cannot do what was asked."""

    is_unused = False
    """It is only that no Guard has used the store yet."""


class StoreInUse(StoreError):
    """Another live Guard owns this key: use another `key`, or stop the other owner first."""


class StoreOwnershipLost(StoreError):
    """Another owner took this key over; this connection may write no more. Connect again to claim it."""


class StoreDamaged(StoreError):
    """The file is not a store of ours, is newer than this version, or is corrupt. It was left as it is:
    move it away, or point `SQLiteStore` at another path. Or it was removed or replaced while open: leave the
    connections, and connect again."""


class StoreWriteError(StoreError):
    """The write failed and nothing of it was kept. A call that needed it was not sent."""
