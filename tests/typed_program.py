"""A user's program, as README and docs have it, with its types: checked by mypy on both SDK majors, and never run.

What a user must name is exported; what is given to a Guard, or passed on to the SDK, has the type that is wanted.
"""

from __future__ import annotations

from typing import Any

import httpx
from mcp import ClientSession

from mcp_client_guard import (
    CallInDoubt,
    CallSettled,
    Claim,
    Connection,
    Discontinuity,
    Event,
    EventCallback,
    Fail,
    Generation,
    Guard,
    GuardPolicy,
    IdScheme,
    InDoubtCall,
    MemoryStore,
    Outcome,
    ReconcileHook,
    Reconciler,
    RequestFailed,
    Resend,
    Resolve,
    SQLiteStore,
    Store,
    StoredCall,
    StoredSession,
    Verdict,
)
from mcp_client_guard.adapters.mcp import streamable_http_client

URL = "https://example.com/mcp"


async def ask_the_server(call: InDoubtCall, server: Reconciler) -> Verdict | None:
    if call.tool != "charge":
        return None
    try:
        found = await server.call_tool("find_charge", {"reference": call.call_key})
    except RequestFailed:
        return Fail("The payment may or may not have been made.")
    return Resolve(found) if found.get("structuredContent") else Resend()


def tell(event: Event) -> None:
    match event:
        case Discontinuity(stream=stream, reason=reason):
            print(f"messages of stream {stream} may be lost: {reason}")
        case CallSettled(tool=tool, outcome=Outcome.IN_DOUBT, call_key=call_key):
            print(f"{tool} is in doubt, call key {call_key}")


async def tell_later(event: Event) -> None:
    print(event)


def is_lost(status: int, body: Any) -> bool:
    return status == 410


def made(durable: bool, on_event: EventCallback, reconcile: ReconcileHook) -> Guard:
    store: Store = SQLiteStore("agent.db") if durable else MemoryStore()
    policy = GuardPolicy(
        call_deadline={"report_*": 7200, "*": 600},
        resend={"get_*": "always", "charge": "never"},
        honours_call_key=["order"],
        call_key_argument={"order": "idempotency_key"},
        id_scheme=IdScheme.CONTIGUOUS,
        is_session_lost=is_lost,
    )
    return Guard(URL, store=store, policy=policy, reconcile=reconcile, on_event=on_event)


GuardPolicy(honours_call_key="order_*")  # type: ignore[arg-type]
plain = made(False, tell, ask_the_server)
Guard(17)  # type: ignore[arg-type]
careful = Guard(httpx.URL(URL), http_client=httpx.AsyncClient(), on_event=tell_later, headers={"a": "b"})


async def call(guard: Guard) -> list[StoredCall]:
    connection: Connection = guard.connect()
    async with connection as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        with guard.call_key("order-17"):
            result = await session.call_tool("charge", {"cents": 100})
        if doubt := CallInDoubt.find(result):
            print(doubt.call_key)
        async for event in guard.events():
            tell(event)
        return await guard.recovered()


async def listed(store: Store) -> list[Generation]:
    claim: Claim = await store.claim("key", origin="https://example.com:443/mcp", principal=None)
    await claim.release()
    sessions: list[StoredSession] = await store.sessions()
    return [session.generation for session in sessions]


async def drop_in() -> None:
    async with streamable_http_client(URL) as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
    async with streamable_http_client(17):  # type: ignore[arg-type]
        pass
