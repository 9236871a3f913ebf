"""A record's time, by one request where the log has the record."""

from __future__ import annotations

from events.log.interface import time_of
from events.log.memory import MemoryLog


async def test_a_record_has_its_time_and_no_record_has_none() -> None:
    log = MemoryLog(clock=iter(range(10, 100)).__next__)
    for body in (b"a", b"b"):
        await log.append("dorm.lab.x", body)
    first, second = [await log.record_at(seq) for seq in (1, 2)]
    assert first is not None
    assert second is not None
    assert [await time_of(log, seq) for seq in (0, 1, 2, 3)] == [0, first.time, second.time, 0]
