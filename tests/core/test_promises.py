"""The promises of DESIGN §8, against every server that the model can be; and for each a bug that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mcp_client_guard.core import calls, ledger, streams, trail, trial
from mcp_client_guard.core.actions import Get, Save
from mcp_client_guard.core.event_id import IdScheme, follows
from mcp_client_guard.core.inputs import ConnectionLost
from mcp_client_guard.core.model import CursorMoved
from mcp_client_guard.core.trail import Placement
from mcp_client_guard.core.trial import PROVEN, Judged
from tests.core.model_server import STEPS, TRIMS, Step, Variant, World

pytestmark = pytest.mark.no_cover  # the tables cover every branch; tracing would double the time

# The common steps are named more often: a script of cuts alone shows nothing.
_NAMES = [*STEPS, "emit", "emit", "serve", "serve", "serve", "deliver", "deliver", "deliver", "cut"]
_OPENING: list[Step] = [("call", 0, 0), ("serve", 0, 0), ("emit", 0, 1), ("deliver", 0, 5)]


def _script(drawn: bytes, names: list[str] = _NAMES) -> list[Step]:
    """Two bytes a step: cheap to draw, and to shrink."""
    pairs = zip(drawn[::2], drawn[1::2], strict=False)
    return _OPENING + [(names[a % len(names)], b % 3, b // 3 % 6) for a, b in pairs]


SCRIPTS = st.binary(min_size=40, max_size=120).map(_script)
TRIMMING = st.binary(min_size=40, max_size=120).map(lambda drawn: _script(drawn, [*_NAMES, TRIMS, TRIMS]))
_ANY: dict[str, Any] = {
    "ids": st.sampled_from(["opaque", "shared", "prefixed"]),
    "primes": st.booleans(),
    "indexed": st.booleans(),
    "primes_again": st.sampled_from(["never", "before", "after"]),
    "inclusive": st.booleans(),
}
HONEST = st.builds(Variant, replays_all=st.booleans(), drops=st.booleans(), **_ANY)
SMALL = st.builds(Variant, trail_size=st.just(4), **_ANY)
DISHONEST = st.builds(
    Variant,
    fault=st.sampled_from(["reset", "trim", "fork", "empty"]),
    unknown=st.sampled_from(["live", "start", "refuse", "end"]),
    **_ANY,
)
SHORT = st.builds(Variant, is_short=st.just(True), unknown=st.sampled_from(["refuse", "end"]), **_ANY)

COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


def run(variant: Variant, script: list[Step]) -> None:
    World(variant).run(script)


@settings(max_examples=300, **COMMON)
@given(HONEST | SMALL, SCRIPTS)
def test_an_honest_server_is_never_doubted_and_nothing_of_it_is_lost_repeated_or_misplaced(
    variant: Variant, script: list[Step]
) -> None:
    """S1, S3, S4, S5, S6, S8, S9, S11, S12, S13, S15, L2 and L8."""
    run(variant, script)


@settings(max_examples=300, **COMMON)
@given(SHORT, TRIMMING)
def test_nor_is_one_whose_log_keeps_what_follows_the_cursor_and_no_more(
    variant: Variant, script: list[Step]
) -> None:
    run(variant, script)


@settings(max_examples=300, **COMMON)
@given(DISHONEST, SCRIPTS)
def test_a_dishonest_server_loses_nothing_in_silence(variant: Variant, script: list[Step]) -> None:
    """S4, and the rest but S5."""
    run(variant, script)


# Each promise can be broken: a bug for each, which the properties must find.


def _search(variants: st.SearchStrategy[Variant]) -> None:
    """The same property, without shrinking and the same each time."""
    many = settings(
        max_examples=1500, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False, **COMMON
    )
    many(given(variants, SCRIPTS)(run))()


def _patched(owner: Any, name: str, bug: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A patch that gets the original to build on."""
    return lambda patch: patch.setattr(owner, name, bug(getattr(owner, name)))


def _no_duplicates(place: Any) -> Any:
    def bug(self: Any, *args: Any) -> Placement:
        placement: Placement = place(self, *args)
        return Placement.UNKNOWN if placement is Placement.DUPLICATE else placement

    return bug


def _newest_first(deliver: Any) -> Any:
    kept: list[Any] = []

    def bug(self: Any, stream: Any, message: Any, *answered: Any) -> None:
        if stream is not None and "method" in message and not kept:
            kept.append((self, stream, message))
            return
        deliver(self, stream, message, *answered)
        while kept:
            deliver(*kept.pop())

    return bug


def _learned_is_declared(place: Any) -> Any:
    def bug(self: Any, event_id: str | None, *rest: Any) -> Any:
        before = self.event_ids()
        is_new = event_id is not None and event_id not in self.index
        if is_new and before and not follows(IdScheme.CONTIGUOUS, before[-1], event_id):
            return Placement.GAP
        return place(self, event_id, *rest)

    return bug


def _anything_proves(weigh: Any) -> Any:
    def bug(self: Any, event: Any, carried: bool) -> Any:
        return Judged(PROVEN, fits=True) if carried else weigh(self, event, carried)

    return bug


def _received_is_drained(self: Any, count: int) -> None:
    """A store that takes the received position."""
    for stream in self._streams.values():
        stream.position.undrained = 0
        rows = stream.trail.stored_rows(stream.trail.newest_number)
        if rows and stream.call is not None:
            self.out.append(Save((CursorMoved(1, stream.name, rows),)))


def _every_answer_is_the_newest_call_s(owing: Any) -> Any:
    return lambda self, wire_id: next(reversed(self._calls.values()), None) or owing(self, wire_id)


def _answered_twice(settle: Any) -> Any:
    def bug(self: Any, call: Any, message: Any, stream: Any = None) -> None:
        if call.in_flight:
            self.streams.deliver(None, {**message, "id": call.host_id})
        settle(self, call, message, stream)

    return bug


def _row_after_post(send: Any) -> Any:
    def bug(self: Any, sent: Any) -> None:
        send(self, sent)
        self.out.reverse()

    return bug


def _posts_again(cut: Any) -> Any:
    def bug(self: Any, stream: Any, why: str, at: float, *, clean: bool, **rest: Any) -> None:
        if stream.connection.resumed or stream.trail.cursor is not None:
            cut(self, stream, why, at, clean=clean, **rest)
        else:
            where = (stream.number, stream.connection.number)
            self._not_written(stream, ConnectionLost(*where, at, written=False, clean=clean, why=why))

    return bug


def _any_connection(self: Any, number: int, connection: int) -> Any:
    return self._streams.get(number)


def _wrong_cursor(get: Any) -> Any:
    def bug(self: Any, stream: Any, delay: Any) -> None:
        get(self, stream, delay)
        others = [s.trail.cursor for s in self._streams.values() if s is not stream and s.trail.cursor]
        if others and isinstance(self.out[-1], Get):
            order = self.out.pop()
            headers = {**order.headers, "last-event-id": others[0]}
            self.out.append(Get(order.stream, order.connection, headers, delay))

    return bug


def _no_witness_timer(begin: Any) -> Any:
    def bug(self: Any, stream: Any, told: Any) -> None:
        begin(self, stream, told)
        self.out.pop()

    return bug


def _unbounded(self: Any, row: Any) -> None:
    return None


BUGS: list[tuple[str, st.SearchStrategy[Variant], Callable[[pytest.MonkeyPatch], None]]] = [
    ("S1", HONEST, _patched(trail.Trail, "place", _no_duplicates)),
    ("S3", HONEST, _patched(streams.Streams, "deliver", _newest_first)),
    ("S4", DISHONEST, _patched(trial.Trial, "weigh", _anything_proves)),
    ("S5", HONEST, _patched(trail.Trail, "place", _learned_is_declared)),
    ("S6", HONEST, _patched(streams.Streams, "drained", lambda drained: _received_is_drained)),
    ("S8", HONEST, _patched(ledger.Ledger, "owing", _every_answer_is_the_newest_call_s)),
    ("S9", HONEST, _patched(calls.Calls, "settle_answer", _answered_twice)),
    ("S11", HONEST, _patched(streams.Streams, "_cut", _posts_again)),
    ("S12", HONEST, _patched(calls.Calls, "_send", _row_after_post)),
    ("S13", HONEST, _patched(streams.Streams, "current", lambda current: _any_connection)),
    ("S13", HONEST, _patched(streams.Streams, "_get", _wrong_cursor)),
    ("S15", SMALL, _patched(trail.Trail, "_unindex", lambda unindex: _unbounded)),
    ("L2", HONEST, _patched(streams.Streams, "_arm_recheck", lambda arm: lambda self, stream: None)),
    ("L8", HONEST, _patched(streams.Streams, "_begin_trial", _no_witness_timer)),
]


@pytest.mark.parametrize(("promise", "variants", "bug"), BUGS, ids=[b[0] for b in BUGS])
def test_a_bug_that_breaks_a_promise_is_found(
    promise: str,
    variants: st.SearchStrategy[Variant],
    bug: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError, match=promise):
        _search(variants)
