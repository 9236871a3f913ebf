"""However a user steps through a log, the state at each position equals a fold from the start."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replay.stepper
from dorm.core.evolve import evolve
from dorm.core.snapshot import FOLDED_BY, copy, dump, pack, restore
from dorm.core.state import State, digest
from events import kinds as k
from events.archive.blocks import Header
from events.archive.segments import SegmentLog, SegmentWriter
from events.log.records import LogDamaged
from events.nats.connection import Connection
from events.positions import Position
from events.sources import fingerprint
from replay.moments import AtSequence, AtTime, BeforeEnd, MomentError
from replay.stepper import Keyframes, Pages, Search, SearchError, Stepper, events_of, parse
from replay.travel import state_at
from tests.core.virtual.world import World
from tests.errors import raises
from tests.replay.made_log import Story, log_of
from tests.tries import tries

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.memory import MemoryLog
    from events.log.records import Record
    from events.positions import Logged
    from tests.lab.machines.nats_server import NatsServer

SMALL = 16
"""Records of a page in these tests, so that a short log has many."""


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (replay.stepper, replay.stepper):
        monkeypatch.setattr(module, "PAGE", SMALL)
    monkeypatch.setattr(replay.stepper, "_WINDOW", 2 * SMALL)


@cache
def history(seed: int) -> list[Record]:
    return World(seed, steps=200).run().log


@cache
def digests(seed: int) -> list[str]:
    """After each record, from before the first."""
    state = State()
    found = [digest(state)]
    for record in history(seed):
        evolve(state, record)
        found.append(digest(state))
    return found


@cache
def events(seed: int) -> list[Logged]:
    return [one for record in history(seed) for one in events_of(record)]


SEARCHES = [
    Search(kinds=("Resized",)),
    Search(what="decision", apps=("cat",)),
    Search(what="failure"),
    Search(nodes=("x",)),
    Search(nodes=("y",), apps=("bee", "cat")),
    Search(users=("ann",), kinds=("ContainerStarted", "AppAccepted")),
    Search(kinds=("NodeLeft",)),
]
STEPS = st.tuples(st.just("step"), st.sampled_from([-100, -10, -2, -1, 1, 2, 10, 100]))
GOES = st.tuples(st.sampled_from(["seq", "time", "before", "end", "position"]), st.floats(0, 1))
SEEKS = st.tuples(st.sampled_from(SEARCHES), st.sampled_from([-3, -1, 1, 3]))


def matching(seed: int, search: Search) -> list[int]:
    """Indices of the events that a search wants, by one pass over all of the log."""
    asking = search.asking()
    return [index for index, one in enumerate(events(seed)) if asking.wants(one)]


async def move(stepper: Stepper, seed: int, at: int, how: str | Search, much: Any) -> int:
    """One move of the stepper, and its expected place afterwards as an index of its events (-1: before the first)."""
    records, found = history(seed), events(seed)
    if how == "step":
        await stepper.step(much)
        first = 0 if at >= 0 or much > 0 else -1
        return min(max(at + int(much), first), len(found) - 1)
    if isinstance(how, Search):
        await stepper.step(much, how)
        wanted = matching(seed, how)
        there = [one for one in wanted if one > at][:much] if much > 0 else [one for one in wanted if one < at][much:]
        return there[-1 if much > 0 else 0] if there else at
    seq = round(much * len(records))
    if how == "position":
        target = found[min(round(much * len(found)), len(found) - 1)]
        await stepper.go(target.position)
        return found.index(target)
    time = max((record.time for record in records[:seq]), default=0)
    if how == "seq":
        await stepper.go(AtSequence(seq))
    elif how == "end":
        await stepper.go()
        seq = len(records)
    else:
        await stepper.go(AtTime(time) if how == "time" else BeforeEnd(records[-1].time - time))
        seq = next((index for index, record in enumerate(records) if record.time > time), len(records))
    return max(index for index, one in enumerate(found) if one.position.seq <= max(1, seq)) if seq else 0


@settings(max_examples=tries(6, 50), deadline=None)
@given(
    seed=st.integers(0, 2),
    moves=st.lists(st.one_of(STEPS, GOES, SEEKS), min_size=1, max_size=12),
    room=st.sampled_from([1, 20_000, 1 << 30]),
    snapshots=st.lists(st.floats(0, 1), max_size=2),
)
def test_any_sequence_of_steps_ends_in_the_state_of_a_fold_from_the_start(
    seed: int, moves: list[Any], room: int, snapshots: list[float]
) -> None:
    async def walk() -> None:
        log = log_of(history(seed))
        for part in snapshots:
            await keep(log, round(part * len(log.records)))
        stepper = await Stepper.open(log)
        stepper._pages, stepper._keyframes = Pages(log, 0, room), Keyframes(room)
        at = -1
        for how, much in moves:
            at = await move(stepper, seed, at, how, much)
            check(stepper, seed, at)

    asyncio.run(walk())


def check(stepper: Stepper, seed: int, at: int) -> None:
    if at < 0:
        assert stepper.cursor is None
        assert stepper.after.seq == 0
        return
    assert stepper.cursor == events(seed)[at]
    seq = stepper.place.seq
    assert (stepper.before.seq, stepper.after.seq) == (seq - 1, seq)
    assert [digest(stepper.before), digest(stepper.after)] == digests(seed)[seq - 1 : seq + 1]


async def keep(log: MemoryLog, seq: int) -> None:
    state = State()
    for record in log.records[:seq]:
        evolve(state, record)
    await log.snapshots.put(*dump(state, build=fingerprint(*FOLDED_BY)))


async def test_any_step_costs_a_page_of_folding_at_most() -> None:
    stepper = await Stepper.open(log_of(history(0)))
    await stepper.go()
    for count in (-1, 1, -10, 10):
        for _ in range(60):
            before = stepper.folded
            await stepper.step(count)
            assert stepper.folded - before <= 2 * abs(count) + SMALL


async def test_a_jump_starts_at_a_snapshot() -> None:
    log = log_of(history(1))
    await keep(log, 4 * SMALL)
    stepper = await Stepper.open(log)
    await stepper.go(AtSequence(4 * SMALL + 3))
    assert stepper.folded == 3


class Counting:
    """A log that counts how often each of its records was read."""

    def __init__(self, log: MemoryLog) -> None:
        self.read_of: dict[int, int] = {}
        self._log, self._read = log, log.read
        log.read = self._counted  # type: ignore[method-assign]

    async def _counted(self, **how: Any) -> Any:
        async with aclosing(self._read(**how)) as batches:
            async for batch in batches:
                for record in batch:
                    self.read_of[record.seq] = self.read_of.get(record.seq, 0) + 1
                yield batch


async def test_stepping_back_and_forth_reads_no_record_twice() -> None:
    log = log_of(history(0))
    counting = Counting(log)
    stepper = await Stepper.open(log)
    for how in (1, 10, -1, 100, -10, 10, 100, 100, -100, -100):
        await stepper.step(how)
        await stepper.around(20, 20)
    await stepper.go()
    await stepper.go(AtSequence(1))
    assert set(counting.read_of.values()) == {1}


async def test_a_page_read_again_among_others_is_unchanged() -> None:
    records = history(0)
    pages = Pages(log_of(records), 0)
    for after, upto in ((44, 65), (0, 1), (64, len(records)), (0, len(records))):
        async with aclosing(pages.read(after, upto)) as parts:
            assert [record async for part in parts for record in part] == records[after:upto]


async def test_pages_stay_within_their_memory() -> None:
    records = history(0)
    room = 4 * SMALL * 400
    pages = Pages(log_of(records), 0, room)
    async with aclosing(pages.read(0, len(records))) as parts:
        found = [record async for part in parts for record in part]
    assert found == records
    assert pages._bytes <= room
    assert pages._bytes == sum(len(record.body) + 200 for page in pages._kept.values() for record in page)
    frames, state = Keyframes(5_000), State()
    for record in records:
        evolve(state, record)
        frames.pass_by(state)
    assert frames._bytes == sum(len(kept.encoded) for kept in frames._kept.values())
    assert frames._bytes <= 5_000 or len(frames._kept) == 1
    assert frames._seqs == sorted(frames._kept)


async def test_a_cancelled_move_changes_nothing() -> None:
    stepper = await Stepper.open(log_of(history(0)))
    await stepper.go(AtSequence(20))
    for where in (AtSequence(21), AtSequence(90), AtSequence(3)):
        for turns in range(8):
            moving = asyncio.create_task(stepper.go(where))
            for _ in range(turns):
                await asyncio.sleep(0)
            moving.cancel()
            await asyncio.wait({moving})
            seq = stepper.place.seq
            assert seq in (20, where.seq)
            assert [digest(stepper.before), digest(stepper.after)] == digests(0)[seq - 1 : seq + 1]
            await stepper.go(AtSequence(20))


async def test_the_surroundings_and_their_filter() -> None:
    stepper = await Stepper.open(log_of(history(0)))
    everything = events(0)
    for at in (0, 5, 40, len(everything) - 1):
        await stepper.go(everything[at].position)
        around = await stepper.around(12, 9)
        assert around == everything[max(0, at - 12) : at + 10]
        for search in SEARCHES:
            wanted = {everything[index].position for index in matching(0, search)}
            assert await stepper.wanted(around, search) == wanted & {one.position for one in around}


async def test_only_unrequested_ends_are_failures() -> None:
    stepper = await Stepper.open(log_of(history(6)))
    found = []
    while await stepper.step(1, Search(what="failure")):
        assert stepper.cursor is not None
        found.append(stepper.cursor.event)
    assert {type(event).__name__ for event in found} >= {"GenerationFailed", "ContainerExited"}
    ends = [event for event in found if isinstance(event, k.ContainerExited)]
    assert ends
    assert not any(event.asked or event.exit_code == 0 for event in ends)


async def test_an_empty_log_and_one_that_grows() -> None:
    story = Story()
    log = log_of([])
    stepper = await Stepper.open(log)
    await stepper.go()
    assert not await stepper.step(1)
    assert not await stepper.step(-1, Search(what="decision"))
    assert (stepper.cursor, await stepper.around(3, 3)) == (None, [])
    log.records = story.records[:2]
    stepper.grow(2)
    await stepper.go()
    assert stepper.place == Position(2)
    assert not await stepper.step(1)
    log.records = story.records
    stepper.grow(len(log.records))
    assert await stepper.step(1)
    assert digest(stepper.after) == digest(story.state)


async def test_a_moment_that_is_not_there() -> None:
    stepper = await Stepper.open(log_of(history(0)))
    with raises(MomentError, "moment.after_end"):
        await stepper.go(AtSequence(100_000))
    log = log_of(history(0)[:30])
    stepper = await Stepper.open(log)
    log.records = log.records[:20]
    with raises(LogDamaged, "log.damaged"):
        await stepper.go()


async def test_a_part_of_a_log(tmp_path: Path) -> None:
    """Which begins with the state before its first record."""
    records, state, start = history(0), State(), 2 * SMALL + 5
    for record in records[:start]:
        evolve(state, record)
    path = tmp_path / "part.dorm"
    with path.open("wb") as file:
        writer = SegmentWriter(file, Header(made_by="tests", start=start))
        writer.snapshot(*pack(copy(state), build=fingerprint(*FOLDED_BY)))
        writer.add(records[start:])
        writer.finish()
    log = await SegmentLog.open(path)
    try:
        stepper = await Stepper.open(log)
        await stepper.go()
        assert digest(stepper.after) == digests(0)[-1]
        await stepper.go(AtSequence(start))
        assert stepper.place == events_of(records[start])[0].position
        assert digest(stepper.before) == digests(0)[start]
        assert not await stepper.step(-1)
        assert await stepper.step(1, Search(what="decision"))
    finally:
        await log.close()


@pytest.mark.nats
async def test_a_live_clusters_log(nats_server: NatsServer) -> None:
    """Whose server leaves out what a search does not want."""
    name = f"step-{secrets.token_hex(4)}"
    connection = await Connection.open(nats_server.url, name, create=True)
    try:
        records = history(0)
        for record in records:
            subject = record.subject.replace("dorm.test.", f"dorm.{name}.")
            await connection.log.append(subject, record.body, msg_id=record.msg_id)
        stepper = await Stepper.open(connection.log, cluster=name)
        await stepper.go()
        # Log times are the server's here, and states have them.
        state = await state_at(connection.log)
        assert (stepper.place, digest(stepper.after)) == (events(0)[-1].position, digest(state))
        for search in (*SEARCHES, Search()):
            wanted = [events(0)[index].position for index in matching(0, search)]
            await stepper.go()
            found = [stepper.place] if stepper.place in wanted else []
            while await stepper.step(-1, search):
                found.insert(0, stepper.place)
            assert found == wanted
            await stepper.go(AtSequence(1))
            again = [stepper.place] if stepper.place in wanted else []
            while await stepper.step(1, search):
                again.append(stepper.place)
            assert again == wanted
        assert digest(stepper.after) == digest(state)
    finally:
        await connection.close()


def test_a_filter_as_people_write_it() -> None:
    story = Story()
    story.submit("digits")
    story.settle()
    state = story.state
    assert parse("resized digits n1", state) == Search(kinds=("Resized",), apps=("digits",), nodes=("n1",))
    assert parse("kind=nodelost app=gone user=ann node=n9", state) == Search(
        kinds=("NodeLost",), apps=("gone",), users=("ann",), nodes=("n9",)
    )
    assert str(parse("resized n1", state)) == "kind=Resized node=n1"
    assert not parse("  ", state)
    for wrong, code in (
        ("nobody", "name.not_found"),
        ("kind=Nothing", "search.kind.unknown"),
        ("appp=digits", "search.malformed"),
    ):
        with raises(SearchError, code) as refused:
            parse(wrong, state)
        assert wrong.removeprefix("kind=") in str(refused.value)


def test_a_copy_is_the_state_and_a_state_of_its_own() -> None:
    state = State()
    for record in history(0)[:60]:
        evolve(state, record)
    other = restore(copy(state))
    assert digest(other) == digest(state)
    evolve(other, history(0)[60])
    assert digest(state) == digests(0)[60]
