"""What a user says of calls in doubt: the hook, consent, names; and what the next process is told of them."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve

from mcp_client_guard import (
    Fail,
    Guard,
    GuardPolicy,
    InDoubtCall,
    MemoryStore,
    Outcome,
    Reconciler,
    RepeatRefused,
    RequestFailed,
    Resend,
    Resolve,
    SQLiteStore,
    _ownership,
)
from mcp_client_guard._connection import Connection
from mcp_client_guard._messages import plain_codec
from mcp_client_guard.core.model import Told
from mcp_client_guard.testing import FakeServer, How, Reply, Request, ScriptedMcp, error, tool_result

from .hosts import LIMIT, Answer, PlainHost, plain_answer, run_together

pytestmark = pytest.mark.anyio


class Cutting(ScriptedMcp):
    """`charge` runs and its connection is reset, as often as told; then it answers. Other tools answer."""

    def __init__(self, cuts: int = 1, **parts: Any) -> None:
        super().__init__(tools=("charge", "find_charge"), **parts)
        self.cuts = cuts
        self.ran: list[Any] = []

    async def call(self, request: Request, reply: Reply) -> None:
        if request.json["params"]["name"] != "charge":
            await super().call(request, reply)
            return
        self.ran.append(request.json["params"]["_meta"]["io.github.mcp-client-guard/call-key"])
        if self.cuts:
            self.cuts -= 1
            await reply.play(How.RST)
        else:
            await reply.json(tool_result(request.rpc_id, f"charged {len(self.ran)}"))


@asynccontextmanager
async def connected(guard: Guard) -> AsyncIterator[PlainHost]:
    host = PlainHost()
    async with Connection(guard, plain_codec) as (host.read, host.write), anyio.create_task_group() as tasks:
        tasks.start_soon(host.listen)
        await host.start()
        yield host
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def served(mcp: ScriptedMcp, **options: Any) -> AsyncIterator[tuple[Guard, PlainHost]]:
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            guard = Guard(server.url, **options)
            async with connected(guard) as host:
                yield guard, host


# --- the hook ---------------------------------------------------------------------------------------


async def test_the_hook_asks_the_server_and_its_result_is_the_answer() -> None:
    seen: list[InDoubtCall] = []

    async def look(call: InDoubtCall, server: Reconciler) -> Resolve:
        seen.append(call)
        return Resolve(await server.call_tool("find_charge", {"reference": call.call_key}))

    mcp = Cutting()
    async with served(mcp, reconcile=look) as (guard, host):
        assert await host.call(cents=5) == Answer("find_charge")
        row = (await guard.calls())[-2]
    assert len(mcp.ran) == 1
    assert (seen[0].tool, seen[0].arguments, seen[0].call_key) == ("charge", {"cents": 5}, mcp.ran[0])
    assert (row.tool, row.call_key) == ("charge", mcp.ran[0])


async def test_the_hook_may_have_it_sent_again_under_the_same_call_key() -> None:
    async def again(call: InDoubtCall, server: Reconciler) -> Resend:
        return Resend()

    mcp = Cutting()
    async with served(mcp, reconcile=again) as (_, host):
        assert await host.call() == Answer("charged 2")
    assert mcp.ran[0] == mcp.ran[1]


class LateAnswer(Cutting):
    """The answer to the first sending comes on the standalone stream, while the second is being sent."""

    async def standalone(self, request: Request, reply: Reply) -> None:
        self.get = reply
        await reply.open_sse()
        await anyio.sleep_forever()

    async def call(self, request: Request, reply: Reply) -> None:
        if len(self.ran) == 1:
            await self.get.event(tool_result(self.first, "receipt 1"))
            await anyio.sleep_forever()
        self.first = request.rpc_id
        await super().call(request, reply)


async def test_the_answer_to_an_earlier_sending_is_the_answer_and_nothing_is_sent_a_third_time() -> None:
    async def again(call: InDoubtCall, server: Reconciler) -> Resend:
        return Resend()

    mcp = LateAnswer()
    async with served(mcp, reconcile=again) as (guard, host):
        assert await host.call() == Answer("receipt 1")
    rows = [call.outcome for call in await guard.calls() if call.tool == "charge"]
    assert rows == [Outcome.RESENT, Outcome.COMPLETED]
    assert len(mcp.ran) == 1


async def test_a_question_of_the_hook_s_whose_answer_is_lost_raises_and_says_nothing_of_the_call() -> None:
    """It is no result with `isError`, which a hook might take for the word of the tool it has called."""
    raised: list[RequestFailed] = []

    async def ask(call: InDoubtCall, server: Reconciler) -> Resend | Fail:
        try:
            await server.call_tool("charge", {"find": call.call_key})
        except RequestFailed as failed:
            raised.append(failed)
            return Fail("ask the bank")
        return Resend()

    mcp = Cutting(cuts=2)
    async with served(mcp, reconcile=ask) as (_, host):
        assert (await host.call()).text == "ask the bank"
    assert len(raised) == 1
    assert len(mcp.ran) == 2, "the call, and the question"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda failed: pickle.loads(pickle.dumps(failed))])
def test_what_a_question_draws_can_be_copied_and_pickled(again: Callable[[RequestFailed], RequestFailed]) -> None:
    """Pools of processes hand errors over so."""
    failed = RequestFailed(-32000, "no such charge", {"a": 1})
    failed.asked_by = "a worker"  # type: ignore[attr-defined]
    assert str(again(failed)) == "no such charge (JSON-RPC error -32000)"
    assert vars(again(failed)) == vars(failed)


async def test_the_hook_s_own_words_reach_the_caller_and_the_call_stays_in_doubt() -> None:
    async def sorry(call: InDoubtCall, server: Reconciler) -> Fail:
        return Fail("ask the bank")

    async with served(Cutting(), reconcile=sorry) as (_, host):
        answer = await host.call()
    assert (answer.text, answer.is_error) == ("ask the bank", True)
    assert answer.doubt is not None


@pytest.mark.parametrize("host_lists", [True, False])
@pytest.mark.parametrize("listing", ["answered", "refused"])
async def test_a_result_that_an_sdk_would_raise_for_is_not_given_to_it(host_lists: bool, listing: str) -> None:
    class Typed(Cutting):
        async def other(self, request: Request, reply: Reply) -> None:
            if request.rpc_method == "tools/list" and listing == "refused":
                await reply.status(403)
            else:
                await super().other(request, reply)

    async def known(call: InDoubtCall, server: Reconciler) -> Resolve:
        return Resolve(tool_result(1, "charged 1")["result"])

    mcp = Typed()
    mcp.tools = [{"name": "charge", "inputSchema": {}, "outputSchema": {"type": "object", "required": ["result"]}}]
    async with served(mcp, reconcile=known) as (_, host):
        if host_lists:
            await host.request("tools/list")
        answer = await host.call()
    assert (answer.doubt is not None) is (listing == "answered")
    assert len(mcp.ran) == 1


async def no_opinion(call: InDoubtCall, server: Reconciler) -> None:
    return None


async def raises(call: InDoubtCall, server: Reconciler) -> None:
    raise LookupError("secret")


async def raises_what_the_server_says(call: InDoubtCall, server: Reconciler) -> None:
    await server.request("no/such/method")


async def never_answers(call: InDoubtCall, server: Reconciler) -> None:
    await anyio.sleep_forever()


async def says_nonsense(call: InDoubtCall, server: Reconciler) -> Any:
    return "a secret"


async def knows_no_result(call: InDoubtCall, server: Reconciler) -> Any:
    return Resolve({"structuredContent": {"secret": 1}})


async def has_no_words(call: InDoubtCall, server: Reconciler) -> Any:
    return Fail(17)  # type: ignore[arg-type]


async def knows_no_json(call: InDoubtCall, server: Reconciler) -> Any:
    return Resolve({"content": [], "structuredContent": {"at": object()}})


async def knows_no_number(call: InDoubtCall, server: Reconciler) -> Any:
    return Resolve({"content": [], "structuredContent": {"at": float("nan")}})


async def knows_no_object(call: InDoubtCall, server: Reconciler) -> Any:
    return Resolve("secret")


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (no_opinion, "connection was lost"),
        (raises, "LookupError"),
        (raises_what_the_server_says, RequestFailed.__name__),
        (never_answers, "did not answer in time"),
        (says_nonsense, "TypeError"),
        (knows_no_result, "TypeError"),
        (has_no_words, "TypeError"),
        (knows_no_json, "TypeError"),
        (knows_no_number, "ValueError"),
        (knows_no_object, "no object"),
    ],
)
async def test_a_hook_that_says_nothing_of_use_leaves_the_call_in_doubt(
    hook: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    mcp = Cutting()
    seconds = 0.05 if hook is never_answers else LIMIT
    async with served(mcp, reconcile=hook, policy=GuardPolicy(reconcile_timeout=seconds)) as (_, host):
        answer = await host.call()
    assert answer.doubt is not None
    assert why in answer.doubt.reason
    assert "secret" not in answer.text
    assert "secret" not in caplog.text or hook is raises, "what it returned is the user's own"
    assert len(mcp.ran) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_leaks_from_hook_or_callback_costs_nothing_else(anyio_backend: str) -> None:
    """asyncio raises CancelledError out of whatever awaits a future that somebody cancelled."""

    async def leaks(*_: Any) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    class Slow(Cutting):
        async def call(self, request: Request, reply: Reply) -> None:
            if request.json["params"]["name"] == "find_charge":
                await over.wait()
            await super().call(request, reply)

    over = anyio.Event()
    with anyio.fail_after(LIMIT):
        async with FakeServer(Slow()) as server:
            guard = Guard(server.url, reconcile=leaks, on_event=leaks)
            async with connected(guard) as host:
                other = await host.post("tools/call", {"name": "find_charge", "arguments": {}})
                answer = await host.call()
                assert answer.doubt is not None
                assert "CancelledError" in answer.doubt.reason
                over.set()
                assert "result" in (await host.until(lambda: host.answers_to(other)))[0]


async def test_a_reconciler_that_outlives_its_connection_raises() -> None:
    kept: list[Reconciler] = []
    told: list[int] = []

    async def keep(call: InDoubtCall, server: Reconciler) -> None:
        kept.append(server)

    class Deaf(Cutting):
        async def call(self, request: Request, reply: Reply) -> None:
            if request.json["params"]["name"] == "find_charge":
                asked.set()
                await anyio.sleep_forever()
            await super().call(request, reply)

    async def ask() -> None:
        with pytest.raises(RequestFailed, match="the connection is closed") as failed:
            await kept[0].call_tool("find_charge")
        told.append(failed.value.code)

    asked = anyio.Event()
    async with anyio.create_task_group() as tasks:
        async with served(Deaf(), reconcile=keep) as (_, host):
            await host.call()
            tasks.start_soon(ask)
            await asked.wait()
    await ask()
    assert told == [-31904, -31904]


async def test_leaving_while_the_hook_thinks_ends_it() -> None:
    ended = []

    async def thinks(call: InDoubtCall, server: Reconciler) -> None:
        try:
            asked.set()
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    asked = anyio.Event()
    async with served(Cutting(), reconcile=thinks) as (guard, host):
        await host.post("tools/call", {"name": "charge", "arguments": {}})
        await asked.wait()
    assert ended == [True]
    assert [c.outcome for c in await guard.calls()][-1] is Outcome.IN_DOUBT


# --- repeats and consent ----------------------------------------------------------------------------


async def test_a_repeat_is_refused_on_another_connection_until_the_user_consents() -> None:
    mcp = Cutting()
    async with served(mcp) as (guard, host):
        first = await host.call(cents=5)
        assert first.doubt is not None
        async with connected(guard) as other:
            again = await other.call(cents=5)
            assert again.doubt == first.doubt
            assert len(mcp.ran) == 1
            assert (await other.call(cents=6)).text == "charged 2"  # not the same call
            guard.consent(first.doubt.call_key)
            assert (await other.call(cents=5)).text == "charged 3"
        assert [c.repeats for c in await guard.calls() if c.call_key == first.doubt.call_key] == [1]


class Acknowledging(Cutting):
    """Answers a call that was cancelled as servers on SDK 1.x do. It has run all the same."""

    def __init__(self) -> None:
        super().__init__(cuts=0)
        self.arrived, self.cancelled, self.acknowledged = anyio.Event(), anyio.Event(), anyio.Event()

    async def call(self, request: Request, reply: Reply) -> None:
        self.ran.append(request.rpc_id)
        self.arrived.set()
        await self.cancelled.wait()
        await reply.json(error(request.rpc_id, 0, "Request cancelled"))
        self.acknowledged.set()

    async def notify(self, request: Request, reply: Reply) -> None:
        await super().notify(request, reply)
        if request.rpc_method == "notifications/cancelled":
            assert request.json["params"]["requestId"] == self.ran[0]
            self.cancelled.set()


@pytest.mark.parametrize("how", ["deadline", "cancel"])
async def test_a_call_whose_cancel_was_acknowledged_is_not_repeated_nor_by_the_next_process(
    how: str, tmp_path: Path
) -> None:
    mcp = Acknowledging()
    policy = GuardPolicy(call_deadline={"charge": 1.0 if how == "deadline" else 600.0})
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            async with connected(Guard(server.url, store=SQLiteStore(tmp_path / "a.db"), policy=policy)) as host:
                id = await host.post("tools/call", {"name": "charge", "arguments": {}})
                await mcp.arrived.wait()
                if how == "cancel":
                    await host.notify("notifications/cancelled", requestId=id)
                await mcp.acknowledged.wait()
                await host.request("ping")  # by its answer the acknowledgement has been read
                assert (await host.call()).doubt is not None
                assert (await host.call()).doubt is not None
            async with connected(Guard(server.url, store=SQLiteStore(tmp_path / "a.db"))) as host:
                assert (await host.call()).doubt is not None
                assert (await host.call()).doubt is not None
    assert len(mcp.ran) == 1


class Busy(Cutting):
    """While the first request with a call key is running, the second with it is refused."""

    async def call(self, request: Request, reply: Reply) -> None:
        await (reply.status(409) if self.ran else super().call(request, reply))


async def test_a_second_sending_that_is_refused_says_nothing_of_the_first() -> None:
    mcp = Busy()
    async with served(mcp, policy=GuardPolicy(honours_call_key=["charge"])) as (_, host):
        first = await host.call()
        assert first.doubt is not None
        assert first.doubt.reason == "it was answered with HTTP 409; an earlier sending of it was lost"
        assert (await host.call()).doubt == first.doubt


async def test_a_repeat_is_refused_in_the_next_process_and_a_consent_before_connecting_counts(
    tmp_path: Path,
) -> None:
    mcp, told = Cutting(), []
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            for _ in range(2):
                guard = Guard(server.url, store=SQLiteStore(tmp_path / "a.db"), on_event=told.append)
                async with connected(guard) as host:
                    answer = await host.call(cents=5)
                    assert answer.doubt is not None
            assert len(mcp.ran) == 1
            assert [e for e in told if isinstance(e, RepeatRefused)] == [RepeatRefused("charge", mcp.ran[0])]
            guard = Guard(server.url, store=SQLiteStore(tmp_path / "a.db"))
            guard.consent(mcp.ran[0])
            async with connected(guard) as host:
                assert (await host.call(cents=5)).text == "charged 2"


# --- names ------------------------------------------------------------------------------------------


async def test_a_named_call_is_sent_once_and_answered_from_the_store_in_the_next_process(tmp_path: Path) -> None:
    mcp = Cutting(cuts=0)
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            for _ in range(3):
                guard = Guard(server.url, store=SQLiteStore(tmp_path / "a.db"))
                async with connected(guard) as host:
                    with guard.call_key("order-17"):
                        assert (await host.call(cents=5)).text == "charged 1"
    assert mcp.ran == ["order-17"]
    kept = [c for c in await guard.calls() if c.named]
    assert [(c.call_key, c.repeats, c.answer is not None) for c in kept] == [("order-17", 2, True)]


def test_a_guard_knows_at_least_as_many_names_as_its_store_keeps_calls(tmp_path: Path) -> None:
    for store in (MemoryStore(keep_calls=50_000), SQLiteStore(tmp_path / "a.db", keep_calls=50_000)):
        assert Guard("http://x/mcp", store=store)._ownership.shared.keep_names > 50_000
    mine: Any = SimpleNamespace(claim=anyio.sleep, calls=anyio.sleep, sessions=anyio.sleep)
    assert Guard("http://x/mcp", store=mine)._ownership.shared.keep_names >= 100_000


async def test_nothing_of_another_principal_or_origin_is_used(tmp_path: Path) -> None:
    """Neither the answer to a call of the same name, nor a doubt about the same call."""
    one, other = Cutting(), Cutting(cuts=0)
    with anyio.fail_after(LIMIT):
        async with FakeServer(one) as server, FakeServer(other) as elsewhere:

            async def both(url: str, principal: str | None) -> list[str]:
                guard = Guard(url, store=SQLiteStore(tmp_path / "a.db"), principal=principal)
                async with connected(guard) as host:
                    doubted = await host.call(cents=1)
                    with guard.call_key("order-17"):
                        answered = await host.call(cents=5)
                return ["in doubt" if answer.doubt else answer.text for answer in (doubted, answered)]

            assert await both(server.url, "ann") == ["in doubt", "charged 2"]
            assert await both(server.url, "bob") == ["charged 3", "charged 4"]
            assert await both(server.url, None) == ["charged 5", "charged 6"]
            assert await both(elsewhere.url, "ann") == ["charged 1", "charged 2"]
            assert await both(server.url, "ann") == ["in doubt", "charged 2"]


async def test_a_name_in_meta_is_the_same_name_and_other_arguments_are_refused() -> None:
    mcp = Cutting(cuts=0)
    async with served(mcp) as (_, host):

        async def named(cents: int) -> Answer:
            meta = {"io.github.mcp-client-guard/call-key": "order-17"}
            params = {"name": "charge", "arguments": {"cents": cents}, "_meta": meta}
            return plain_answer(await host.request("tools/call", params))

        assert [(await named(5)).text, (await named(5)).text] == ["charged 1", "charged 1"]
        assert (await named(6)).code == -31905
    assert mcp.ran == ["order-17"]


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="not empty"), Guard("http://x/mcp").call_key(""):
        pass


# --- the next process -------------------------------------------------------------------------------


async def test_what_a_dead_process_left_is_accounted_for_and_its_session_gone_on_with(tmp_path: Path) -> None:
    """Death is played by a copy of the store, taken while the call is in flight."""
    arrived = anyio.Event()

    class Hanging(ScriptedMcp):
        async def call(self, request: Request, reply: Reply) -> None:
            arrived.set()
            await anyio.sleep_forever()

    living, dead = tmp_path / "living.db", tmp_path / "dead.db"
    with anyio.fail_after(LIMIT):
        async with FakeServer(Hanging()) as server:
            async with connected(Guard(server.url, store=SQLiteStore(living))) as host:
                await host.post("tools/call", {"name": "charge", "arguments": {}})
                await arrived.wait()
                copy(living, dead)
            guard = Guard(server.url, store=SQLiteStore(dead))
            async with connected(guard):
                (left,) = await guard.recovered()
            assert (left.tool, left.outcome) == ("charge", Outcome.IN_DOUBT)
            (again,) = await guard.recovered()
            assert evolve(again, settled_at=left.settled_at) == left, "dated from when it was told"
            assert [r.rpc_method for r in server.sent("POST", "initialize")] == ["initialize"]
            assert not server.sent("DELETE")


async def test_sessions_that_nobody_will_be_offered_again_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a host that connects for each call would leave a row for ever each time."""
    monkeypatch.setattr(_ownership, "_MOST_LEFT", 2)
    ids = (f"session-{number}" for number in range(99))

    async def fresh(request: Request, reply: Reply) -> None:
        await reply.json(mcp.initialized(request), session=next(ids))

    mcp = ScriptedMcp(initialize=fresh)

    async def still_open(guard: Guard) -> list[str | None]:
        return [s.session_id for s in await guard.store.sessions() if s.ended_at is None]

    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            guard = Guard(server.url, store=SQLiteStore(tmp_path / "a.db"))
            async with connected(guard) as host:
                await host.call()  # whose row takes the record of the session along to the disk
                for _ in range(5):
                    async with connected(guard):
                        pass
                assert sorted(await still_open(guard)) == ["session-0", "session-4", "session-5"]
            async with connected(guard):
                assert await still_open(guard) == ["session-5"]


async def test_a_host_that_leaves_with_its_last_answer_has_taken_it() -> None:
    """It never comes back to the read stream to say so; another call like it is another call."""
    answered = 0

    async def call(request: Request, reply: Reply) -> None:
        nonlocal answered
        answered += 1
        await reply.json(tool_result(request.rpc_id, f"charge {answered}"))

    async def charge(guard: Guard) -> str:
        async with Connection(guard, plain_codec) as (read, write):
            for number, method in enumerate(("initialize", "tools/call")):
                params = {"name": "charge", "arguments": {}, "protocolVersion": "2025-11-25", "capabilities": {}}
                await write.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
                answer = await read.receive()
            text: str = answer["result"]["content"][0]["text"]
            return text

    with anyio.fail_after(LIMIT):
        async with FakeServer(ScriptedMcp(call=call)) as server:
            guard = Guard(server.url)
            assert [await charge(guard), await charge(guard)] == ["charge 1", "charge 2"]


class Hanging(ScriptedMcp):
    """The first call hangs; its stream, resumed, has the answer once `answered` is set."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.arrived, self.answered = anyio.Event(), anyio.Event()

    async def call(self, request: Request, reply: Reply) -> None:
        self.called = request
        await reply.open_sse()
        await reply.event("", id="p", retry=10)
        self.arrived.set()
        await anyio.sleep_forever()

    async def resume(self, request: Request, reply: Reply) -> None:
        await reply.open_sse()
        await self.answered.wait()
        await reply.event(tool_result(self.called.rpc_id, "charged"), id="e1")
        await reply.finish()


@asynccontextmanager
async def after_death(tmp_path: Path, **policy: Any) -> AsyncIterator[tuple[Hanging, Guard]]:
    """A Guard on what a process left that died with one call in flight. Its death is played by a copy."""
    living, dead, mcp = tmp_path / "living.db", tmp_path / "dead.db", Hanging()
    with anyio.fail_after(LIMIT):
        async with FakeServer(mcp) as server:
            async with connected(Guard(server.url, store=SQLiteStore(living), key="orders")) as host:
                await host.post("tools/call", {"name": "charge", "arguments": {}})
                await mcp.arrived.wait()
                await anyio.sleep(0.2)  # a group is at most 50 ms behind
                copy(living, dead)
            yield mcp, Guard(server.url, store=SQLiteStore(dead), key="orders", policy=GuardPolicy(**policy))


async def outcomes_of(guard: Guard) -> list[Outcome | None]:
    return [call.outcome for call in await guard.recovered()]


async def test_what_a_hook_asked_as_its_process_died_is_none_of_the_calls_recovered(tmp_path: Path) -> None:
    async def look(call: InDoubtCall, server: Reconciler) -> Resolve:
        return Resolve(await server.call_tool("find_charge"))

    class Stuck(Cutting):
        async def call(self, request: Request, reply: Reply) -> None:
            if request.json["params"]["name"] == "find_charge":
                asked.set()
                await reply.client_gone.wait()
            else:
                await super().call(request, reply)

    living, dead, asked = tmp_path / "living.db", tmp_path / "dead.db", anyio.Event()
    with anyio.fail_after(LIMIT):
        async with FakeServer(Stuck()) as server:
            async with connected(Guard(server.url, store=SQLiteStore(living), reconcile=look)) as host:
                await host.post("tools/call", {"name": "charge", "arguments": {}})
                await asked.wait()
                copy(living, dead)
            guard = Guard(server.url, store=SQLiteStore(dead))
            async with connected(guard):
                assert [call.tool for call in await guard.recovered() if call.tool] == ["charge"]
            assert [call.tool for call in await guard.calls() if call.tool] == ["charge", "find_charge"]


async def test_any_number_may_wait_for_what_was_recovered(tmp_path: Path) -> None:
    async with after_death(tmp_path) as (mcp, guard), connected(guard):

        async def answer() -> list[Outcome | None]:
            mcp.answered.set()
            return []

        waiter = partial(outcomes_of, guard)
        told = await run_together(waiter, waiter, answer)
    assert told == [[Outcome.RECOVERED], [Outcome.RECOVERED], []]


@pytest.mark.parametrize("asks", [True, False])
async def test_an_equal_call_is_held_back_until_the_host_has_been_told_what_was_recovered(
    tmp_path: Path, asks: bool
) -> None:
    """However short the window is, it has not begun before that."""
    async with after_death(tmp_path, repeat_window=1e-6) as (mcp, guard), connected(guard) as host:
        mcp.answered.set()
        while not any(call.outcome is Outcome.RECOVERED for call in await guard.calls()):
            await anyio.lowlevel.checkpoint()
        if asks:
            assert await outcomes_of(guard) == [Outcome.RECOVERED]
        before, mcp.arrived = mcp.called, anyio.Event()
        call = {"name": "charge", "arguments": {}}
        if asks:
            await host.post("tools/call", call)
            await mcp.arrived.wait()
            assert mcp.called is not before
        else:
            assert plain_answer(await host.request("tools/call", call)).text == "charged"
            assert mcp.called is before


async def test_what_nobody_has_been_told_is_said_again_by_the_next_process(tmp_path: Path) -> None:
    """The process that gave the outcome is killed, before its host has asked and after; then the host goes on."""
    second, third = tmp_path / "second.db", tmp_path / "third.db"
    async with after_death(tmp_path) as (mcp, guard):
        async with connected(guard):
            mcp.answered.set()
            await guard.recovered()  # so that the outcome is on disk; nobody has gone on from it
            copy(tmp_path / "dead.db", second)
        again = Guard(guard.url, store=SQLiteStore(second), key="orders")
        async with connected(again) as host:
            (told,) = await again.recovered()
            assert (told.outcome, told.answer and told.answer["result"]["content"][0]["text"]) == (
                Outcome.RECOVERED,
                "charged",
            )
            await host.request("ping")
            while any(call.told is Told.NOBODY for call in await again.calls()):
                await anyio.lowlevel.checkpoint()
            copy(second, third)
        last = Guard(guard.url, store=SQLiteStore(third), key="orders")
        async with connected(last):
            assert [call for call in await last.recovered() if call.tool] == []


async def test_whoever_waits_for_what_was_recovered_is_told_when_the_connection_is_closed(tmp_path: Path) -> None:
    told: list[Any] = []

    async def wait() -> None:
        told.append(await outcomes_of(guard))

    async with after_death(tmp_path) as (_, guard), anyio.create_task_group() as tasks:
        async with connected(guard):
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
    assert told == [[Outcome.IN_DOUBT]] * 2


async def test_before_the_host_initializes_recovered_waits_no_longer_than_call_deadline(tmp_path: Path) -> None:
    async with after_death(tmp_path, call_deadline=0.2) as (_, guard), Connection(guard, plain_codec):
        assert await outcomes_of(guard) == [Outcome.IN_DOUBT]


async def test_a_connection_that_leaves_early_keeps_nothing_from_the_next_process(tmp_path: Path) -> None:
    """Another one is open all the time: for now it is in doubt, and is recovered by whoever takes over next."""
    opened, other, left = anyio.Event(), anyio.Event(), anyio.Event()

    async def short() -> None:
        async with connected(guard):
            opened.set()
            await other.wait()
        left.set()

    async with after_death(tmp_path) as (mcp, guard), anyio.create_task_group() as tasks:
        tasks.start_soon(short)
        await opened.wait()
        async with connected(guard) as host:
            other.set()
            await left.wait()
            assert await outcomes_of(guard) == [Outcome.IN_DOUBT]
            await host.request("ping")
        mcp.answered.set()
        async with connected(guard):
            assert await outcomes_of(guard) == [Outcome.RECOVERED]


MOVES: dict[str, Callable[[str], str]] = {
    "a new token": lambda url: f"{url}?token=new",
    "another path": lambda url: f"{url}/v2",
    "another name": lambda url: url.replace("127.0.0.1", "localhost"),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
async def test_under_a_key_of_the_user_s_a_server_may_move(tmp_path: Path, move: Callable[[str], str]) -> None:
    """Sessions do not go along: they are credentials, and no cursor crosses."""
    async with after_death(tmp_path) as (_, guard):
        moved = Guard(move(guard.url), store=guard.store, key="orders")
        async with connected(moved) as host:
            assert await outcomes_of(moved) == [Outcome.IN_DOUBT]
            assert (await host.call()).doubt is not None, "its repeat"
        async with connected(guard) as host:
            assert (await host.call()).doubt is not None, "back again"


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
async def test_a_name_is_the_same_where_its_server_has_moved(tmp_path: Path, move: Callable[[str], str]) -> None:
    mcp = Cutting(cuts=0)
    async with FakeServer(mcp) as server:
        for url in (server.url, move(server.url)):
            guard = Guard(url, store=SQLiteStore(tmp_path / "agent.db"), key="orders")
            async with connected(guard) as host:
                with guard.call_key("order-17"):
                    assert (await host.call()).text == "charged 1"
    assert mcp.ran == ["order-17"]


def test_a_guard_that_is_given_no_key_has_another_for_every_url_and_shows_no_secret_by_it() -> None:
    urls = [
        "https://a/s/secret/mcp",
        "https://a/s/other/mcp",
        "https://a/s/secret/mcp?token=secret",
        "https://b/mcp",
    ]
    keys = [Guard(url).key for url in urls]
    assert len(set(keys)) == 4
    assert "secret" not in "".join(keys)
    assert Guard(urls[0]).key == keys[0]


def copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as db, closing(sqlite3.connect(target)) as into:
        db.backup(into)
    target.chmod(0o600)
