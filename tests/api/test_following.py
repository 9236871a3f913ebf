"""A follower folds the log, and survives everything that the log does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dorm import live_fold
from dorm.api.connections import Addresses
from dorm.api.errors import Missing, TooMany, Unavailable
from dorm.api.follower import Follower
from dorm.api.options import Limits
from dorm.api.past_folds import Moments
from dorm.api.threads import Heavy, Turns
from dorm.core.state import State, digest
from dorm.live_fold import Thread
from events.log.memory import MemoryLog
from events.log.records import LogDamaged
from replay.moments import AtSequence
from replay.travel import state_at
from tests.errors import raises
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from events.log.records import Record

RECORDS = busy_log(600, apps=6, nodes=3)
PATIENCE_S = 20.0


class FragileLog(MemoryLog):
    """One that cannot be read while it is broken."""

    def __init__(self) -> None:
        super().__init__(lambda: 1)
        self.broken = False

    async def read(self, **how: Any) -> AsyncGenerator[list[Record], None]:
        async with contextlib.aclosing(super().read(**how)) as batches:
            async for batch in batches:
                if self.broken:
                    raise LogDamaged("a record is missing")
                yield batch


async def filled(log: MemoryLog, records: list[Record]) -> None:
    for record in records:
        await log.append(record.subject, record.body)


@contextlib.asynccontextmanager
async def following(log: MemoryLog) -> AsyncIterator[Follower]:
    follower = Follower(log, "busy")
    task = asyncio.create_task(follower.run())
    try:
        await until(lambda: follower.ready)
        yield follower
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


async def test_a_damaged_log_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_fold, "AGAIN_S", 0.01)
    log = FragileLog()
    await filled(log, RECORDS[:200])
    async with following(log) as follower:
        restarts: list[int] = []
        follower.on_restart.append(lambda: restarts.append(follower.seq))
        log.broken = True
        await filled(log, RECORDS[200:210])
        await until(lambda: follower.trouble)
        assert follower.trouble == "a record is missing"
        with raises(Unavailable, "api.starting"):
            await follower.look(digest)
        log.broken = False
        await follower.reach(210, PATIENCE_S)
        await until(lambda: follower.ready)
        assert await follower.look(digest) == digest(await state_at(log))
        assert restarts


async def test_a_read_waits_for_coming_records_but_not_for_absent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FragileLog()
    await filled(log, RECORDS[:50])
    async with following(log) as follower:
        await follower.reach(50, PATIENCE_S)
        with raises(Missing, "moment.after_end"):
            await follower.reach(51, PATIENCE_S)
        waiting = asyncio.create_task(follower.reach(60, PATIENCE_S))
        await filled(log, RECORDS[50:60])
        await waiting
        log.broken = True
        await filled(log, RECORDS[60:61])
        with raises(Unavailable, "api.behind"):
            await follower.reach(61, 0.05)


@pytest.mark.parametrize("room", [0, 200_000, 64 << 20])
async def test_moments_match_the_log_with_any_cache(room: int) -> None:
    log = FragileLog()
    await filled(log, RECORDS)
    async with following(log) as follower:
        moments = Moments(follower, Heavy(2, 100), room)
        order = [600, 3, 300, 301, 299, 600, 0, 450, 300]

        async def one(seq: int) -> None:
            expected = digest(await state_at(log, AtSequence(seq)))
            assert await moments.look(seq, digest) == expected
            mine: State = await moments.state(seq)
            assert digest(mine) == expected
            mine.apps.clear()  # The caller's own: no other reader sees that.

        for seq in order:
            await one(seq)
        await asyncio.gather(*map(one, order))


async def test_too_many_waiting_requests_are_refused() -> None:
    heavy = Heavy(1, 2)
    begun, over = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with heavy.turn():
            begun.set()
            await over.wait()

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await begun.wait()
    await asyncio.sleep(0)
    with raises(Unavailable, "api.busy"):
        async with heavy.turn():
            pass
    over.set()
    await asyncio.gather(*tasks)


async def test_endless_requests_delay_no_one_else() -> None:
    turns, over, had = Turns(4, 100, of_one=2), asyncio.Event(), list[str]()

    async def work(party: str) -> None:
        async with turns.turn(party):
            had.append(party)
            await over.wait()

    tasks = [asyncio.create_task(work("mallory")) for _ in range(200)]
    await asyncio.sleep(0)
    refused = [one for one in tasks if one.done()]
    assert len(refused) == 98
    assert had == ["mallory"] * 2
    alice = [asyncio.create_task(work("alice")) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert had == ["mallory"] * 2 + ["alice"] * 2
    bob, carol = (asyncio.create_task(work(name)) for name in ("bob", "carol"))
    await asyncio.sleep(0)
    for task in (tasks[0], tasks[3], carol):  # One that has a turn, and two that wait, go.
        task.cancel()
    over.set()
    await asyncio.gather(*tasks, *alice, bob, carol, return_exceptions=True)
    assert "bob" in had[4:6], "though many others have waited for longer"
    assert sorted(had[4:]) == ["bob", *["mallory"] * 99]
    for _ in range(2):  # Nothing is lost or left over.
        async with turns.turn("mallory"), turns.turn("mallory"), turns.turn("alice"), turns.turn("bob"):
            pass


def test_one_user_behind_a_proxy_leaves_streams_for_others() -> None:
    addresses = Addresses(Limits(streams_per_address=4))
    with contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(addresses.stream("proxy", "mallory"))
        for user, code in (("mallory", "api.streams.too_many"), ("alice", ""), ("bob", "")):
            if code:
                with raises(TooMany, code), addresses.stream("proxy", user):
                    pass
            else:
                held.enter_context(addresses.stream("proxy", user))
        held.enter_context(addresses.stream("elsewhere", "mallory"))
        with raises(TooMany, "api.streams.too_many"), addresses.stream("proxy"):
            pass
    with contextlib.ExitStack() as held:  # If users are unknown, each address has its whole share.
        for _ in range(4):
            held.enter_context(addresses.stream("proxy"))
    assert addresses.streams == 0


async def test_short_work_needs_no_thread_and_long_work_never_meets_it() -> None:
    thread = Thread("tried")
    here, where = threading.get_ident(), threading.get_ident
    try:
        assert await thread.run(where, short=True) == here
        # What is not known yet is tried in the thread; what is known to be short is done at once.
        assert await thread.run(where, "quick") != here
        assert await thread.run(where, "quick") == here
        assert await thread.run(where) != here

        def long() -> int:
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
            return where()

        assert [await thread.run(long, "long") for _ in range(2)] != [here, here]
        assert await thread.run(long, "long") != here
        # While the thread uses the guarded object, no other one does.
        free = threading.Event()
        busy = asyncio.create_task(thread.run(free.wait))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(thread.run(where, short=True))
        await asyncio.sleep(0)
        assert not waiting.done()
        free.set()
        assert await busy
        assert await waiting != here
    finally:
        thread.close()
