"""The one table of consent: what may be sent again although it may have run."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from mcp_client_guard.core.consent import consent_to
from mcp_client_guard.core.policy import HARMLESS_METHODS, GuardPolicy

READ_ONLY = {"readOnlyHint": True}
IDEMPOTENT = {"idempotentHint": True}


def consents(
    policy: GuardPolicy, hints: Any = None, *, tool: str | None = "charge", changed: bool = False
) -> bool:
    return consent_to(policy, "tools/call", tool, hints, tool_changed=changed)


@pytest.mark.parametrize("method", sorted(HARMLESS_METHODS))
def test_harmless_methods_may_always_be_sent_again(method: str) -> None:
    assert consent_to(GuardPolicy(), method, None, None, tool_changed=True)


@pytest.mark.parametrize("method", ["tasks/cancel", "x/unknown", "sampling/createMessage", "elicitation/create"])
def test_other_methods_never(method: str) -> None:
    policy = GuardPolicy(resend={"*": "always"}, trust_idempotent_hint=True)
    assert not consent_to(policy, method, None, READ_ONLY)


@pytest.mark.parametrize(
    ("rule", "hints", "may"),
    [
        ("always", None, True),
        ("always", {}, True),
        ("never", READ_ONLY, False),
        ("never", IDEMPOTENT, False),
        ("if_idempotent", None, False),
        ("if_idempotent", {}, False),
        ("if_idempotent", {"idempotentHint": "yes"}, False),
        ("if_idempotent", {"idempotentHint": False, "readOnlyHint": False}, False),
        ("if_idempotent", READ_ONLY, True),
        ("if_idempotent", IDEMPOTENT, True),
    ],
)
@pytest.mark.parametrize("trust", list(product([True, False], repeat=2)))
def test_the_user_s_rule_for_a_tool_is_stronger_than_whom_he_trusts(
    rule: Any, hints: Any, may: bool, trust: tuple[bool, bool]
) -> None:
    read_only, idempotent = trust
    policy = GuardPolicy(
        resend={"char*": rule},
        honours_call_key=("*",) if rule == "never" else (),
        trust_read_only_hint=read_only,
        trust_idempotent_hint=idempotent,
    )
    assert consents(policy, hints) is may


@pytest.mark.parametrize(
    ("policy", "hints", "may"),
    [
        (GuardPolicy(), None, False),
        (GuardPolicy(), READ_ONLY, True),
        (GuardPolicy(), {"readOnlyHint": 1}, False),
        (GuardPolicy(), IDEMPOTENT, False),
        (GuardPolicy(trust_read_only_hint=False), READ_ONLY, False),
        (GuardPolicy(trust_idempotent_hint=True), IDEMPOTENT, True),
        (GuardPolicy(honours_call_key=("ch*",)), None, True),
        (GuardPolicy(honours_call_key=("other",)), None, False),
        (GuardPolicy(resend={"get_*": "always"}), None, False),
    ],
)
def test_without_a_rule_it_depends_on_hints_and_the_call_key(policy: GuardPolicy, hints: Any, may: bool) -> None:
    assert consents(policy, hints) is may


def test_the_first_glob_that_fits_counts() -> None:
    policy = GuardPolicy(resend={"get_secret": "never", "get_*": "always"})
    assert consents(policy, tool="get_x")
    assert not consents(policy, tool="get_secret")
    assert not consents(policy, tool=None)


@pytest.mark.parametrize(
    "policy",
    [GuardPolicy(resend={"*": "always"}), GuardPolicy(honours_call_key=("*",)), GuardPolicy()],
)
def test_a_tool_whose_schema_changed_is_never_sent_again_by_itself(policy: GuardPolicy) -> None:
    assert not consents(policy, READ_ONLY, changed=True)
