"""Messages on their way to the host."""

from __future__ import annotations

import anyio
import pytest

from mcp_client_guard.core.model import JSON
from mcp_client_guard.transports.inbox import Inbox

pytestmark = pytest.mark.anyio


async def test_what_waits_for_the_disk_keeps_its_place_and_is_overtaken_by_nothing() -> None:
    """By the order the core knows which message was taken."""
    inbox = Inbox(1000)
    inbox.put({"n": 1})
    place = inbox.reserve({"n": 2})
    inbox.put({"n": 3})
    assert await inbox.take() == {"n": 1}
    taken: list[JSON] = []

    async def take() -> None:
        taken.append(await inbox.take())
        taken.append(await inbox.take())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        assert (taken, inbox.drained) == ([], 1)
        inbox.release(place)
    assert (taken, inbox.drained) == ([{"n": 2}, {"n": 3}], 2)


async def test_of_two_that_wait_the_first_goes_first_whichever_is_written_first() -> None:
    inbox = Inbox(1000)
    first, second = inbox.reserve({"n": 1}), inbox.reserve({"n": 2})
    inbox.release(second)
    inbox.release(first)
    assert [await inbox.take(), await inbox.take()] == [{"n": 1}, {"n": 2}]


async def test_what_waits_for_the_disk_counts_against_the_bound() -> None:
    """While the disk is slow, too, nothing piles up without end (S15)."""
    inbox = Inbox(10)
    place = inbox.reserve({"n": 1})
    inbox.account(11)
    assert inbox.is_full
    with anyio.CancelScope() as scope:

        async def read() -> None:
            await inbox.room()
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(inbox.take)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert not scope.cancel_called
            inbox.release(place)
            tasks.start_soon(inbox.take)
    assert scope.cancel_called


async def test_who_leaves_while_the_disk_is_waited_for_is_let_go() -> None:
    inbox = Inbox(1000)
    inbox.reserve({"n": 1})

    async def take() -> None:
        with pytest.raises(anyio.EndOfStream):
            await inbox.take()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        inbox.close()
