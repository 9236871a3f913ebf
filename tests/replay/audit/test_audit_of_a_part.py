"""Audits and seals of a log that begins later, with the state and the chain there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.evolve import evolve
from dorm.core.snapshot import dump
from dorm.core.state import State
from events.chain import Chain
from events.codec import decode
from events.kinds import Round
from events.log.memory import MemoryLog
from replay.audit.audit import verify
from replay.audit.workers import AuditError
from tests.errors import raises
from tests.master.sealed import sealed_log

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.records import Record


class Part(MemoryLog):
    """The records of a log after a sequence, with a snapshot of the state there unless there is none."""

    def __init__(self, records: Sequence[Record], start: int) -> None:
        super().__init__(time.time_ns, records)
        self._begins = start

    async def start(self) -> int:
        return self._begins

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        async for batch in super().read(after=max(after, self._begins), subjects=subjects, follow=follow):
            yield batch


async def part_of(records: Sequence[Record], start: int, *, chain: bool = True) -> Part:
    part, state, links = Part(records, start), State(), Chain()
    for record in records[:start]:
        evolve(state, record)
        links.follow(record)
    info, body = dump(state, build="another", chain=links.value.hex() if chain else "")
    await part.snapshots.put(info, body)
    return part


@pytest.mark.parametrize("start", [1, 5, 14, 17, 22, 40])
async def test_decisions_are_checked_from_the_start_of_a_part(written: list[Record], start: int) -> None:
    whole = await verify(MemoryLog(time.time_ns, written))
    report = await verify(await part_of(written, start))
    assert report.good
    between = any(event.basis < start < record.seq for record in written if isinstance(event := decode(record), Round))
    assert report.not_checked_because == ({"the state at its basis is too far back": 1} if between else {})
    assert (report.events, report.end, report.digest) == (len(written) - start, len(written), whole.digest)
    assert report.rounds < whole.rounds


async def test_seals_are_checked_from_the_start_of_a_part() -> None:
    records = sealed_log(3, 70).records
    report = await verify(await part_of(records, 100))
    assert report.good
    assert (report.seals.start, report.seals.seals, report.seals.unsealed) == (100, 2, 8)
    changed = [*records[:150], msgspec.structs.replace(records[150], time=1), *records[151:]]
    assert not (await verify(await part_of(changed, 100))).good
    unknown = await verify(await part_of(records, 100, chain=False))
    assert unknown.good
    assert "unknown" in unknown.seals.unknown


async def test_a_part_without_an_initial_state(written: list[Record]) -> None:
    with raises(AuditError, "snapshot.missing"):
        await verify(Part(written, 7))
