"""A live fold has the log's state whatever the log does, with or without a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from dorm.core.state import State, digest
from dorm.live_fold import Fold, LiveFold, NotFolded, Thread
from events.log.memory import MemoryLog
from events.log.records import LogClosed, LogDamaged, LogUnavailable
from replay.frames import leave_snapshot
from replay.travel import state_at
from tests.errors import raises
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from events.log.records import Record

RECORDS = busy_log(300, apps=4, nodes=2)
PATIENCE_S = 20.0


class FragileLog(MemoryLog):
    """A log whose readers meet a fault while there is one."""

    def __init__(self) -> None:
        super().__init__(lambda: 1)
        self.fault: Exception | None = None
        self.gap = False
        self.reads_from: list[int] = []

    async def read(self, **how: Any) -> AsyncGenerator[list[Record], None]:
        self.reads_from.append(how["after"])
        async with contextlib.aclosing(super().read(**how)) as batches:
            async for batch in batches:
                if self.fault is not None:
                    raise self.fault
                yield [msgspec.structs.replace(batch[0], seq=batch[0].seq + 1)] if self.gap else batch

    async def end(self) -> int:
        if isinstance(self.fault, LogUnavailable):
            raise self.fault
        return await super().end()

    async def fill(self, upto: int) -> None:
        for record in RECORDS[await super().end() : upto]:
            await self.append(record.subject, record.body)


@contextlib.asynccontextmanager
async def following(log: MemoryLog, thread: Thread | None, **how: Any) -> AsyncIterator[LiveFold]:
    fold = LiveFold(log, thread=thread, again_s=0.01, piece=50, **how)
    running = asyncio.create_task(fold.run())
    try:
        yield fold
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if thread is not None:
            thread.close()


async def until(fold: LiveFold, holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await fold.moved()


@pytest.fixture(params=["on the loop", "in a thread"])
def thread(request: pytest.FixtureRequest) -> Thread | None:
    return Thread("test-fold") if request.param == "in a thread" else None


async def has_the_state_of(fold: LiveFold, log: MemoryLog, seq: int) -> None:
    await fold.reach(seq, PATIENCE_S)
    assert fold.ready
    assert (fold.seq, fold.end) == (seq, seq)
    assert await fold.look(digest) == digest(await state_at(log))


@pytest.mark.parametrize("trouble", ["damage", "gap", "no connection"])
async def test_a_log_that_cannot_be_followed_is_folded_again(thread: Thread | None, trouble: str) -> None:
    log = FragileLog()
    await log.fill(100)
    async with following(log, thread) as fold:
        started: list[int] = []
        seen: list[int] = []
        restarts: list[int] = []
        fold.on_begin.append(lambda state: started.append(state.seq))
        fold.on_begin.append(lambda _: fold.observers.append(lambda _state, record, _folded: seen.append(record.seq)))
        fold.on_restart.append(lambda: restarts.append(fold.seq))
        await has_the_state_of(fold, log, 100)
        assert seen == list(range(1, 101))
        seen.clear()
        if trouble == "gap":
            log.gap = True
        else:
            log.fault = LogDamaged("a record is missing") if trouble == "damage" else LogUnavailable("no connection")
        await log.fill(110)
        await until(fold, lambda: len(restarts) > 1)
        assert not fold.ready
        assert fold.trouble
        with raises(NotFolded, "log.view.behind"):
            await fold.look(digest)
        with pytest.raises(TimeoutError):
            await fold.reach(1, 0.02)
        log.fault, log.gap = None, False
        await has_the_state_of(fold, log, 110)
        assert seen == list(range(1, 111)), "each record once since it started over"
        assert started == [0] * len(started)


async def test_it_starts_from_a_snapshot_and_again_from_a_later_one(thread: Thread | None) -> None:
    log = FragileLog()
    await log.fill(80)
    await leave_snapshot(log)
    await log.fill(100)
    log.reads_from.clear()
    async with following(log, thread) as fold:
        await has_the_state_of(fold, log, 100)
        assert 80 in log.reads_from
        assert 0 not in log.reads_from
        await leave_snapshot(log)
        log.reads_from.clear()
        log.fault = LogDamaged("a record is missing")
        await log.fill(120)
        await until(fold, lambda: fold.trouble)
        log.fault = None
        await has_the_state_of(fold, log, 120)
        assert 100 in log.reads_from


async def test_an_observer_that_raises_is_dropped_with_the_state_that_it_saw(thread: Thread | None) -> None:
    log = FragileLog()
    await log.fill(100)
    broken = {90}
    seen: list[int] = []

    def see(_state: State, record: Record, _folded: object) -> None:
        if record.seq in broken:
            broken.clear()
            raise ZeroDivisionError("a mistake in a reader")
        seen.append(record.seq)

    async with following(log, thread) as fold:
        fold.on_begin.append(lambda _: seen.clear())
        fold.on_begin.append(lambda _: fold.observers.append(see))
        await has_the_state_of(fold, log, 100)
    assert seen == list(range(1, 101))


async def test_watchers_see_each_piece_after_it_was_folded(thread: Thread | None) -> None:
    log = FragileLog()
    await log.fill(120)
    async with following(log, thread) as fold:
        pieces: list[tuple[int, int]] = []
        fold.watchers.append(lambda piece: pieces.append((piece[-1].seq, fold.seq)))
        await has_the_state_of(fold, log, 120)
        await log.fill(123)
        await has_the_state_of(fold, log, 123)
        assert [reached for reached, _ in pieces][:3] == [50, 100, 120]
        assert all(reached == folded for reached, folded in pieces)


async def test_a_closed_connection_and_cancellation_end_it(thread: Thread | None) -> None:
    log = FragileLog()
    await log.fill(10)
    log.fault = LogClosed("closed")
    fold = LiveFold(log, thread=thread)
    with raises(LogClosed, "log.closed"):
        await fold.run()
    log.fault = None
    running = asyncio.create_task(fold.run())
    await fold.reach(10, PATIENCE_S)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if thread is not None:
        thread.close()


async def test_several_readers_bring_one_state_up_to_date_at_once() -> None:
    log = FragileLog()
    await log.fill(200)
    fold = Fold(log)
    states = await asyncio.gather(*(fold.catch_up() for _ in range(3)))
    assert all(state is fold.state for state in states)
    assert digest(fold.state) == digest(await state_at(log))
    assert fold.take_new(log.records[0]) is not None
    assert fold.state.seq == 200
