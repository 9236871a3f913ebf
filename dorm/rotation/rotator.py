"""One archive of a rotation: the records up to a seal, snapshots between them, and the state at both ends.

The last snapshot is the one that its master signs: from there the stream is folded without the archive.

The steps of a rotation. Each may be the last before a crash, and the next rotation continues from what the log
says.

    1  a seal is chosen, and the records up to it are written into a file              (`planning`, `writing`)
    2  the file is put into the store, fetched again, and compared with the seal       nothing depends on it yet
    3  the snapshot at the cut is stored next to the log's others, pinned: nobody drops it
    4  the cut is stated on the log, signed (`LogRotated`)                             this commits the archive
    5  the archive is opened once more, and the stream is purged up to the cut         nothing else removes records

A crash before 4 leaves an archive that nobody reads; the same records give the same bytes, so the next attempt writes the same
file. After a crash between 4 and 5 the next rotation begins with 5.  The cut is stored directly after the last one, or not at
all, so if two masters rotate at once, one gives up."""

from __future__ import annotations

import contextlib
import os
import secrets
from importlib.metadata import version
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import structlog

from dorm.core.evolve import evolve
from dorm.core.snapshot import dump
from dorm.rotation.policy import MOST_RECORDS, RotationError, plan
from events import subjects
from events.appending import append_event
from events.archive.blocks import Header
from events.archive.segments import SegmentWriter
from events.archive.stores import Name, digest_of, name_of
from events.archive.whole import open_archive_of
from events.chain import START, Chain, signed_cut
from events.kinds import LogRotated
from events.log.records import LogDamaged, Overtaken
from events.log.stores import SnapshotInfo, identity
from replay.frames import EVERY, build, state_after
from replay.whole_file import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dorm.core.state import State
    from dorm.rotation.policy import Plan, Policy
    from events.archive.segments import SegmentLog
    from events.archive.stores import ArchiveStore
    from events.archive.whole import WholeLog
    from events.chain import SealKey
    from events.log.interface import EventLog
    from events.log.records import Record


# --- writing ----------------------------------------------------------------------------------------------------------


class Written(msgspec.Struct, frozen=True):
    """An archive that is in a file, not yet in its store."""

    name: Name
    size: int
    """Bytes."""
    chain: str
    """The hash chain after its last record."""
    snapshot: SnapshotInfo
    body: bytes


async def write(log: EventLog, cluster: str, plan: Plan, file: Path) -> Written:
    """Write the records of a plan into a new file.  Raises LogError, LogRefused if the file can't be written, and
    RotationError if the records are not those that the seal covers."""
    state, chain = await state_after(log, plan.after)
    if not chain:
        raise RotationError(
            f"the hash chain after record {plan.after:,} is unknown: the snapshot there is gone or of another version; start "
            "the master with --archives where the log's archives are",
            code="rotation.no_snapshot",
        )
    header = Header(
        cluster=cluster,
        made_by=f"dorm {version('dorm')}",
        start=plan.after,
        renamed=min(await log.renamed_upto(), plan.upto),
    )
    with await in_thread(_create, file) as opened:
        writing = await in_thread(_Writing, opened, header, state, chain)
        async with contextlib.aclosing(log.read(after=plan.after)) as batches:
            async for batch in batches:
                if await in_thread(writing.take, batch, plan.upto):
                    break
        if writing.seq != plan.upto:
            raise LogDamaged(f"the log ends at {writing.seq:,}, before {plan.upto:,}", code="log.truncated")
        info, body = await in_thread(writing.finish)
        if info.chain != plan.seal.chain:
            raise RotationError(
                f"records {plan.after + 1:,} to {plan.upto:,} are not those that the seal there covers; `dorm log verify` "
                "shows where they differ",
                code="rotation.differs",
            )
        size = opened.tell()
        digest = await in_thread(digest_of, opened.fileno())
    return Written(Name(plan.after, plan.upto, digest), size, info.chain, info, body)


def _create(file: Path) -> BinaryIO:
    try:
        return open(file, "xb+", buffering=1 << 20, opener=_private)
    except OSError as error:
        raise RotationError(f"{file}: {error.strerror}", code="archive.not_written") from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class _Writing:
    """Writes records as they are read; called in threads, one call after the other."""

    def __init__(self, file: BinaryIO, header: Header, state: State, chain: str) -> None:
        self._file = file
        self._state = state
        self._chain = Chain(header.start, bytes.fromhex(chain) if chain else START)
        self._last: Record | None = None
        self._writer = SegmentWriter(file, header)
        if header.start:
            self._writer.snapshot(*self._dumped())

    @property
    def seq(self) -> int:
        return self._state.seq

    def take(self, records: Sequence[Record], upto: int) -> bool:
        """Take the next records, and none after `upto`; return whether that is reached."""
        begin = 0
        for index, record in enumerate(records):
            if record.seq > upto:
                self._writer.add(records[begin:index])
                return True
            evolve(self._state, record)
            self._chain.follow(record)
            self._last = record
            if not record.seq % EVERY and record.seq != upto:
                self._writer.add(records[begin : index + 1])
                self._writer.snapshot(*self._dumped())
                begin = index + 1
        self._chain.forget(self._chain.seq)
        self._writer.add(records[begin:])
        return self.seq >= upto

    def finish(self) -> tuple[SnapshotInfo, bytes]:
        """Write the last snapshot and the index; return the snapshot."""
        last = self._dumped()
        self._writer.snapshot(*last)
        self._writer.finish()
        os.fsync(self._file.fileno())
        return last

    def _dumped(self) -> tuple[SnapshotInfo, bytes]:
        info, body = dump(self._state, build=build(), chain=self._chain.value.hex())
        record = identity(self._last) if self._last is not None else ""
        return msgspec.structs.replace(info, record=record), body


async def check_archive(archive: SegmentLog, name: Name, chain_before: str, chain: str) -> None:
    """Read an archive as its store gives it back, every byte, and compare its records with the chain before and after them.
    Raises RotationError, LogError."""
    if damages := await archive.damages():
        raise RotationError(f"the archive {name} came back damaged: {damages[0]}", code="archive.altered")
    reached = Chain(name.after, bytes.fromhex(chain_before) if chain_before else START)

    def follow(batch: Sequence[Record]) -> None:
        for record in batch:
            if record.seq != reached.seq + 1:
                raise RotationError(f"the archive {name} lacks record {reached.seq + 1:,}", code="archive.altered")
            reached.follow(record)
        reached.forget(reached.seq)

    async with contextlib.aclosing(archive.read(after=name.after)) as batches:
        async for batch in batches:
            await in_thread(follow, batch)
    if reached.seq != name.upto or reached.value.hex() != chain:
        raise RotationError(f"the archive {name} does not hold the records that it should", code="archive.altered")


async def last_snapshot(archive: SegmentLog) -> tuple[SnapshotInfo, bytes] | None:
    """Return the snapshot at the archive's end, None if it can't be read."""
    end = await archive.end()
    for info in await archive.snapshots.infos():
        if info.seq == end:
            body = await archive.snapshots.get(info)
            return (info, body) if body is not None else None
    return None


# --- rotator ----------------------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)


class Rotator:
    """Rotates one cluster's log in the name of one master.

    `spool` is a folder with room for one archive; `clock` returns UTC nanoseconds, for people; `leads` says whether this
    master leads now; otherwise it states no cut and removes nothing."""

    def __init__(
        self,
        log: WholeLog,
        cluster: str,
        store: ArchiveStore,
        key: SealKey,
        *,
        name: str,
        spool: Path,
        clock: Callable[[], int],
        leads: Callable[[], bool] = lambda: True,
        most: int = MOST_RECORDS,
    ) -> None:
        """`most`: records in one archive."""
        self._log = log
        self._cluster = cluster
        self._store = store
        self._key = key
        self._name = name
        self._spool = spool
        self._clock = clock
        self._leads = leads
        self._most = most

    async def step(self, policy: Policy, *, epoch: int = 0, cause: str = "") -> LogRotated | None:
        """Finish the last rotation, and move the next archive; return its cut, None if nothing may move.  Raises
        RotationError, LogError; then nothing was removed that is not safe in an archive."""
        before = await self.finish()
        chosen = await plan(self._log.stream, self._cluster, policy, most=self._most)
        if chosen is None:
            return None
        _log.info("rotating the log", after=chosen.after, upto=chosen.upto)
        with self._aside() as file:
            written = await write(self._log, self._cluster, chosen, file)
            await self._store.put(written.name, file)
        await self._read_back(written, before)
        await self._put_snapshot(written.snapshot, written.body)
        cut = await self._commit(chosen, written, epoch, cause)
        await self.finish()
        return cut

    async def finish(self) -> LogRotated | None:
        """Remove what the newest cut covers from the stream, if it is still there; return the cut.  Raises as
        `step`."""
        cut = await self._log.cut()
        if cut is None:
            return None
        name = name_of(cut.archive)
        if name is None or name not in await self._store.names():
            raise self._not_there(cut)
        if await self._log.stream.start() >= cut.upto and await self._has_snapshot(cut):
            return cut
        archive = await open_archive_of(self._store, name, self._cluster)
        try:
            await self._keep_snapshot(cut, await last_snapshot(archive))
        finally:
            await archive.close()
        self._check_leading()
        await self._log.purge(cut.upto)
        if not await self._has_snapshot(cut):  # The master dropped it for others before it knew of the cut.
            return await self.finish()
        _log.info("records were removed from the stream", upto=cut.upto, archive=cut.archive)
        return cut

    def _not_there(self, cut: LogRotated) -> RotationError:
        what = f"the log's last archive, {cut.archive[:100]}, is "
        if cut.place == self._store.place:
            what += f"gone from {cut.place[:200]}; mount that folder again, or put the archive back from a copy"
        else:
            there = cut.place[:200] or "another place"
            what += (
                f"not at {self._store.place}; move the log's archives there (they were put into {there}), or name the place "
                "where they are with --archives"
            )
        return RotationError(what, code="rotation.other_place")

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Path]:
        """Yield the name of a file that is gone afterwards."""
        file = self._spool / f".rotation-{self._cluster}-{secrets.token_hex(4)}"
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
            yield file
        except OSError as error:
            raise RotationError(f"{self._spool}: {error.strerror}", code="archive.not_written") from None
        finally:
            with contextlib.suppress(OSError):
                file.unlink()

    async def _read_back(self, written: Written, before: LogRotated | None) -> None:
        """Read the archive as the store gives it back."""
        archive = await open_archive_of(self._store, written.name, self._cluster)
        try:
            await check_archive(archive, written.name, before.chain if before is not None else "", written.chain)
            snapshot = await last_snapshot(archive)
            if snapshot is None or snapshot[0] != written.snapshot:
                raise RotationError(f"the archive {written.name} lacks its last snapshot", code="archive.altered")
        finally:
            await archive.close()

    async def _commit(self, chosen: Plan, written: Written, epoch: int, cause: str) -> LogRotated:
        """State the cut on the log.  Raises RotationError if another master was first."""
        self._check_leading()
        subject = subjects.rotations(self._cluster)
        last = await self._log.stream.last_on(subject)
        cut = LogRotated(
            id=f"{self._name}.cut.{chosen.upto}",
            at=self._clock(),
            by=self._name,
            cause=cause,
            after=chosen.after,
            upto=chosen.upto,
            chain=written.chain,
            snapshot=written.snapshot.content,
            archive=str(written.name),
            bytes=written.size,
            place=self._store.place,
            left=chosen.left,
            epoch=epoch,
        )
        cut = await in_thread(signed_cut, self._key, cut)
        try:
            await append_event(self._log, subject, cut, expected_last=last.seq if last is not None else 0)
        except Overtaken:
            raise RotationError("another master rotated the log at the same time", code="rotation.overtaken") from None
        newest = await self._log.cut()
        if newest is None or newest.upto != cut.upto:
            raise RotationError("another master rotated the log at the same time", code="rotation.overtaken")
        return newest

    async def _has_snapshot(self, cut: LogRotated) -> bool:
        for info in await self._log.snapshots.infos():
            if (info.seq, info.content) == (cut.upto, cut.snapshot):
                return await self._log.snapshots.get(info) is not None
        return False

    async def _keep_snapshot(self, cut: LogRotated, last: tuple[SnapshotInfo, bytes] | None) -> None:
        """Make sure that the log can be folded from the cut without the archive."""
        if await self._has_snapshot(cut):
            return
        if last is None or last[0].content != cut.snapshot:
            raise RotationError(
                f"the snapshot at record {cut.upto:,} is gone, from the log and from the archive {cut.archive}; put the "
                "archive back from a copy",
                code="rotation.no_snapshot",
            )
        await self._put_snapshot(*last)

    async def _put_snapshot(self, info: SnapshotInfo, body: bytes) -> None:
        """Store a snapshot so that no master drops it, not even one that read the list before the cut was on the log."""
        await self._log.snapshots.put(msgspec.structs.replace(info, pinned=True), body)

    def _check_leading(self) -> None:
        if not self._leads():
            raise RotationError("another master leads now", code="rotation.overtaken")
