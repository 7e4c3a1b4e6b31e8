"""The policy refuses nonsense, and answers by tool and by method."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from mcp_client_guard.core.event_id import IdScheme
from mcp_client_guard.core.policy import HARMLESS_METHODS, GuardPolicy


async def _is_lost_some_day(status: int, body: Any) -> bool:
    raise AssertionError


@pytest.mark.parametrize(
    "wrong",
    [
        {"call_deadline": 0},
        {"call_deadline": {"a": -1}},
        {"call_deadline": "soon"},
        {"call_deadline": True},
        {"call_deadline": {"a": "soon"}},
        {"call_deadline": {None: 5}},
        {"witness_timeout": 0},
        {"witness_timeout": float("nan")},
        {"witness_timeout": {"charge": 5}},
        {"settle_after": -1},
        {"recheck": 0},
        {"max_idle": 0},
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"max_event_size": 0},
        {"max_held": 0},
        {"trail_size": 0},
        {"in_doubt_as": "silence"},
        {"in_doubt_as": ["result"]},
        {"on_unverified": "hope"},
        {"id_scheme": "random"},
        {"id_scheme": None},
        {"trust_read_only_hint": "false"},
        {"trust_idempotent_hint": "false"},
        {"trust_status": "no"},
        {"keep_results": 0},
        {"resend": {"charge": "sometimes"}},
        {"resend": {"charge": True}},
        {"resend": {1: "always"}},
        {"resend": "always"},
        {"resend": ["charge"]},
        {"honours_call_key": "order_*"},
        {"honours_call_key": b"order_*"},
        {"honours_call_key": {"order_*": False}},
        {"honours_call_key": ["order", None]},
        {"honours_call_key": [""]},
        {"honours_call_key": None},
        {"join_in_flight": "order_*"},
        {"call_key_argument": "key"},
        {"call_key_argument": {"order": 1}},
        {"call_key_argument": {"order": ""}},
        {"is_session_lost": 404},
        {"is_session_lost": _is_lost_some_day},
        {"reconcile_timeout": 0},
        {"reinitialize_limit": 0},
        {"repeat_window": 0},
    ],
)
def test_what_cannot_be_meant_is_refused_and_said_what_is_wanted(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"^{name} must be .*, not {re.escape(repr(value))}$"):
        GuardPolicy(**wrong)


@pytest.mark.parametrize("names", [["a", "b_*"], ("a", "b_*"), {"a": 1, "b_*": 2}.keys()])
def test_names_are_taken_from_any_collection_of_names(names: Any) -> None:
    assert GuardPolicy(honours_call_key=names).honours_call_key == ("a", "b_*")


def test_what_can_be_meant_is_taken() -> None:
    policy = GuardPolicy(call_deadline=float("inf"), resend={}, is_session_lost=lambda status, body: False)
    assert policy.deadline_of("charge") == float("inf")


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


def test_help_tells_of_every_choice() -> None:
    told = (GuardPolicy.__doc__ or "").partition("Args:")[2].partition("Raises:")[0]
    assert re.findall(r"^        (\w+): ", told, re.MULTILINE) == [a.name for a in attrs.fields(GuardPolicy)]


# Which entry counts.


def test_the_own_name_of_a_tool_counts_before_any_glob() -> None:
    policy = GuardPolicy(resend={"*": "always", "charge": "never"}, call_deadline={"*": 600, "charge": 8})
    assert (policy.resend_of("charge"), policy.resend_of("look")) == ("never", "always")
    assert (policy.deadline_of("charge"), policy.deadline_of("look")) == (8, 600)


def test_of_globs_the_first_that_fits_counts() -> None:
    policy = GuardPolicy(resend={"pay_*": "never", "*": "always"})
    assert (policy.resend_of("pay_rent"), policy.resend_of("look")) == ("never", "always")


@pytest.mark.parametrize("names", [("*", "pay_*"), ("p*", "look", "pay_*"), ("*_*", "pay_*"), ("*", "a?*")])
@pytest.mark.parametrize("option", ["resend", "call_key_argument", "call_deadline"])
def test_a_glob_that_can_never_count_is_refused(option: str, names: tuple[str, ...]) -> None:
    value: Any = {"resend": "never", "call_key_argument": "key", "call_deadline": 8}[option]
    with pytest.raises(ValueError, match=f"^{option}: .* never counts behind "):
        GuardPolicy(**{option: dict.fromkeys(names, value)})


@pytest.mark.parametrize("names", [("pay_*", "*"), ("get_?", "get_*"), ("[ab]*", "a*"), ("*a", "*b")])
def test_a_glob_that_may_count_is_not(names: tuple[str, ...]) -> None:
    assert GuardPolicy(resend=dict.fromkeys(names, "never")).resend
