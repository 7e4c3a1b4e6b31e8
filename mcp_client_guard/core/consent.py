"""May a call that may have run be sent again? The one table, strongest first (DESIGN §5)."""

from __future__ import annotations

from fnmatch import fnmatchcase

from .model import JSON
from .policy import HARMLESS_METHODS, GuardPolicy


def consent_to(
    policy: GuardPolicy, method: str, tool: str | None, annotations: JSON | None, *, tool_changed: bool = False
) -> bool:
    """Whether this request may be sent again although it may have run; the `reconcile` hook is asked before.

    `annotations` are those that the host knew when it wrote the request. Nothing is repeated of a tool that has
    changed since.
    """
    if method != "tools/call":
        return method in HARMLESS_METHODS
    if tool_changed:
        return False
    rule = policy.resend_of(tool)
    hints = annotations or {}
    if rule is not None:
        idempotent = hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True
        return rule == "always" or (rule == "if_idempotent" and idempotent)
    return (
        any(fnmatchcase(tool or "", pattern) for pattern in policy.honours_call_key)
        or (policy.trust_read_only_hint and hints.get("readOnlyHint") is True)
        or (policy.trust_idempotent_hint and hints.get("idempotentHint") is True)
    )
