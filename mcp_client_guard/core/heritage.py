"""What a process that died has left in the store, and what becomes of it (DESIGN §7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from attrs import field, frozen

from .model import JSON, CallSettled, Generation, Outcome, Seen, ServerAnswered, SessionEnded, TaskEnded, Told
from .stored import StoredCall, StoredSession
from .tasks import Task
from .wire_ids import EarlierIds

PROCESS_DIED = "its process died"


@frozen
class Heir:
    """A call of the dead process that has no outcome, or whose task has none."""

    incarnation: int
    wire_id: int
    method: str
    tool: str | None
    call_key: str
    named: bool
    digest: bytes = field(repr=False)
    may_have_side_effects: bool
    slot: int
    task: Task | None = None
    is_known: bool = False
    """Its caller lives, and has the task, or was a hook: an equal call is another one."""
    is_hook_s: bool = False
    repeats: int = 0
    """Earlier sendings of it that may have run."""


@frozen
class OldSession:
    """The session of the dead process, a suspect until the server has answered under it."""

    session_id: str | None = field(repr=False)
    initialize_params: JSON = field(repr=False)
    initialize_result: JSON = field(repr=False)
    cursors: Mapping[str, tuple[Seen, ...]] = field(repr=False)
    answers: tuple[ServerAnswered, ...] = field(repr=False)
    was_used: bool
    """A request was sent under it, so the server had taken `notifications/initialized`."""
    passed: Mapping[str, int] = field(factory=dict)
    """By stream, how many events after its cursor were drained."""


@frozen
class Heritage:
    """What the store holds of the slot that is gone on with; and of every other the open tasks, and what the
    user's hook is asked about."""

    slot: int
    incarnation: int
    """The last one of that slot."""
    session: OldSession | None
    """None: nothing to offer (it has ended, or had no ID to prove it by)."""
    heirs: tuple[Heir, ...]
    earlier: EarlierIds | None = None
    """Those of the connections that have used the session before the one that goes on with it."""


def heritage_of(
    sessions: Iterable[StoredSession],
    calls: Collection[StoredCall],
    origin: str,
    principal: str | None,
    here: Collection[int] = (),
    *,
    has_hook: bool = False,
) -> Heritage | None:
    """What a new connection goes on with; None if it starts afresh.

    Its slot is the one used last among those that have a session to offer, and open calls if any has; if there
    are none, among those with open calls. Nothing of another origin or principal is used. `sessions` and
    `calls` are those of one connection key. `here`: the wire IDs of those that this very process has sent, on a
    connection that is closed now. `has_hook`: the user's `reconcile` hook is asked about tool calls; it needs the
    session of none.
    """
    newest: dict[int, StoredSession] = {}
    for session in sessions:
        before = newest.get(session.slot)
        if before is None or session.incarnation > before.incarnation:
            newest[session.slot] = session
    resent = Counter(call.call_key for call in calls if call.outcome is Outcome.RESENT)
    heirs: dict[int, list[Heir]] = {}
    others: list[Heir] = []
    for call in calls:
        if is_open(call):
            heir = _heir(call, call.wire_id in here, resent)
            heirs.setdefault(call.slot, []).append(heir)
            is_asked = heir.task is not None or (has_hook and _is_asked_about(call))
            if is_asked and (call.origin, call.principal) == (origin, principal):
                others.append(heir)
    ours = [s for s in newest.values() if s.origin == origin and s.principal == principal]
    chosen = max(
        (s for s in ours if _is_offered(s) or s.slot in heirs),
        key=lambda s: (_is_offered(s), s.slot in heirs, s.last_used_at, s.slot),
        default=None,
    )
    last = chosen or _newest_alone(calls, origin, principal, has_hook)
    if last is None:
        return None
    old = _old_session(chosen, calls) if chosen is not None and _is_offered(chosen) else None
    others = [heir for heir in others if heir.slot != last.slot]
    return Heritage(last.slot, last.incarnation, old, (*heirs.get(last.slot, ()), *others))


def _newest_alone(
    calls: Iterable[StoredCall], origin: str, principal: str | None, has_hook: bool
) -> StoredCall | None:
    """Of slots without any session (2026-07-28) tasks are gone on with, since the extension's outlive all, and
    what the hook is asked about."""
    ours = [c for c in calls if (c.origin, c.principal) == (origin, principal)]
    asked = [c for c in ours if has_hook and _is_asked_about(c) and is_open(c)]
    tasks = [c for c in ours if c.task_open and c.task_is_extension]
    return max([*asked, *tasks], key=lambda c: (c.sent_at, c.slot), default=None)


def settle_others(
    calls: Iterable[StoredCall], heritage: Heritage | None, origin: str, principal: str | None, oldest: float
) -> list[tuple[int, CallSettled | TaskEnded]]:
    """Outcomes, by slot, for the open calls outside the heritage.

    Those of another principal are left to whoever comes back for them, unless sent before `oldest`.
    """
    settled: list[tuple[int, CallSettled | TaskEnded]] = []
    heirs = {(h.slot, h.incarnation, h.wire_id) for h in heritage.heirs} if heritage is not None else set()
    for call in calls:
        if not is_open(call) or (call.slot, call.incarnation, call.wire_id) in heirs:
            continue
        # A task of another endpoint is in doubt here, and still to be had there.
        is_elsewhere = call.task_open and call.origin not in (None, origin) and call.sent_at >= oldest
        foreign = call.origin is not None and call.principal != principal and call.sent_at >= oldest
        if foreign or (is_elsewhere and call.outcome is Outcome.IN_DOUBT):
            continue
        told = Told.CALLER if call.is_hook_s else Told.NOBODY
        row = CallSettled(call.incarnation, call.wire_id, Outcome.IN_DOUBT, PROCESS_DIED, told=told)
        settled.append((call.slot, row))
        if call.task_open and not is_elsewhere:
            settled.append((call.slot, TaskEnded(call.incarnation, call.wire_id)))
    return settled


def end_others(
    sessions: Iterable[StoredSession], heritage: Heritage | None, origin: str, principal: str | None, oldest: float
) -> list[tuple[int, SessionEnded]]:
    """Ends, by slot, for the sessions that nobody will be offered again: of this origin and principal those
    outside the heritage, of others those that were last used before `oldest`."""
    return [
        (session.slot, SessionEnded(session.incarnation, "another session was gone on with"))
        for session in sessions
        if session.ended_at is None
        and ((session.origin, session.principal) == (origin, principal) or session.last_used_at < oldest)
        and (heritage is None or (session.slot, session.incarnation) != (heritage.slot, heritage.incarnation))
    ]


def is_open(call: StoredCall) -> bool:
    """Whether the process died before it knew what became of this call, or of its task."""
    return call.outcome is None or call.task_open


def _is_asked_about(call: StoredCall) -> bool:
    """Whether the hook is asked about this call; not about what it has asked itself."""
    return call.method == "tools/call" and not call.is_hook_s


def _is_offered(session: StoredSession) -> bool:
    """Whether the server may be offered this session. Without an ID there is nothing that an answer could prove,
    and opening another takes no longer; a legacy session has ended with its stream."""
    alive = session.ended_at is None and session.generation is not Generation.LEGACY_SSE
    return alive and session.session_id is not None


def _heir(call: StoredCall, is_here: bool, resent: Mapping[str, int]) -> Heir:
    task = Task(call.task_id, call.task_is_extension) if call.task_open and call.task_id is not None else None
    return Heir(
        incarnation=call.incarnation,
        wire_id=call.wire_id,
        method=call.method,
        tool=call.tool,
        call_key=call.call_key,
        named=call.named,
        digest=call.arguments_digest,
        may_have_side_effects=call.may_have_side_effects,
        slot=call.slot,
        task=task,
        is_known=call.is_hook_s or (is_here and call.outcome is Outcome.COMPLETED and call.told is Told.CALLER),
        is_hook_s=call.is_hook_s,
        repeats=resent[call.call_key],
    )


def _old_session(session: StoredSession, calls: Iterable[StoredCall]) -> OldSession:
    used = any(
        (call.slot, call.incarnation) == (session.slot, session.incarnation) and call.method != "ping"
        for call in calls
    )
    return OldSession(
        session.session_id,
        session.initialize_params,
        session.initialize_result,
        session.cursors,
        session.answers,
        used,
        session.passed,
    )
