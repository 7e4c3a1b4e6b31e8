"""What a `reconcile` hook may say of a call in doubt."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from .model import JSON


@frozen
class Resend:
    """It did not run, or may safely run again: send it again, under the new session."""


@frozen
class Resolve:
    """It ran, and this is its result (for a tool call: a `CallToolResult` as JSON, or any object that has
    `model_dump`)."""

    result: Any

    def as_json(self) -> JSON | None:
        dump = getattr(self.result, "model_dump", None)
        value = dump(by_alias=True, mode="json", exclude_none=True) if dump is not None else self.result
        return value if isinstance(value, dict) else None


@frozen
class Fail:
    """The caller is told that it failed, in these words; the ledger keeps it in doubt."""

    message: str


Verdict = Resend | Resolve | Fail
