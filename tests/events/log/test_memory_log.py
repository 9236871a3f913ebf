"""The log in memory."""

from __future__ import annotations

import itertools

import pytest

from events.log.memory import MemoryLog
from events.log.records import LogDamaged, Record
from tests.events.log.conformance import LogConformance, fill
from tests.events.log.progress_conformance import ProgressConformance
from tests.events.log.readable_conformance import ALICE, read_all


class TestMemoryLog(LogConformance):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(itertools.count(1).__next__)


class TestMemoryProgress(ProgressConformance):
    @pytest.fixture
    def log(self) -> MemoryLog:
        return MemoryLog(itertools.count(1).__next__)


async def test_log_time_stops_while_the_clock_goes_back() -> None:
    times = iter([5, 3, 4, 9])
    log = MemoryLog(lambda: next(times))
    await fill(log, 4)
    assert [record.time for record in await read_all(log)] == [5, 5, 5, 9]


async def test_it_starts_with_given_records() -> None:
    log = MemoryLog(lambda: 9, [Record(1, 5, ALICE, b"one", "id-1"), Record(2, 6, ALICE, b"two")])
    assert (await log.append(ALICE, b"again", msg_id="id-1")).duplicate
    assert (await log.append(ALICE, b"three", expected_last=2)).seq == 3


def test_given_records_are_contiguous() -> None:
    with pytest.raises(LogDamaged):
        MemoryLog(lambda: 9, [Record(2, 5, ALICE, b"two")])
