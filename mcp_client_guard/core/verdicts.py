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
    """It ran, and this is its result: a `CallToolResult` as JSON, or any object that has `model_dump`.

    As the tool itself would have given it: SDKs raise where `structuredContent` does not fit its output schema.
    """

    result: Any

    def as_json(self) -> JSON | None:
        dump = getattr(self.result, "model_dump", None)
        value = dump(by_alias=True, mode="json", exclude_none=True) if dump is not None else self.result
        return value if isinstance(value, dict) else None


@frozen
class Fail:
    """Nobody can say: the caller is told so in these words, and a repeat as well. It stays in doubt."""

    message: str


Verdict = Resend | Resolve | Fail
