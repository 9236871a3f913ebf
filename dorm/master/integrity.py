"""Checks that the log is still what was read of it: masters do not lead on a log that was truncated or changed unobserved.

    server     the log's server reports that it lost records, or allows altering them (`EventLog.check`)
    seals      a seal does not fit the records before it (`dorm.master.sealing`)
    snapshots  one names a record that does not exist: the log was longer
    witness    a small file beside the master's key: a sequence and the log's hash chain there, written from time to time and
               at the end.  It may be old, but is never ahead of what was read
    lease      the same from the last leader, several times per lease duration, visible to all masters (`dorm.master.lease`)
    readers    one that reopens finds another record in place of the last one it had read (`ReadableLog.read`)

A missing or unreadable witness proves nothing.

    LogAltered   records were lost or changed; the message says what to do
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import structlog

from events.durable import write_whole
from events.errors import DormError
from events.log.records import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from events.log.interface import EventLog, ReadableLog

_log = structlog.get_logger(__name__)
_SAY_AFTER_S = 3.0
_EVERY_S = 5.0
_LARGEST = 1000
"""Bytes; a longer file is not a witness."""


class LogAltered(DormError):
    """The log is not what masters have sealed, or what this one has read of it."""

    code = "log.altered"


class Sighting(msgspec.Struct, frozen=True):
    """The chain after a record."""

    cluster: str
    seq: int
    chain: str


class Integrity:
    """One master's integrity checks.  `witness` is the file, None for none; with `accept`, alterations are only logged."""

    def __init__(self, cluster: str, witness: Path | None, *, accept: bool = False) -> None:
        self._cluster = cluster
        self._witness = witness
        self._accept = accept
        self._sightings: list[Sighting] = []
        """Of records that are not yet folded, in order."""
        self._altered = ""

    async def ask(self, log: EventLog) -> None:
        """Ask the log's server whether it has lost records.  Raises LogDamaged, LogUnavailable."""
        try:
            await log.check()
        except LogDamaged as error:
            if not self._accept:
                raise
            _log.error("the log is taken as it is", found=str(error))

    async def open(self, log: EventLog, snapshots: Iterable[int], leader: tuple[int, str] = (0, "")) -> int:
        """Check the log before anything is folded, given the sequences of its snapshots and what the last leader had read.
        Return the log's end.  Raises LogAltered, LogDamaged, LogUnavailable."""
        await self.ask(log)
        found = [Sighting(self._cluster, *leader)]
        if self._witness is not None and (own := await asyncio.to_thread(_read, self._witness, self._cluster)):
            found.append(own)
        self._sightings = sorted((one for one in found if one.seq), key=lambda one: one.seq)
        end = await self.reach(log, max([*snapshots, *(one.seq for one in self._sightings)], default=0))
        return max(end, await log.end())

    async def reach(self, log: ReadableLog, seen: int) -> int:
        """Return the log's end, which must not be before a record that was seen.  Raises LogAltered, LogDamaged,
        LogUnavailable."""
        end = await log.end()
        if seen > end and not await _reaches_in_time(log, end, seen):
            self._altered, self._sightings = f"the log ends at record {end}, and record {seen} was there before", []
            self.check()
        return end

    def folded(self, seq: int, chain: str) -> None:
        """Compare the chain after the record that was just folded."""
        while self._sightings and self._sightings[0].seq <= seq:
            sighting = self._sightings.pop(0)
            # A snapshot may start beyond it; then there is nothing to compare.
            if seq == sighting.seq and chain != sighting.chain:
                self._altered = f"the records up to {seq} are not those that this master or the last leader has seen"

    def stored(self, seq: int, basis: int) -> None:
        """Check that a round made from all records up to `basis` was stored after them.  Raises LogAltered."""
        if seq <= basis:
            self._altered = f"a round is stored as record {seq}, and the records up to {basis} had been there"
            self.check()

    def check(self, misfit: int = 0) -> None:
        """`misfit`: the first seal that does not fit, 0 for none.  Raises LogAltered."""
        if misfit:
            self._altered = f"the records before {misfit} are not those that the seal there was made of"
        altered, self._altered = self._altered, ""
        if not altered:
            return
        if not self._accept:
            raise LogAltered(
                f"{altered}: records were lost, or something other than a master changed them. Restore a backup (`dorm deploy "
                "restore`, `dorm replay import`), or, if this log is the one that you mean, start once with --accept-log"
            )
        _log.error("the log is taken as it is", found=altered)

    async def remember(self, seen: Callable[[], tuple[int, str]]) -> None:
        """Keep the witness up to date until cancelled.  `seen` returns a sequence and the chain there."""
        if self._witness is None:
            return
        written = 0
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                seq, chain = seen()
                if seq != written:
                    await asyncio.to_thread(_write, self._witness, Sighting(self._cluster, seq, chain))
                    written = seq
        finally:
            _write(self._witness, Sighting(self._cluster, *seen()))  # Inline: an ending task can't wait for a thread.


async def _reaches_in_time(log: ReadableLog, end: int, seq: int) -> bool:
    """As `_reaches`, and say that it takes its time."""

    def say() -> None:
        _log.warning("the log ends before what was seen of it; it is asked again", end=end, seq=seq)

    soon = asyncio.get_running_loop().call_later(_SAY_AFTER_S, say)
    try:
        return await _reaches(log, seq)
    finally:
        soon.cancel()


async def _reaches(log: ReadableLog, seq: int) -> bool:
    """Return whether the record exists.  A server that lags behind the others may report an end that is too early; reading
    retries for as long as that is possible."""
    try:
        async with contextlib.aclosing(log.read(after=seq)) as batches:
            async for _ in batches:
                break
    except LogDamaged:
        return False
    return True


def _read(path: Path, cluster: str) -> Sighting | None:
    """Return the witness, None if it holds nothing about this cluster."""
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_LARGEST), type=Sighting)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.warning("what this master has seen of the log can't be read", file=str(path), reason=str(error))
        return None
    return found if found.cluster == cluster and found.seq > 0 else None


def _write(path: Path, sighting: Sighting) -> None:
    """Write the witness atomically.  A failing disk is logged and is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(sighting))
    except OSError as error:
        _log.warning("what this master has seen of the log can't be written", file=str(path), reason=str(error))
