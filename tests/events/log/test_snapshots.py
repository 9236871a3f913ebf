"""Snapshots in memory and on a real NATS server, and which of them are kept."""

from __future__ import annotations

import contextlib
import os
from random import Random
from typing import TYPE_CHECKING

import msgspec
import nats
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from nats.js.errors import NotFoundError

from events.log.records import LogUnavailable
from events.log.stores import MOST, MOST_BYTES, SNAPSHOT_EVERY, MemorySnapshots, NoSnapshots, SnapshotInfo, surplus
from events.nats.connection import Connection
from events.nats.stores import JetStreamSnapshots
from events.nats.streams import log_stream, stream_configs
from tests.events.log.snapshot_conformance import SnapshotConformance, made, put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js.client import JetStreamContext

    from events.log.stores import Snapshots
    from tests.lab.machines.nats_server import NatsServer

CLUSTER = "snapshots"
STREAM = f"DORM_snapshots-{CLUSTER}"


class TestMemorySnapshots(SnapshotConformance):
    @pytest.fixture
    def snapshots(self) -> Snapshots:
        return MemorySnapshots()


async def test_a_log_without_a_store_keeps_none() -> None:
    snapshots = NoSnapshots()
    assert list(await snapshots.infos()) == []
    assert await snapshots.get(made(1, b"one")) is None


@pytest_asyncio.fixture
async def jetstream(nats_server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """As an owner of the server sees it, with all of this cluster gone at the end."""
    client = await nats.connect(nats_server.url)
    yield client.jetstream()
    for config in stream_configs(CLUSTER):
        with contextlib.suppress(NotFoundError):
            await client.jetstream().delete_stream(str(config.name))
    await client.close()


@pytest_asyncio.fixture
async def connection(nats_server: NatsServer, jetstream: JetStreamContext) -> AsyncIterator[Connection]:
    connection = await Connection.open(nats_server.url, CLUSTER, create=True)
    yield connection
    await connection.close()


@pytest.mark.nats
class TestJetStreamSnapshots(SnapshotConformance):
    @pytest.fixture
    def snapshots(self, connection: Connection) -> Snapshots:
        return connection.log.snapshots


async def subjects_of(jetstream: JetStreamContext) -> list[str]:
    found = await jetstream.stream_info(STREAM, subjects_filter=">")
    return sorted(found.state.subjects or ())


@pytest.mark.nats
async def test_bodies_of_dropped_and_replaced_snapshots_take_no_room(
    connection: Connection, jetstream: JetStreamContext
) -> None:
    snapshots = connection.log.snapshots
    one = await put(snapshots, 1, os.urandom(1_000_000))
    await put(snapshots, 2, b"old")
    two = await put(snapshots, 2, b"new")
    await snapshots.drop(one)
    prefix = f"dorm.{CLUSTER}.snapshot"
    assert await subjects_of(jetstream) == [f"{prefix}.body.{two.content}.0", f"{prefix}.index.all"]


@pytest.mark.nats
async def test_the_next_writer_clears_half_stored_snapshots(
    connection: Connection, jetstream: JetStreamContext
) -> None:
    snapshots = connection.log.snapshots
    kept = await put(snapshots, 1, b"one")
    left = f"dorm.{CLUSTER}.snapshot.body.{'f' * 64}.0"
    await jetstream.publish(left, b"half of it")
    assert await snapshots.infos() == [kept]
    again = JetStreamSnapshots(connection._link, CLUSTER, log_stream(CLUSTER))
    two = await put(again, 2, b"two")
    assert left not in await subjects_of(jetstream)
    assert await again.infos() == [kept, two]
    assert [await again.get(info) for info in (kept, two)] == [b"one", b"two"]


@pytest.mark.nats
async def test_clearing_up_spares_a_snapshot_that_is_being_stored(
    connection: Connection, jetstream: JetStreamContext
) -> None:
    """The writer has stored its pieces and not listed them yet when another one clears up."""
    slow, quick = (JetStreamSnapshots(connection._link, CLUSTER, log_stream(CLUSTER)) for _ in range(2))
    await put(slow, 1, b"one")
    replace = slow._replace
    between: list[SnapshotInfo] = []

    async def replace_late(infos: list[SnapshotInfo], before: list[SnapshotInfo], fence: int) -> None:
        if not between:
            between.append(await put(quick, 2, b"two"))
        await replace(infos, before, fence)

    slow._replace = replace_late  # type: ignore[method-assign]  # the only way to be in between
    three = await put(slow, 3, b"three")
    assert [info.seq for info in await slow.infos()] == [1, 2, 3]
    assert await slow.get(three) == b"three"


@pytest.mark.nats
async def test_a_body_that_was_tampered_with_is_not_given(connection: Connection, jetstream: JetStreamContext) -> None:
    snapshots = connection.log.snapshots
    info = await put(snapshots, 1, b"what was put")
    await jetstream.publish(f"dorm.{CLUSTER}.snapshot.body.{info.content}.0", b"what was bad")
    assert await snapshots.get(info) is None


@pytest.mark.nats
async def test_an_index_that_is_nonsense_lists_nothing_and_is_replaced(
    connection: Connection, jetstream: JetStreamContext
) -> None:
    snapshots = connection.log.snapshots
    await put(snapshots, 1, b"one")
    await jetstream.publish(f"dorm.{CLUSTER}.snapshot.index.all", b"\xc1")
    assert list(await snapshots.infos()) == []
    two = await put(snapshots, 2, b"two")
    assert await snapshots.infos() == [two]


@pytest.mark.nats
async def test_a_cluster_of_an_earlier_release_has_no_snapshots_until_one_is_stored(
    connection: Connection, jetstream: JetStreamContext
) -> None:
    await jetstream.delete_stream(STREAM)
    snapshots = connection.log.snapshots
    assert list(await snapshots.infos()) == []
    assert await snapshots.get(made(1, b"one")) is None
    one = await put(snapshots, 1, b"one")
    assert await snapshots.infos() == [one]


@pytest.mark.nats
async def test_failures_are_raised_as_errors_of_the_log(connection: Connection, jetstream: JetStreamContext) -> None:
    snapshots = connection.log.snapshots
    one = await put(snapshots, 1, b"one")
    await connection.close()
    for attempt in (put(snapshots, 2, b"two"), snapshots.infos(), snapshots.get(one), snapshots.drop(one)):
        with pytest.raises(LogUnavailable):
            await attempt


# --- which are kept -----------------------------------------------------------------------------------------------------


def kept_of(infos: list[SnapshotInfo]) -> list[SnapshotInfo]:
    """After each was put, as a master does it."""
    kept: list[SnapshotInfo] = []
    for info in infos:
        kept = sorted([one for one in kept if one.seq != info.seq] + [info], key=lambda one: one.seq)
        dropped = surplus(kept)
        assert info not in dropped
        kept = [one for one in kept if one not in dropped]
        assert len(kept) <= MOST
        assert len(kept) == 1 or sum(one.size for one in kept) <= MOST_BYTES
    return kept


def sized(seq: int, size: int = 1000, build: str = "this one") -> SnapshotInfo:
    return SnapshotInfo(seq=seq, time=seq, core=2, build=build, digest="", content=str(seq), size=size)


def gaps(infos: list[SnapshotInfo]) -> list[int]:
    return [b.seq - a for a, b in zip([0, *(one.seq for one in infos)], infos, strict=False)]


def test_a_pinned_snapshot_is_kept_until_the_log_starts_after_it() -> None:
    pinned = msgspec.structs.replace(sized(20), pinned=True)
    infos = [sized(10), pinned, sized(30), sized(40)]
    assert surplus(infos) == [sized(10), sized(30)]
    assert surplus(infos, start=20) == [sized(10), sized(30)]
    assert pinned in surplus(infos, start=21)


def test_a_log_of_ten_million_is_never_more_than_one_step_from_a_snapshot() -> None:
    kept = kept_of([sized(seq) for seq in range(SNAPSHOT_EVERY, 10_000_001, SNAPSHOT_EVERY)])
    assert len(kept) == 1000
    assert set(gaps(kept)) == {SNAPSHOT_EVERY}


@pytest.mark.parametrize("seed", range(3))
def test_quiet_moments_do_not_make_it_sparse(seed: int) -> None:
    """Those that were taken when nothing happened lie anywhere between the others."""
    random = Random(seed)
    seqs = [0]
    while seqs[-1] < 10_000_000:
        seqs.append(
            seqs[-1]
            + random.choice(
                [SNAPSHOT_EVERY // 40, SNAPSHOT_EVERY * 3 // 8, SNAPSHOT_EVERY * 5 // 8, SNAPSHOT_EVERY, SNAPSHOT_EVERY]
            )
        )
    assert max(gaps(kept_of([sized(seq) for seq in seqs[1:]]))) <= 3 * SNAPSHOT_EVERY


def test_a_long_log_has_dense_snapshots_near_its_end() -> None:
    kept = kept_of([sized(seq) for seq in range(SNAPSHOT_EVERY, 3 * MOST // 2 * SNAPSHOT_EVERY, SNAPSHOT_EVERY)])
    assert len(kept) == MOST
    between = gaps(kept)
    assert set(between[-50:]) == {SNAPSHOT_EVERY}
    assert max(between) <= 8 * SNAPSHOT_EVERY


def test_snapshots_in_between_are_dropped() -> None:
    seqs = range(1000, 2 * SNAPSHOT_EVERY + 5001, 1000)
    assert [one.seq for one in kept_of([sized(seq) for seq in seqs])] == [
        SNAPSHOT_EVERY,
        2 * SNAPSHOT_EVERY,
        2 * SNAPSHOT_EVERY + 5000,
    ]


def test_large_states_have_fewer_snapshots() -> None:
    kept = kept_of(
        [sized(seq, size=MOST_BYTES // 10) for seq in range(SNAPSHOT_EVERY, 100 * SNAPSHOT_EVERY + 1, SNAPSHOT_EVERY)]
    )
    assert len(kept) == 10
    assert [one.seq for one in kept_of([sized(7, size=2 * MOST_BYTES)])] == [7]


def test_snapshots_of_another_build_are_kept_as_long_as_there_is_room() -> None:
    others = [sized(seq + 1, build="another one") for seq in range(SNAPSHOT_EVERY, 11 * SNAPSHOT_EVERY, SNAPSHOT_EVERY)]
    kept = kept_of(
        [*others, *(sized(seq) for seq in range(SNAPSHOT_EVERY, (MOST - 5) * SNAPSHOT_EVERY, SNAPSHOT_EVERY))]
    )
    assert sum(one.build == "this one" for one in kept) == MOST - 6
    assert [one.seq for one in kept if one.build == "another one"] == [one.seq for one in others[-6:]]


@given(steps=st.lists(st.integers(1, 3 * SNAPSHOT_EVERY), max_size=60))
def test_no_gap_is_larger_than_necessary(steps: list[int]) -> None:
    seqs = [sum(steps[: index + 1]) for index in range(len(steps))]
    kept = kept_of([sized(seq) for seq in seqs])
    assert all(gap <= SNAPSHOT_EVERY or gap in steps for gap in gaps(kept))
    assert [one.seq for one in kept][-1:] == seqs[-1:]
