"""Subscriptions of 2026-07-28: listened to again when their stream is lost (SPEC-FACTS §14; §20, 27).

A server keeps nothing of a subscription, and what it sends between two of them is lost. So the host, which has
subscribed once and knows one subscription, is told to read again what the subscription is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from .actions import CancelTimer, Delay, Report, SetTimer
from .classify import INTERNAL_ERROR, Ran, code_of, is_of_router, may_pass
from .ledger import Call, Refusal
from .messages import params_of
from .meta import with_subscription
from .model import JSON, Outcome
from .outcomes import OWN_SECONDS, deadline_timer
from .pace import STEADY_SECONDS, OncePerMinute
from .reconcile import Reconciling
from .report import ListenedAgain, RefreshSuggested
from .stranded import Stranded
from .timer import Timer, TimerKind

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_LISTS = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
_URIS = "resourceSubscriptions"
_CAP = 60.0


@define(eq=False, repr=False)
class Subscription:
    """What the host has subscribed to, over however many requests."""

    honoured: JSON | None = None
    """The filter as first acknowledged: the host knows this one."""
    acked_at: float | None = None
    """When the present request was acknowledged."""
    attempts: int = 0
    """Lost or failed in a row, soon after they were acknowledged or before."""
    retry_ms: int | None = None
    refreshes: OncePerMinute = field(factory=OncePerMinute)


@define(eq=False, repr=False)
class Listening(Reconciling):
    """Owns the host's subscriptions."""

    _subscriptions: dict[int, Subscription] = field(factory=dict, init=False)
    """By the first wire ID of their requests."""

    def is_subscribed(self, call: Call) -> bool:
        """Whether the host has been told that it is subscribed, and still wants to be."""
        return call.in_flight and self._subscription(call).honoured is not None

    def _wants_another(self, call: Call) -> bool:
        return self.is_subscribed(call) and not call.unsendable

    def _subscription(self, call: Call) -> Subscription:
        if not call.is_subscription:
            return Subscription()
        return self._subscriptions.setdefault(call.first_wire_id, Subscription())

    # What the server says on it.

    def acknowledged(self, call: Call, message: JSON) -> bool:
        """The server says what it will tell. Returns whether the host is to hear of it: once only."""
        told = params_of(message).get("notifications")
        honoured: JSON = told if isinstance(told, dict) else {}
        subscription = self._subscription(call)
        known = subscription.honoured
        subscription.acked_at = self.clock.now
        # It lasts for as long as the host wants it: only until here did the call's deadline count.
        self.out.append(CancelTimer(deadline_timer(call)))
        if known is None:
            subscription.honoured = honoured
            return True
        missing = tuple(sorted(_items(known) - _items(honoured)))
        self.out.append(Report(ListenedAgain(str(call.wire_id), missing)))
        self._refresh_listener(call, subscription)
        return False

    def refresh_listener(self, first_wire_id: int) -> None:
        """A refresh that had to wait is due."""
        call, subscription = self.ledger.by_first(first_wire_id), self._subscriptions.get(first_wire_id)
        if call is not None and subscription is not None:
            subscription.refreshes.waited()
            self._refresh_listener(call, subscription)

    def _refresh_listener(self, call: Call, subscription: Subscription) -> None:
        """Tell the host to read again what it has subscribed to: at most once a minute."""
        wait = subscription.refreshes.take(self.clock.now)
        if wait:
            self.out.append(SetTimer(_refreshing(call), wait))
            return
        sent = [_addressed(m, call) for m in _notifications(subscription.honoured or {})]
        for message in sent:
            self._deliver(message)
        if sent:
            self.out.append(Report(RefreshSuggested(tuple(m["method"] for m in sent))))

    # It ends, and the host has not said so.

    def listen_again(self, call: Call, reason: str, *, at_least: float = 0.0) -> None:
        """Another request in place of this one, with a new ID; never given up, but ever more slowly."""
        subscription, stream = self._subscription(call), self.streams.of(call)
        if stream is not None and stream.retry_ms is not None:
            subscription.retry_ms = stream.retry_ms
        acked_at, subscription.acked_at = subscription.acked_at, None
        is_steady = acked_at is not None and self.clock.now - acked_at >= STEADY_SECONDS
        subscription.attempts = 0 if is_steady else subscription.attempts + 1
        delay = Delay(subscription.attempts, subscription.retry_ms, at_least, _CAP)
        wait = max(delay.floor, _CAP if subscription.attempts else 0.0)
        self.out.append(SetTimer(deadline_timer(call), OWN_SECONDS + 2 * wait))
        self._send_again(Stranded(call, reason, Ran.MAYBE, delay=delay), Outcome.RESENT, reason)

    def reconnect(self) -> None:
        """The user wants it tried now: what has failed until now says nothing of what comes."""
        for subscription in self._subscriptions.values():
            subscription.attempts = 0

    def not_acknowledged(self, call: Call) -> None:
        """The server had its time to acknowledge."""
        self.streams.cancel(call)
        self.listen_again(call, "it was not acknowledged in time")

    def in_doubt(
        self,
        call: Call,
        reason: str,
        *,
        again: bool = True,
        refusal: Refusal | None = None,
        lost_soon: bool = False,
    ) -> None:
        if again and self._wants_another(call):
            self.listen_again(call, reason)
        else:
            again = again and not (call.is_subscription and call.unsendable)
            super().in_doubt(call, reason, again=again, refusal=refusal, lost_soon=lost_soon)

    def not_executed(self, call: Call, by: str, reason: str, status: int | None = None) -> None:
        if by == "wire" and self._wants_another(call):
            self.listen_again(call, reason)
        else:
            super().not_executed(call, by, reason, status)

    def _settle_refused(self, call: Call, ran: Ran, refusal: Refusal, *, may_wait: bool = True) -> None:
        if self._may_listen_again(call, refusal):
            self.listen_again(call, f"HTTP {refusal.status}", at_least=refusal.wait)
        else:
            super()._settle_refused(call, ran, refusal, may_wait=may_wait)

    def _may_listen_again(self, call: Call, refusal: Refusal) -> bool:
        """Whether what a subscription draws is no word on it, since it worked before."""
        passes = may_pass(refusal.status) or is_of_router(refusal.status, refusal.body)
        return passes and self.is_subscribed(call)

    def is_taken_later(self, call: Call, message: JSON) -> bool:
        """Whether this answer to another request of a subscription is no word on the subscription.

        A result ends it, as the server's word that it is over. So does an error, save an internal one.
        """
        if code_of(message) != INTERNAL_ERROR or not self.is_subscribed(call):
            return False
        self.listen_again(call, "it was answered with an internal error")
        return True

    def _forget(self, call: Call) -> None:
        super()._forget(call)
        if self._subscriptions.pop(call.first_wire_id, None) is not None:
            self.out.append(CancelTimer(_refreshing(call)))


def _refreshing(call: Call) -> Timer:
    return Timer(TimerKind.REFRESH, call.first_wire_id)


def _items(honoured: Mapping[str, Any]) -> set[str]:
    """What a filter holds, one by one."""
    return {name for name, value in honoured.items() if value is True} | {
        f"{name} {item}" for name, value in honoured.items() for item in _texts_in(value)
    }


def _notifications(honoured: JSON) -> list[JSON]:
    lists: list[JSON] = [{"method": method} for name, method in _LISTS.items() if honoured.get(name) is True]
    uris = honoured.get(_URIS)
    return lists + [
        {"method": "notifications/resources/updated", "params": {"uri": uri}} for uri in _texts_in(uris)
    ]


def _texts_in(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _addressed(message: JSON, call: Call) -> JSON:
    """As the server would have sent it on this subscription."""
    params = {**message.get("params", {}), "_meta": {}}
    return with_subscription({"jsonrpc": "2.0", **message, "params": params}, call.host_id)
