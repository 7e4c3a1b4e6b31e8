"""A new session: its handshake is completed, and it is brought to where a lost one was."""

from __future__ import annotations

from abc import abstractmethod

from attrs import define, field

from .actions import NO_DELAY, CancelTimer, Delay, Report, SetTimer
from .classify import may_be_away
from .inputs import MessageSubmitted
from .ledger import Call, Own, Refusal
from .listening import Listening
from .messages import result_of
from .model import JSON
from .modern import dressed
from .report import Reinitialized
from .state import SessionState, SessionStep
from .stream import STANDALONE
from .timer import Timer, TimerKind

CONFIRM_SECONDS = 0.5
"""How long requests wait for the server to have taken `notifications/initialized`. Servers refuse requests
that overtake it; a slow answer to it must not hold the host up."""
_RESTORE_SECONDS = 5.0
_MOST_PAGES = 100
"""Of the server's tools that are read: a server may give another cursor for ever."""
_AGAIN = 1
"""Ticket of a request that restores, and is sent for the second time."""
_RESTORING = Timer(TimerKind.RESTORE, STANDALONE)
_REPLACING = frozenset({SessionState.LOST, SessionState.REINITIALIZING, SessionState.RESTORING})


@define(eq=False, repr=False)
class Restoring(Listening):
    """Owns what a session is to be brought to again."""

    subscriptions: set[str] = field(factory=set, init=False)
    log_level: str | None = field(default=None, init=False)
    _differences: tuple[str, ...] = field(default=(), init=False)
    """Between what the server said of itself in the lost session and in this one."""
    _restoring: dict[int, Call] = field(factory=dict, init=False)
    """What the session waits for before it is live, by wire ID."""
    _not_restored: list[str] = field(factory=list, init=False)
    _pages: set[str] = field(factory=set, init=False)
    """The cursors of the pages of tools that were asked for."""
    _confirming: int | None = field(default=None, init=False)
    _is_restore: bool = field(default=False, init=False)
    """The session that is being opened replaces a lost one."""
    _suspicion: str | None = field(default=None, init=False)
    """Why another session is being opened while the present one is not known to be lost."""

    def is_over(self, call: Call) -> bool:
        """Whether the session of this request is gone, so that its stream cannot be resumed."""
        if call.method == "initialize" or call.stateless:
            return False
        return call.incarnation != self.session.incarnation or self.is_lost

    @property
    def is_lost(self) -> bool:
        """There is no session, and none is opened by the host."""
        state = self.session.state
        return state is SessionState.LOST or (state is SessionState.REINITIALIZING and self._suspicion is None)

    @property
    def is_replacing(self) -> bool:
        """A session is being opened in place of a lost one, or beside one that may be lost: a repeat of what
        waits for it joins that."""
        state = self.session.state
        return state in _REPLACING or (state is SessionState.CONFIRMING and self._is_restore)

    @abstractmethod
    def _go_on(self) -> None:
        """The session is live."""
        ...

    def begin_anew(self) -> None:
        """The host opens a session of its own: it is to be as the host makes it."""
        self.subscriptions.clear()
        self.log_level = None
        self.present_tools.clear()  # until the host has listed them again

    def initialized_sent(self, number: int) -> None:
        """`notifications/initialized` is on its way."""
        self.session.move(SessionStep.INITIALIZED_SENT)
        self._confirming = number
        self.out.append(SetTimer(Timer(TimerKind.CONFIRM, number), CONFIRM_SECONDS))

    def confirmed(self, number: int) -> None:
        """`notifications/initialized` was taken, or its time is over: requests may go out."""
        if self._confirming != number or self.session.state is not SessionState.CONFIRMING:
            return
        self._confirming = None
        self.out.append(CancelTimer(Timer(TimerKind.CONFIRM, number)))
        if self._is_restore:
            self._is_restore = False
            self._restore()
        else:
            self.session.move(SessionStep.INITIALIZED_TAKEN)
            self._go_on()

    def _restore(self) -> None:
        self.session.move(SessionStep.RESTORE_SENT)
        self._not_restored = []
        self._pages.clear()
        self.present_tools.clear()  # until they are known to be the same
        wanted = self._wanted()
        if self.tools:
            wanted.append(("tools/list", {}))
        self.out.append(SetTimer(_RESTORING, _RESTORE_SECONDS))
        for method, params in wanted:
            self._send_restoring(method, params)
        self._restored_one()

    def _wanted(self) -> list[tuple[str, JSON]]:
        """What the host has asked for, and a new session does not have."""
        level: list[tuple[str, JSON]] = [("logging/setLevel", {"level": self.log_level})]
        subscriptions = [("resources/subscribe", {"uri": uri}) for uri in sorted(self.subscriptions)]
        return (level if self.log_level is not None else []) + subscriptions

    def _send_restoring(self, method: str, params: JSON, ticket: int = 0, delay: Delay = NO_DELAY) -> None:
        call = self._send_own(Own.RESTORE, method, params, ticket=ticket, delay=delay)
        if self.session.state is SessionState.RESTORING:
            self._restoring[call.wire_id] = call

    def _restored_one(self) -> None:
        if not self._restoring and self.session.state is SessionState.RESTORING:
            self.restored()

    def restored(self) -> None:
        """All is restored, or its time is over."""
        if self.session.state is not SessionState.RESTORING:
            return
        self._not_restored += [f"{_said(call)} (no answer yet)" for call in self._restoring.values()]
        self._stop_restoring()
        changed = (*self._differences, *(f"tool {name}" for name in self.changed_tools))
        self.out.append(Report(Reinitialized(self.session.fingerprint, changed, tuple(self._not_restored))))
        self.session.move(SessionStep.RESTORED)
        self.streams.refresh_now()
        self._go_on()

    def _stop_restoring(self) -> None:
        """The session waits for nothing more, and what fails from now on is not sent again for its sake."""
        self._restoring.clear()
        self.out.append(CancelTimer(_RESTORING))

    def _restored_by(self, call: Call, message: JSON) -> None:
        """The server has answered to one of the requests that restore."""
        in_time = self._restoring.pop(call.wire_id, None) is not None
        if call.incarnation != self.session.incarnation:
            return
        result = result_of(message)
        if result is None:
            self._not_restored.append(_said(call))
        elif call.method == "tools/list":
            self._restored_tools(result, in_time=in_time)
        elif "uri" in call.params and self._is_wanted_late(call):
            self.streams.refresh_resource(call.params["uri"])  # until now the server has told nothing of it
        self._restored_one()
        self._decide_all()  # a call may have waited for a late list

    def _not_restored_by(self, call: Call, refusal: Refusal | None) -> None:
        """One of the requests that restore failed: it is sent once more, unless it was refused for good."""
        in_time = self._restoring.pop(call.wire_id, None) is not None
        if not (in_time or self._is_wanted_late(call)):
            self._decide_all()  # as above
            return
        may_pass = refusal is None or may_be_away(refusal.status)
        if may_pass and call.ticket != _AGAIN:
            self._send_restoring(call.method, call.params, _AGAIN, Delay(1))
            return
        self._not_restored.append(_said(call))
        self._restored_one()

    def _is_wanted_late(self, call: Call) -> bool:
        """Whether the session is live, and the host still wants what this request was to restore."""
        is_live = self.session.state is SessionState.LIVE and call.incarnation == self.session.incarnation
        return is_live and (call.method, call.params) in self._wanted()

    def _restored_tools(self, result: JSON, *, in_time: bool) -> None:
        """One page of what tools there are now. A late one is not followed by another: pages may have no end."""
        self.present_tools.update(tools_of(result))
        cursor = result.get("nextCursor")
        if not (isinstance(cursor, str) and cursor and in_time):
            return
        if cursor in self._pages or len(self._pages) >= _MOST_PAGES - 1:
            self._not_restored.append("tools/list (its pages have no end)")
        else:
            self._pages.add(cursor)
            self._send_restoring("tools/list", {"cursor": cursor})

    def _send_own(
        self,
        own: Own,
        method: str,
        params: JSON,
        *,
        ticket: int = 0,
        delay: Delay = NO_DELAY,
        like: MessageSubmitted | None = None,
    ) -> Call:
        """`like`: a request of the host's without a session, in whose name this one goes out, too."""
        call = Call(
            wire_id=self.ledger.new_wire_id(),
            host_id=None,
            method=method,
            tool=None,
            params=params,
            call_key="",
            may_have_side_effects=False,
            incarnation=self.session.incarnation,
            stateless=like is not None,
            sent=None if like is None else dressed(method, params, like, None),
            own=own,
            ticket=ticket,
        )
        self._post(call, delay)
        return call


def tools_of(result: JSON) -> dict[str, JSON]:
    """The tools in an answer to `tools/list`, by name."""
    tools = result.get("tools")
    named = tools if isinstance(tools, list) else []
    return {t["name"]: t for t in named if isinstance(t, dict) and isinstance(t.get("name"), str)}


def _said(call: Call) -> str:
    return f"{call.method} {call.params['uri']}" if "uri" in call.params else call.method
