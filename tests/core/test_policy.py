"""The policy refuses nonsense, and answers by tool and by method."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_client_guard.core.event_id import IdScheme
from mcp_client_guard.core.policy import HARMLESS_METHODS, GuardPolicy


@pytest.mark.parametrize(
    "wrong",
    [
        {"call_deadline": 0},
        {"call_deadline": {"a": -1}},
        {"call_deadline": "soon"},
        {"witness_timeout": 0},
        {"settle_after": -1},
        {"recheck": 0},
        {"max_idle": 0},
        {"max_attempts": 0},
        {"max_event_size": 0},
        {"max_held": 0},
        {"trail_size": 0},
        {"in_doubt_as": "silence"},
        {"on_unverified": "hope"},
        {"id_scheme": "random"},
        {"resend": {"charge": "sometimes"}},
        {"reconcile_timeout": 0},
        {"reinitialize_limit": 0},
        {"repeat_window": 0},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        GuardPolicy(**wrong)


def test_a_scheme_may_be_declared_by_its_word() -> None:
    assert GuardPolicy(id_scheme="contiguous").id_scheme is IdScheme.CONTIGUOUS


def test_the_deadline_is_per_tool_by_the_first_glob_that_fits() -> None:
    policy = GuardPolicy(call_deadline={"report_*": 7200, "charge": 60})
    assert policy.deadline_of("report_year") == 7200
    assert policy.deadline_of("charge") == 60
    assert policy.deadline_of("other") == policy.deadline_of(None) == 3600
    assert GuardPolicy(call_deadline={"*": 5}).deadline_of(None) == 5
    assert GuardPolicy(call_deadline=7).deadline_of("x") == 7


def test_harmless_methods_alone_have_no_side_effects() -> None:
    policy = GuardPolicy()
    assert not any(policy.may_have_side_effects(method, None) for method in HARMLESS_METHODS)
    assert policy.may_have_side_effects("tasks/cancel", None)
    assert policy.may_have_side_effects("x/unknown", None)


@pytest.mark.parametrize(
    ("annotations", "trusted", "effects"),
    [
        (None, True, True),
        ({}, True, True),
        ({"readOnlyHint": True}, True, False),
        ({"readOnlyHint": True}, False, True),
        ({"readOnlyHint": "yes"}, True, True),
        ({"idempotentHint": True}, True, True),
    ],
)
def test_a_tool_is_harmless_only_by_a_read_only_hint_that_is_trusted(
    annotations: dict[str, Any] | None, trusted: bool, effects: bool
) -> None:
    policy = GuardPolicy(trust_read_only_hint=trusted)
    assert policy.may_have_side_effects("tools/call", annotations) is effects
