"""The contract of every store of snapshots.  A test module subclasses `SnapshotConformance` and gives it
the fixture `snapshots`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from events.log.stores import SnapshotInfo, content_of

if TYPE_CHECKING:
    from events.log.stores import Snapshots


def made(seq: int, body: bytes, build: str = "this one") -> SnapshotInfo:
    """The info of a body, whatever it holds."""
    return SnapshotInfo(
        seq=seq, time=seq * 1000, core=2, build=build, digest="d" * 32, content=content_of(body), size=len(body)
    )


async def put(snapshots: Snapshots, seq: int, body: bytes) -> SnapshotInfo:
    info = made(seq, body)
    await snapshots.put(info, body)
    return info


class SnapshotConformance:
    """`snapshots` gives an empty store."""

    async def test_an_empty_store(self, snapshots: Snapshots) -> None:
        assert list(await snapshots.infos()) == []
        assert await snapshots.get(made(1, b"nobody put this")) is None
        await snapshots.drop(made(1, b"nobody put this"))

    async def test_bodies_come_back_as_they_were(self, snapshots: Snapshots) -> None:
        bodies = {5: b"five", 7: os.urandom(3_000_000), 6: bytes(range(256)) * 2048}
        infos = {seq: await put(snapshots, seq, body) for seq, body in bodies.items()}
        assert list(await snapshots.infos()) == [infos[seq] for seq in (5, 6, 7)]
        for seq, body in bodies.items():
            assert await snapshots.get(infos[seq]) == body

    async def test_a_snapshot_of_the_same_sequence_is_replaced(self, snapshots: Snapshots) -> None:
        old = await put(snapshots, 5, b"old")
        other = await put(snapshots, 6, b"other")
        new = await put(snapshots, 5, b"new")
        assert list(await snapshots.infos()) == [new, other]
        assert await snapshots.get(old) is None
        assert await snapshots.get(new) == b"new"

    async def test_putting_a_snapshot_again_keeps_it(self, snapshots: Snapshots) -> None:
        info = await put(snapshots, 5, b"the same")
        await snapshots.put(info, b"the same")
        assert list(await snapshots.infos()) == [info]
        assert await snapshots.get(info) == b"the same"
        newer = msgspec.structs.replace(info, chain="c0ffee")
        await snapshots.put(newer, b"the same")
        assert list(await snapshots.infos()) == [newer]
        assert await snapshots.get(newer) == b"the same"

    async def test_only_dropped_data_is_gone(self, snapshots: Snapshots) -> None:
        one, two = await put(snapshots, 1, b"one"), await put(snapshots, 2, b"two")
        await snapshots.drop(one)
        await snapshots.drop(one)
        assert list(await snapshots.infos()) == [two]
        assert await snapshots.get(one) is None
        assert await snapshots.get(two) == b"two"
        assert await put(snapshots, 1, b"one") == one
        assert await snapshots.get(one) == b"one"

    async def test_a_snapshot_pinned_after_it_was_listed_is_not_dropped(self, snapshots: Snapshots) -> None:
        listed = await put(snapshots, 5, b"the cut")
        pinned = msgspec.structs.replace(listed, pinned=True)
        await snapshots.put(pinned, b"the cut")
        await snapshots.drop(listed)
        await put(snapshots, 5, b"of a master that was paused while it stored this")
        assert list(await snapshots.infos()) == [pinned]
        assert await snapshots.get(pinned) == b"the cut"
        await snapshots.drop(pinned)
        assert list(await snapshots.infos()) == []

    async def test_two_writers_at_once_lose_nothing(self, snapshots: Snapshots) -> None:
        await asyncio.gather(*(put(snapshots, seq, b"%d" % seq) for seq in range(1, 5)))
        infos = await snapshots.infos()
        assert [info.seq for info in infos] == [1, 2, 3, 4]
        for info in infos:
            assert await snapshots.get(info) == b"%d" % info.seq
