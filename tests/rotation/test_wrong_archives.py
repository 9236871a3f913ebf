"""A place whose archives are not those that a log needs: in another order, twice, missing, or of another log."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest

from dorm.core.state import digest
from events.archive.segments import SegmentLog, SegmentWriter, open_archive
from events.archive.stores import ArchiveMissing, FolderStore, Name, digest_of
from events.archive.whole import Archives
from events.log.records import LogDamaged, LogRefused
from events.nats.importing import import_log
from replay.moments import AtSequence
from replay.travel import state_at
from tests.errors import raises
from tests.master.sealed import CLUSTER, SealedLog, sealed_log
from tests.rotation.logs import ALL, Rotating, records_of

if TYPE_CHECKING:
    from pathlib import Path

    from events.archive.stores import ArchiveStore
    from events.log.records import Record


async def rotated(sealed: SealedLog, folder: Path) -> tuple[Rotating, list[Name]]:
    """A log in at least four archives, and their names."""
    rotating = Rotating(sealed, folder)
    while await rotating.rotator(most=50).step(ALL) is not None:
        pass
    names = await rotating.store.names()
    assert len(names) >= 4
    return rotating, names


class Listed(FolderStore):
    """A folder that lists its archives in an order of its own."""

    order: random.Random

    async def names(self) -> list[Name]:
        found = await super().names()
        self.order.shuffle(found)
        return found


def folder_of(rotating: Rotating) -> Path:
    return rotating.folder / "archives" / CLUSTER


async def past(store: ArchiveStore, last: Name) -> list[Record]:
    """Every record in the archives up to one."""
    archives = Archives(store, CLUSTER, last)
    try:
        return [record async for batch in archives.read(0, ()) for record in batch]
    finally:
        await archives.close()


async def test_a_listing_in_any_order(tmp_path: Path) -> None:
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    for seed in range(10):
        store = Listed(tmp_path / "archives", CLUSTER)
        store.order = random.Random(seed)
        assert await past(store, names[-1]) == rotating.given[: names[-1].upto]


async def test_one_missing_in_the_middle_hides_no_other(tmp_path: Path) -> None:
    """Records before and after it are read, as are states; what needs one of its records says which are missing."""
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    given, whole = rotating.given, rotating.whole
    before = {seq: digest(await state_at(whole, AtSequence(seq))) for seq in (names[0].upto, names[2].upto)}
    gone = names[1]
    (folder_of(rotating) / str(gone)).rename(tmp_path / "gone")
    whole = rotating.whole
    read: list[Record] = []
    with raises(ArchiveMissing, "archive.missing", f"records up to {gone.upto:,}"):
        async for batch in whole.read():
            read += batch
    assert read == given[: gone.after]
    assert (await records_of(whole, gone.upto))[: len(given) - gone.upto] == given[gone.upto :]
    for seq in (1, gone.after, gone.upto + 1, names[2].upto, names[-1].upto):
        assert await whole.record_at(seq) == given[seq - 1]
    for seq in (1, gone.after - 1, gone.upto + 1, names[-1].upto):
        assert await whole.at_time(given[seq - 1].time) == seq
    for seq, known in before.items():
        assert digest(await state_at(whole, AtSequence(seq))) == known
    for seq in (gone.after + 1, gone.upto):
        with raises(ArchiveMissing, "archive.missing"):
            await whole.record_at(seq)
    for seq in (gone.after, gone.after + 1, gone.upto):  # What follows the last record before the gap is not known.
        with raises(ArchiveMissing, "archive.missing"):
            await whole.at_time(given[seq - 1].time)
    with raises(ArchiveMissing, "archive.missing"):
        await whole.last_on("no.such.subject")

    (tmp_path / "gone").rename(folder_of(rotating) / str(gone))
    assert (await records_of(whole))[: len(given)] == given, "it was put back"


async def test_one_twice_under_different_names(tmp_path: Path) -> None:
    """The same records in other bytes, and a longer archive that a rotation left before it died, count once."""
    sealed = sealed_log(seals=5, between=30)
    rotating, names = await rotated(sealed, tmp_path)
    folder, right = folder_of(rotating), rotating.given[: names[-1].upto]
    for name in names[:-1]:
        await rewritten(folder / str(name), folder, made_by="another build")
    assert len(await rotating.store.names()) == 2 * len(names) - 1
    assert await past(rotating.store, names[-1]) == right

    longer = Rotating(sealed, tmp_path / "longer")
    await longer.rotator(most=names[1].upto).step(ALL)
    (one,) = await longer.store.names()
    assert (one.after, one.upto) == (0, names[1].upto)
    (folder_of(longer) / str(one)).rename(folder / str(one))
    assert await past(rotating.store, names[-1]) == right

    (folder / f"copy of {names[1]}").write_bytes((folder / str(names[1])).read_bytes())
    assert await past(rotating.store, names[-1]) == right


async def rewritten(file: Path, folder: Path, **header: str) -> Name:
    """The same records and snapshots in an archive with another header, under the name that it has to have."""
    archive = await open_archive(file)
    assert isinstance(archive, SegmentLog)
    start, end = await archive.start(), await archive.end()
    kept = {info.seq: (info, await archive.snapshots.get(info)) for info in await archive.snapshots.infos()}
    with (folder / "unnamed").open("wb+") as opened:
        writer = SegmentWriter(opened, msgspec.structs.replace(archive.header, **header))
        for seq in (start, end):
            if seq == end:
                writer.add(await records_of(archive, start))
            if seq in kept:
                info, body = kept[seq]
                assert body is not None
                writer.snapshot(info, body)
        writer.finish()
        opened.flush()
        name = Name(start, end, digest_of(opened.fileno()))
    await archive.close()
    (folder / "unnamed").rename(folder / str(name))
    return name


@pytest.mark.parametrize("seed", range(4))
async def test_archives_of_an_earlier_log_of_the_cluster(tmp_path: Path, seed: int) -> None:
    """A cluster that was made again, or restored from a backup, puts its archives next to those of its earlier log.  Which
    come first in a listing decides nothing."""
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    earlier, theirs = await rotated(sealed_log(seals=5, between=30), tmp_path / "earlier")
    assert [(name.after, name.upto) for name in names] == [(name.after, name.upto) for name in theirs]
    assert rotating.given != earlier.given
    for name in theirs:
        (folder_of(rotating) / str(name)).write_bytes((folder_of(earlier) / str(name)).read_bytes())
    store = Listed(tmp_path / "archives", CLUSTER)
    store.order = random.Random(seed)
    assert await past(store, names[-1]) == rotating.given[: names[-1].upto]
    assert await past(store, theirs[-1]) == earlier.given[: theirs[-1].upto]


async def test_only_one_of_an_earlier_log(tmp_path: Path) -> None:
    """Its range and its cluster's name fit, and its records do not."""
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    earlier, theirs = await rotated(sealed_log(seals=5, between=30), tmp_path / "earlier")
    right = (folder_of(rotating) / str(names[1])).read_bytes()
    (folder_of(rotating) / str(names[1])).unlink()
    (folder_of(rotating) / str(theirs[1])).write_bytes((folder_of(earlier) / str(theirs[1])).read_bytes())
    whole = rotating.whole
    with raises(LogDamaged, "archive.of_another_log", str(theirs[1])):
        await records_of(whole, names[0].upto)
    with raises(LogDamaged, "archive.of_another_log"):
        await records_of(whole)
    (folder_of(rotating) / str(theirs[1])).unlink()
    (folder_of(rotating) / str(names[1])).write_bytes(right)
    assert (await records_of(whole))[: len(rotating.given)] == rotating.given, "the right one was put back"


@pytest.mark.parametrize("right", [True, False])
async def test_one_of_another_cluster(tmp_path: Path, right: bool) -> None:
    """It is passed over if the right one is there, too, and otherwise named."""
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    other = await rewritten(folder_of(rotating) / str(names[1]), folder_of(rotating), cluster="other")
    if right:
        assert await past(rotating.store, names[-1]) == rotating.given[: names[-1].upto]
        return
    (folder_of(rotating) / str(names[1])).unlink()
    with raises(LogDamaged, "archive.of_another_log", str(other)):
        await past(rotating.store, names[-1])


async def test_files_one_after_the_other_are_no_archive(tmp_path: Path) -> None:
    """`cat` of a log's archives, in any order: what follows the first is reported as damage, and read as nothing else."""
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    for one, other in [*pairwise(names), (names[1], names[0]), (names[0], names[0])]:
        files = [(folder_of(rotating) / str(name)).read_bytes() for name in (one, other)]
        (tmp_path / "both.dorm").write_bytes(b"".join(files))
        archive = await open_archive(tmp_path / "both.dorm")
        assert await records_of(archive, one.after) == rotating.given[one.after : one.upto]
        assert await archive.torn()
        (damage,) = await archive.damages()
        assert damage.place == len(files[0])
        await archive.close()


async def test_a_part_becomes_no_cluster(tmp_path: Path) -> None:
    rotating, names = await rotated(sealed_log(seals=5, between=30), tmp_path)
    archive = await open_archive(folder_of(rotating) / str(names[1]))
    with raises(LogRefused, "archive.not_whole"):
        await import_log(archive, "nats://127.0.0.1:1", "lab")
    await archive.close()
