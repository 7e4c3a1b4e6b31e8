"""The machine: an input goes in, a list of actions comes out. The only class that composes the others.

It has two halves, each a tower of layers: a layer inherits from the one below it and adds one subject, in a module
of its own. From the top:

    Hooking      what the `reconcile` hook asks            Reconnecting what the user has us open anew
    Crowding     requests that wait for a connection       Beside       posts that are over before their answer
    Calls        what the host sends                       Carrying     a legacy session, and its one GET stream
    Queueing     requests that wait to be sent             Aside        the standalone stream makes room for that
    Choosing     which generation is used                  Barred       what the host's client cannot ask for
    Taking       whose a message of the server's is        Streams      what the shell tells of a stream
    TakeOver     what a process that died has left         Awaiting     an answer that may come on another stream
    HeirTasks    what became of its tasks                  Disowning    answers that name another session
    OwnRequests  who is told of our own answers            Upgrading    to a socket, and back
    Moves        a server that changes its generation      Notes        posts that have no answer
    Recovery     a session is lost, and opened again       Closing      one last look before an answer
    Suspecting   is it lost: what a ping says              Trials       is a resume proven
    Detecting    streamable HTTP, or legacy HTTP+SSE       Placing      where an event belongs
    Restoring    a new session brought to where we were    Registry     every stream, and what of it is stored
    Listening    subscriptions of 2026-07-28
    Reconciling  calls without stream or session
    Repeats      is this call another one come again
    Outcomes     how a request goes out; its one outcome

`Calls` decides about requests and the session, `Streams` about continuity. Each knows the other by one field,
`Outcomes.streams` and `Registry.calls`.
"""

from __future__ import annotations

from attrs import define, field

from .actions import Action, EndSession, Report, Save, SetTimer
from .clock import Clock
from .heritage import Heritage
from .hooking import Hooking
from .inputs import (
    Answered,
    Begun,
    BodyReceived,
    CloseRequested,
    ConnectionFreed,
    ConnectionLost,
    Drained,
    EventReceived,
    Forwarded,
    HookRequested,
    HookWithdrew,
    IdleElapsed,
    Input,
    MessageSubmitted,
    Reconciled,
    ReconnectRequested,
    Refused,
    SaveFailed,
    TimerElapsed,
    TooLarge,
    UpgradeAnswered,
)
from .ledger import Ledger
from .model import Generation, SessionEnded, assert_never
from .policy import GuardPolicy
from .reconnecting import Reconnecting
from .report import StoreFailed
from .room import Room
from .session import Session
from .shared import SharedLedger
from .state import SessionState
from .stream import STANDALONE
from .timer import TimerKind

_RECONNECT_SECONDS = 1.0
"""Within which the user's word that the connections are worth nothing is the same word: an event may draw it that
is itself its effect."""
_PAUSED_SECONDS = 1.0
"""After which a timer is looked at again that ran out while what it measures stood still."""
_JUST_NOW = 1.0
"""Within which the last byte of an event has come that is still on its way."""
_CLOSED = SessionState.CLOSED  # on Python 3.11 too slow to look up for every event


@define(eq=False, repr=False)
class Machine:
    """Decides everything about one connection of the host's.

    `first_wire_id`: where this connection's request IDs start; no other connection may use them in the same
    session. `salt` keys the fingerprints shown to people.
    """

    policy: GuardPolicy = field(factory=GuardPolicy)
    first_wire_id: int = 1
    salt: str = field(default="", repr=False)
    generation: str = "host"
    """Who chooses it: `auto`, `sessions` or `host`; see `Choosing`. Or `legacy-sse`, chosen."""
    max_calls: int | None = None
    """Requests of the host's at once, where its client has a limit."""
    spare: int = 0
    """What that leaves for notifications and subscriptions."""
    opens_standalone: bool = True
    """Not where the host's client has too few connections to spare one."""
    ends_session: bool = True
    """Send `DELETE` on closing (SPEC-FACTS §2); never where the session shall outlive the process."""
    shared: SharedLedger = field(factory=SharedLedger)
    """One for all connections under a key."""
    name: int = 0
    """Tells this connection from the others under its key."""
    upgrades: bool = False
    """Ask the server to go on over a socket (DESIGN §6, WebSocket upgrade)."""
    has_hook: bool = False
    """The user has a `reconcile` hook."""
    heritage: Heritage | None = None
    """What a process that died has left."""
    room: Room | None = field(default=None, init=False)
    """Where the host's client has a limit."""
    session: Session = field(init=False)
    _may_reconnect_at: float = field(default=float("-inf"), init=False)
    _clock: Clock = field(factory=Clock, init=False)
    _out: list[Action] = field(factory=list, init=False)
    _calls: Hooking = field(init=False)
    _streams: Reconnecting = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.session = Session(salt=self.salt)
        if self.generation == Generation.LEGACY_SSE.value:
            self.session.generation = Generation.LEGACY_SSE
        if self.max_calls is not None:
            self.room = Room(self.max_calls, self.spare, self._out)
        self._calls = Hooking(
            policy=self.policy,
            session=self.session,
            ledger=Ledger(self.first_wire_id),
            out=self._out,
            shared=self.shared,
            clock=self._clock,
            machine=self.name,
            has_hook=self.has_hook,
            opens_standalone=self.opens_standalone,
            heritage=self.heritage,
            generation=self.generation,
            room=self.room,
        )
        self._streams = Reconnecting(self.policy, self.session, self._out, upgrades=self.upgrades, room=self.room)
        self._calls.streams = self._streams
        self._streams.calls = self._calls

    @property
    def queued(self) -> int:
        """Requests of the host's that are taken and not ordered yet."""
        return self._calls.queued

    @property
    def heirs_open(self) -> int:
        """Calls of the process that died that have no outcome yet."""
        return self._calls.heirs_open

    @property
    def heirs_awaited(self) -> int:
        """Calls of the process that died that have no outcome yet, without the tasks that their callers have."""
        return self._calls.heirs_awaited

    @property
    def notes_are_leaving(self) -> bool:
        """Whether notifications or answers of the host's have not reached the server yet."""
        return self._streams.are_leaving

    def receive(self, *told: Input, now: float | None = None) -> list[Action]:
        """What to do now, in this order. Several inputs at once are as good as one after the other.

        `now`: seconds on a monotonic clock; without, no time has passed.
        """
        if now is not None:
            self._clock.now = now
        for one in told:
            self._decide(one)
            if self.room is not None:  # before the next, which must not overtake what waits
                self._streams.post_waiting()
                self._calls.let_in(self.room)
        if self.room is not None:
            self.room.handed_over()
        actions = self._out[:]
        self._out.clear()
        return actions

    def _decide(self, told: Input) -> None:
        if self.session.state is _CLOSED and not isinstance(told, Drained):
            return
        match told:
            case EventReceived():
                self._streams.event(told)
            case Drained():
                self._streams.drained(told.count)
            case MessageSubmitted():
                self._calls.submit(told)
            case Begun():
                self._streams.begun(told)
            case ConnectionFreed():
                self._freed(told.connection)
            case Answered():
                self._streams.answered(told)
            case BodyReceived():
                self._streams.body(told)
            case ConnectionLost():
                self._streams.lost(told)
            case TimerElapsed():
                self._timer(told)
            case Refused():
                self._streams.refused(told)
            case SaveFailed():
                self._save_failed(told)
            case TooLarge():
                self._streams.too_large(told)
            case IdleElapsed():
                self._streams.idle(told)
            case UpgradeAnswered():
                self._streams.upgrade_answered(told)
            case CloseRequested():
                self._close()
            case ReconnectRequested():
                self._reconnect(told.at)
            case Reconciled():
                self._calls.reconciled(told)
            case HookRequested():
                self._calls.hook_requested(told)
            case HookWithdrew():
                self._calls.hook_withdrew(told.ticket)
            case Forwarded():
                self._calls.forwarded(told)
            case _:  # pragma: no cover
                assert_never(told)

    def _timer(self, told: TimerElapsed) -> None:
        timer, at = told.timer, told.at
        kind = timer.kind
        if self._stood_still(told):
            self._out.append(SetTimer(timer, _PAUSED_SECONDS))
            return
        match kind:
            case TimerKind.DEADLINE:
                self._calls.deadline(timer.stream)
            case TimerKind.ANSWER:
                self._streams.answer_overdue(timer.stream)
            case TimerKind.QUESTION:
                self._streams.question_overdue(timer.stream)
            case TimerKind.CONFIRM:
                self._calls.confirmed(timer.stream)
            case TimerKind.TURN:
                self._streams.turn_over(timer.stream)
            case TimerKind.REFRESH:
                self._refresh(timer.stream, at)
            case TimerKind.UPGRADE:
                self._streams.upgrade_due()
            case TimerKind.BUDGET:
                self._calls.budget_refilled()
            case TimerKind.REOPEN:
                self._calls.reopening_due()
            case TimerKind.RESTORE:
                self._calls.restored()
            case TimerKind.ASK:
                self._calls.asked_too_long(timer.stream)
            case TimerKind.PACE:
                self._calls.ask_task(timer.stream)
            case (
                TimerKind.WITNESS | TimerKind.RECHECK | TimerKind.CLOSING | TimerKind.UNWANTED | TimerKind.ENDPOINT
            ):
                self._streams.timer(timer, at)
            case _:  # pragma: no cover
                assert_never(kind)

    def _stood_still(self, told: TimerElapsed) -> bool:
        """Whether that time does not count: the host is behind, or what is waited for is just coming."""
        kind = told.timer.kind
        if kind is TimerKind.DEADLINE:  # L2, whatever the host does
            return False
        if kind is not TimerKind.ANSWER:
            return told.timer.stream in told.unread
        # An answer may come on any stream; of those that have begun to bring one, the standalone stream alone may.
        came_at = told.amid.get(STANDALONE)
        return bool(told.unread) or (came_at is not None and told.at - came_at < _JUST_NOW)

    def _refresh(self, number: int, at: float) -> None:
        if number == STANDALONE:
            self._streams.refresh_due(at)
        else:
            self._calls.refresh_listener(number)

    def _freed(self, connection: int) -> None:
        if self.room is not None:
            self.room.freed(connection)

    def _reconnect(self, at: float) -> None:
        if at >= self._may_reconnect_at:
            self._may_reconnect_at = at + _RECONNECT_SECONDS
            self._calls.reconnect()
            self._streams.reconnect(at)

    def _save_failed(self, told: SaveFailed) -> None:
        self._out.append(Report(StoreFailed(told.why)))
        self._calls.not_saved(told.stream, told.why)

    def _close(self) -> None:
        session = self.session
        usable = not self._calls.is_lost and session.state is not SessionState.PROVING
        headers = session.headers("")
        self._calls.close()
        self._streams.close()
        if not usable:
            return
        is_legacy = session.generation is Generation.LEGACY_SSE  # has ended with its stream
        is_ended = self.ends_session and session.session_id is not None and not is_legacy
        if is_ended or (is_legacy and session.incarnation):
            self._out.append(Save((SessionEnded(session.incarnation, "the host closed the connection"),)))
        if is_ended:
            self._out.append(EndSession(headers))
