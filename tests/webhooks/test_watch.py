"""Deliveries go on after a damaged read of the log."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from dorm import live_fold
from dorm.webhooks.deliverer import Watch
from events.log.memory import MemoryLog
from events.log.records import LogDamaged
from events.positions import logged
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from events.log.records import Record

RECORDS = busy_log(60, apps=3, nodes=2)


class OnceDamaged(MemoryLog):
    """A log of which one read fails."""

    def __init__(self) -> None:
        super().__init__(lambda: 1)
        self.damaged = asyncio.Event()

    async def read(self, **how: Any) -> AsyncGenerator[list[Record], None]:
        async with contextlib.aclosing(super().read(**how)) as batches:
            async for batch in batches:
                if batch[-1].seq == len(RECORDS) and not self.damaged.is_set():
                    self.damaged.set()
                    raise LogDamaged("a record is missing")
                yield batch


async def test_a_damaged_read_holds_no_delivery_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_fold, "AGAIN_S", 0.01)
    log = OnceDamaged()
    for record in RECORDS[:-1]:
        await log.append(record.subject, record.body)
    watch = Watch(log, "busy", "root", clock=lambda: 1, after_s=lambda: [60.0])
    running = asyncio.create_task(watch.run())
    rounds = [event for record in RECORDS for event in logged(record) if event.round is not None]
    async with asyncio.timeout(20):
        assert not await watch.left_out(rounds[0])
        await log.append(RECORDS[-1].subject, RECORDS[-1].body)
        await log.damaged.wait()
        assert not await watch.left_out(rounds[-1])
        assert await watch.app_after(len(RECORDS), "unknown") is None
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
