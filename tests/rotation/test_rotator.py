"""Successive rotations: what moves, what stays, and that both read as one log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.client.client import Client
from dorm.core.evolve import evolve
from dorm.core.state import SCHEMA, State, digest
from dorm.rotation.rotation_due import Policy, RotationError
from dorm.snapshots import newest
from events.archive import whole
from events.archive.stores import StoreError, digest_of
from events.archive.whole import WholeLog
from events.chain import signed_cut
from events.codec import encode
from events.errors import DormError
from events.log.interface import EventLog, ReadableLog
from events.log.memory import MemoryBus, MemoryLog
from events.log.records import Archived, LogDamaged
from events.log.stores import SnapshotInfo, surplus
from events.subjects import rotations
from replay.audit.seal_checks import verify_seals
from replay.moments import AtSequence
from replay.travel import state_at
from tests.errors import raises
from tests.lab.machines.small_disk import small_disk
from tests.master.sealed import CLUSTER, START, SealedLog, sealed_log
from tests.rotation.logs import ALL, Rotating, records_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rotating(tmp_path: Path) -> Rotating:
    return Rotating(sealed_log(seals=4, between=30), tmp_path)


async def test_the_past_moves_into_archives_and_reads_as_before(rotating: Rotating) -> None:
    cut = await rotating.rotator().step(ALL)
    assert cut is not None
    assert await rotating.stream.start() == cut.upto > 100
    whole = rotating.whole
    found = await records_of(whole)
    assert found[: len(rotating.given)] == rotating.given
    assert await whole.end() == found[-1].seq == len(found)
    for seq in (1, cut.upto - 1, cut.upto, cut.upto + 1, len(found)):
        assert await whole.record_at(seq) == found[seq - 1]
        assert await records_of(whole, seq) == found[seq:]
    seals = await verify_seals(whole)
    assert seals.good
    assert seals.seals == 4
    with raises(Archived, "log.archived"):
        await records_of(rotating.stream)
    assert await rotating.rotator().step(ALL) is None


async def test_states_of_any_moment(rotating: Rotating) -> None:
    before = {seq: digest(await state_at(rotating.stream, AtSequence(seq))) for seq in (1, 40, 90, 126)}
    cut = await rotating.rotator(most=50).step(ALL)
    while cut is not None:
        cut = await rotating.rotator(most=50).step(ALL)
    assert len(await rotating.store.names()) > 2
    for seq, known in before.items():
        assert digest(await state_at(rotating.whole, AtSequence(seq))) == known
    found = await newest(rotating.stream)
    assert found is not None
    assert found[0].seq == await rotating.stream.start()


async def test_a_cut_that_states_another_chain_is_noticed(rotating: Rotating) -> None:
    cut = await rotating.rotator().step(ALL)
    assert cut is not None
    forged = signed_cut(rotating.key, msgspec.structs.replace(cut, chain="0" * 64))
    await rotating.stream.append(rotations(CLUSTER), encode(forged))
    report = await verify_seals(rotating.whole)
    assert report.damage is not None
    assert report.damage.seal == await rotating.whole.end()


async def test_a_master_that_read_the_list_before_the_cut_drops_nothing_that_it_needs(
    rotating: Rotating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused between its list and its drops; the new leader rotates meanwhile."""
    snapshots, surpluses, missing = rotating.stream.snapshots, list[SnapshotInfo](), list[int]()
    put, purge = snapshots.put, rotating.stream.purge

    async def put_and_list(info: SnapshotInfo, body: bytes) -> None:
        await put(info, body)
        if not surpluses:
            newer = msgspec.structs.replace(info, seq=await rotating.stream.end(), pinned=msgspec.UNSET)
            surpluses.extend(surplus([info, newer]))
            surpluses.append(msgspec.structs.replace(info, pinned=msgspec.UNSET))

    async def purge_after_drops(upto: int) -> None:
        for old in surpluses:
            await snapshots.drop(old)
        missing.extend([upto] if upto not in [info.seq for info in await snapshots.infos()] else [])
        await purge(upto)

    monkeypatch.setattr(snapshots, "put", put_and_list)
    monkeypatch.setattr(rotating.stream, "purge", purge_after_drops)
    assert await rotating.rotator().step(ALL) is not None
    assert surpluses
    assert not missing


async def test_young_records_stay(rotating: Rotating) -> None:
    end = await rotating.stream.end()
    cut = await rotating.rotator().step(Policy(keep_records=60, keep_s=0.0))
    assert cut is not None
    assert cut.upto <= end - 60
    assert await rotating.rotator().step(Policy(keep_records=10**6)) is None


async def test_without_seals_nothing_moves(tmp_path: Path) -> None:
    log = SealedLog()
    log.say(6000)
    rotating = Rotating(log, tmp_path)
    assert await rotating.rotator().step(ALL) is None
    with raises(RotationError, "rotation.unsealed"):
        await rotating.rotator(most=5000).step(ALL)
    assert await rotating.stream.start() == 0


async def test_records_that_do_not_match_the_seal_are_kept(rotating: Rotating) -> None:
    rotating.stream.records[20].body += b" "
    with raises(RotationError, "rotation.differs"):
        await rotating.rotator().step(ALL)
    assert await rotating.stream.start() == 0


async def test_missing_and_altered_archives(rotating: Rotating, tmp_path: Path) -> None:
    while await rotating.rotator(most=50).step(ALL) is not None:
        pass
    first, second, *_, last = await rotating.store.names()
    folder = tmp_path / "archives" / "sealed"
    whole = await records_of(rotating.whole)
    (folder / str(first)).rename(tmp_path / "gone")
    with raises(StoreError, "archive.missing", "the records up to"):
        await records_of(rotating.whole)
    assert await records_of(rotating.whole, last.upto) == whole[last.upto :]
    (tmp_path / "gone").rename(folder / str(first))

    kept = (folder / str(second)).read_bytes()
    for spoiled in (kept[:-30], kept[:100] + b"x" + kept[101:], b""):
        (folder / str(second)).write_bytes(spoiled)
        with raises(LogDamaged, "archive.altered"):
            await records_of(rotating.whole)
    (folder / str(second)).write_bytes(kept)

    other = Rotating(sealed_log(seals=4, between=20), tmp_path / "other")
    await other.rotator().step(ALL)
    (theirs,) = await other.store.names()
    odd = second._replace(digest=theirs.digest)
    (folder / str(odd)).write_bytes((tmp_path / "other" / "archives" / "sealed" / str(theirs)).read_bytes())
    (folder / str(second)).unlink()
    with raises(LogDamaged, "archive.of_another_log"):
        await records_of(rotating.whole)


async def test_an_archive_is_hashed_again_only_after_a_change(
    rotating: Rotating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    while await rotating.rotator(most=50).step(ALL) is not None:
        pass
    names, hashed = await rotating.store.names(), list[int]()

    def counting(file: int) -> str:
        hashed.append(file)
        return digest_of(file)

    monkeypatch.setattr(whole, "digest_of", counting)
    log = rotating.whole
    found = await records_of(log)
    assert await records_of(log) == found
    assert len(hashed) == len(names) > 1
    file = tmp_path / "archives" / "sealed" / str(names[0])
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 1
    file.write_bytes(body)
    with raises(LogDamaged, "archive.altered"):
        await records_of(log)


async def test_an_archive_that_is_not_in_its_store_stops_rotation(rotating: Rotating, tmp_path: Path) -> None:
    await rotating.rotator(most=50).step(ALL)
    (tmp_path / "archives" / "sealed").rename(tmp_path / "elsewhere")
    with raises(RotationError, "rotation.other_place", "gone from"):
        await rotating.rotator().step(ALL)


@pytest.mark.parametrize("full", ["spool", "archives"])
async def test_a_full_disk_removes_nothing(rotating: Rotating, tmp_path: Path, full: str) -> None:
    with small_disk(tmp_path / full):
        filler = tmp_path / full / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        with raises(DormError, "archive.not_written" if full == "spool" else "archive.store.failed", "No space left"):
            await rotating.rotator().step(ALL)
        assert await rotating.stream.start() == 0
        assert await rotating.store.names() == []
        filler.unlink()
        assert await rotating.rotator().step(ALL) is not None
        assert (await records_of(rotating.whole))[: len(rotating.given)] == rotating.given


def test_a_whole_log_passes_on_everything_of_its_stream() -> None:
    """What the interface answers by default would hide what the stream keeps: snapshots, progress, parts."""
    public = {name for one in (ReadableLog, EventLog) for name in vars(one) if not name.startswith("_")}
    assert public - set(vars(WholeLog)) == {"anonymized", "base", "sparse"}
    stream = MemoryLog(lambda: 0)
    whole = WholeLog(stream, "lab")
    assert (whole.progress, whole.parts) == (stream.progress, stream.parts)


async def test_another_core_folds_the_log_from_its_first_record(
    rotating: Rotating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not use the snapshot at a cut that the core before it made, so it needs the archives, once."""
    while await rotating.rotator(most=50).step(ALL) is not None:
        pass
    whole = rotating.whole
    state = State()
    for record in await records_of(whole):
        evolve(state, record)
    for module in ("dorm.snapshots", "dorm.core.snapshot"):
        monkeypatch.setattr(f"{module}.SCHEMA", SCHEMA + 1)
    assert await newest(whole) is None
    client = Client(whole, MemoryBus(lambda: START), CLUSTER)
    assert digest(await client.state()) == digest(state)

    (tmp_path / "archives").rename(tmp_path / "elsewhere")
    with raises(StoreError, "archive.missing"):
        await Client(rotating.whole, MemoryBus(lambda: START), CLUSTER).state()
