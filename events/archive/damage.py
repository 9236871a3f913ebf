"""Damage of an archive, and the parts that are still usable."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from events.log.interface import ReadableLog
from events.log.records import LogDamaged, LogRefused, on_subjects
from events.log.stores import ReadableSnapshots

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from events.log.records import Record
    from events.log.stores import SnapshotInfo


class Damage(msgspec.Struct, frozen=True):
    """Bytes that can't be read, and the records that are lost with them."""

    place: int
    """Byte position in the file."""
    what: str
    """A description, without the records."""
    first: int = 0
    """The first lost record; 0 if none is lost (the index, a snapshot)."""
    last: int | None = None
    """The last lost record; None if their number is unknown."""

    def costs(self, first: int, last: int) -> bool:
        """Return whether these records are all among the lost ones."""
        return 0 < self.first <= first and (self.last is None or last <= self.last)

    def __str__(self) -> str:
        if not self.first:
            return f"{self.what}; no record is lost"
        if self.last is None:
            return f"{self.what}; whatever came after record {self.first - 1} is lost"
        if self.first == self.last:
            return f"{self.what}; record {self.first} is lost"
        return f"{self.what}; records {self.first} to {self.last} are lost"


def readable_end(damages: Sequence[Damage], end: int) -> int:
    """Return the last record before the first lost one."""
    return min([end, *(damage.first - 1 for damage in damages if damage.first)])


def refuse_to_follow(follow: bool) -> None:
    """Raises LogRefused for a reader that would wait for more records: an archive does not grow."""
    if follow:
        raise LogRefused(
            "an archive does not grow, so it can't be followed; follow the cluster's log, or read to its end",
            code="log.not_growing",
        )


class ReadablePart(ReadableLog):
    """A damaged log up to its damage, as a log: records after it can't be folded, since some are missing before them."""

    def __init__(self, log: ReadableLog, end: int, damage: str) -> None:
        self._log = log
        self._end = end
        self._damage = damage
        self._snapshots = _UpTo(log.snapshots, end)

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        refuse_to_follow(follow)
        if after > self._end:
            raise LogDamaged(f"{self._damage}; it can be read up to {self._end}, which is before {after}")
        if after == self._end:
            return
        # Read without a filter: only so is the end recognized, after which the damage starts.
        async with contextlib.aclosing(self._log.read(after=after)) as batches:
            async for batch in batches:
                wanted = batch if batch[-1].seq <= self._end else [r for r in batch if r.seq <= self._end]
                if wanted := on_subjects(wanted, subjects):
                    yield wanted
                if batch[-1].seq >= self._end:
                    return

    async def end(self) -> int:
        return self._end

    async def start(self) -> int:
        return min(await self._log.start(), self._end)

    async def at_time(self, time: int) -> int:
        try:
            return min(await self._log.at_time(time), self._end)
        except LogDamaged:  # The search ran into the damage, or past it.
            return await ReadableLog.at_time(self, time)

    async def torn(self) -> str:
        return self._damage

    @property
    def sparse(self) -> bool:
        return self._log.sparse

    @property
    def anonymized(self) -> bool:
        return self._log.anonymized

    async def renamed_upto(self) -> int:
        return await self._log.renamed_upto()

    @property
    def snapshots(self) -> ReadableSnapshots:
        return self._snapshots

    async def close(self) -> None:
        await self._log.close()


class _UpTo(ReadableSnapshots):
    """A log's snapshots up to a sequence."""

    def __init__(self, snapshots: ReadableSnapshots, end: int) -> None:
        self._snapshots = snapshots
        self._end = end

    async def infos(self) -> Sequence[SnapshotInfo]:
        return [info for info in await self._snapshots.infos() if info.seq <= self._end]

    async def get(self, info: SnapshotInfo) -> bytes | None:
        return await self._snapshots.get(info)


class Salvageable(Protocol):
    """An archive that can be read past its damage; newly found damage is added to `damages`."""

    def salvage(
        self, *, damages: list[Damage], after: int = 0, subjects: Sequence[str] = ()
    ) -> AsyncGenerator[list[Record], None]: ...

    async def start(self) -> int: ...

    async def end(self) -> int: ...

    async def close(self) -> None: ...


class WholeParts(ReadableLog):
    """All readable records of a damaged archive, before and after its damage: records are missing in between."""

    def __init__(self, archive: Salvageable, damages: Sequence[Damage]) -> None:
        self._archive = archive
        self._damages = list(damages)

    @property
    def sparse(self) -> bool:
        return True

    async def read(
        self, *, after: int = 0, subjects: Sequence[str] = (), follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        refuse_to_follow(follow)
        if after > (end := await self.end()):
            raise LogDamaged(f"{self._damages[0]}; the archive ends at {end}, before {after}")
        parts = self._archive.salvage(damages=self._damages, after=after, subjects=subjects)
        async with contextlib.aclosing(parts) as batches:
            async for batch in batches:
                yield batch

    async def start(self) -> int:
        return await self._archive.start()

    async def end(self) -> int:
        return await self._archive.end()

    async def torn(self) -> str:
        return str(self._damages[0])

    async def close(self) -> None:
        await self._archive.close()
