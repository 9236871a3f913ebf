"""With any snapshots beside a log, valid or not, the state at a moment equals that of a fold from its start."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from dorm.core.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, copy, dump, pack
from dorm.core.state import State, digest
from events.archive.blocks import Header
from events.archive.segments import SegmentLog, SegmentWriter
from events.log.stores import identity
from events.sources import fingerprint
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError
from replay.travel import state_at
from tests.core.virtual.world import World
from tests.errors import raises
from tests.replay.made_log import log_of
from tests.tries import tries

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.memory import MemoryLog
    from events.log.records import Record
    from replay.moments import Moment

BUILD = fingerprint(*FOLDED_BY)


@cache
def history(seed: int) -> list[Record]:
    return World(seed, steps=200).run().log


@cache
def folds(seed: int) -> list[tuple[str, int]]:
    """Digest and log time after each record, from before the first."""
    state = State()
    found = [(digest(state), 0)]
    for record in history(seed):
        evolve(state, record)
        found.append((digest(state), state.time))
    return found


def folded(records: list[Record], seq: int) -> State:
    state = State()
    for record in records[:seq]:
        evolve(state, record)
    return state


async def keep(log: MemoryLog, seq: int, **claims: Any) -> None:
    """A snapshot of the state at `seq`, good but for what is claimed of it."""
    info, body = dump(folded(log.records, seq), build=BUILD)
    record = identity(log.records[seq - 1]) if seq else ""
    await log.snapshots.put(msgspec.structs.replace(info, **{"record": record, **claims}), body)


CLAIMS: list[dict[str, Any]] = [
    {},
    {},
    {"build": "another one"},
    {"core": 10**6},
    {"record": "0" * 32},
    {"digest": "0" * 32},
    {"content": "0" * 64},
    {"time": 7},
]


@settings(max_examples=tries(5, 40), deadline=None)
@given(
    seed=st.integers(0, 3),
    kept=st.dictionaries(st.floats(0, 1), st.sampled_from(CLAIMS), max_size=5),
    where=st.floats(0, 1),
    how=st.sampled_from(["seq", "time", "before", "end"]),
)
def test_the_state_is_the_same_from_any_snapshot(
    seed: int, kept: dict[float, dict[str, Any]], where: float, how: str
) -> None:
    records, expected = history(seed), folds(seed)
    seq = round(where * len(records))
    moment: Moment | None = AtSequence(seq)
    if how == "end":
        moment, seq = None, len(records)
    elif how != "seq":
        time = expected[seq][1]
        seq = max(at for at in range(len(expected)) if expected[at][1] <= time)
        moment = AtTime(time) if how == "time" else BeforeEnd(records[-1].time - time)

    async def check() -> None:
        log = log_of(records)
        for place, claims in kept.items():
            await keep(log, round(place * len(records)), **claims)
        found = await state_at(log, moment)
        assert (found.seq, digest(found)) == (seq, expected[seq][0])

    asyncio.run(check())


async def test_a_snapshot_spares_the_fold_of_earlier_records() -> None:
    """The records before it could be of anything."""
    records = history(1)
    log = log_of(records)
    await keep(log, 50)
    log.records = [msgspec.structs.replace(record, body=b"") if record.seq < 50 else record for record in records]
    for seq in (50, 60, len(records)):
        assert digest(await state_at(log, AtSequence(seq))) == folds(1)[seq][0]
    assert digest(await state_at(log, AtSequence(49))) != folds(1)[49][0]


async def test_an_observer_sees_every_record() -> None:
    log = log_of(history(1))
    await keep(log, 50)
    seen: list[int] = []
    state = await state_at(log, AtSequence(60), seen=lambda state, record, folded: seen.append(record.seq))
    assert seen == [*range(1, 61)]
    assert digest(state) == folds(1)[60][0]


def part_of(path: Path, start: int, **claims: Any) -> None:
    """An archive of what came after `start`, with the state there."""
    records = history(1)
    info, body = pack(copy(folded(records, start)), build="another one")
    with path.open("wb") as file:
        writer = SegmentWriter(file, Header(cluster="test", start=start))
        writer.snapshot(msgspec.structs.replace(info, **claims), body)
        writer.add(records[start:])
        writer.finish()


async def test_any_build_reads_a_part_of_a_log_from_its_state(tmp_path: Path) -> None:
    records, expected = history(1), folds(1)
    part_of(tmp_path / "part.dorm", 40)
    log = await SegmentLog.open(tmp_path / "part.dorm")
    for seq in (40, 41, len(records)):
        assert digest(await state_at(log, AtSequence(seq))) == expected[seq][0]
    assert (await state_at(log, AtTime(2**62))).seq == len(records)
    seen: list[int] = []
    await state_at(log, AtSequence(60), seen=lambda state, record, folded: seen.append(record.seq))
    assert seen == [*range(41, 61)]
    with raises(MomentError, "moment.before_start"):
        await state_at(log, AtSequence(39))
    with raises(MomentError, "moment.before_start"):
        await state_at(log, AtTime(1))
    await log.close()


async def test_a_part_of_a_log_with_an_unusable_state_cannot_be_folded(tmp_path: Path) -> None:
    for claims, code in (({"core": 99}, "snapshot.other_version"), ({"digest": "0" * 32}, "snapshot.missing")):
        part_of(tmp_path / "part.dorm", 40, **claims)
        log = await SegmentLog.open(tmp_path / "part.dorm")
        with raises(MomentError, code):
            await state_at(log)
        await log.close()
