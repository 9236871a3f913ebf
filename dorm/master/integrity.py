"""Whether the log is still what was seen of it: one that was cut off or changed while no master looked is not led on.

    server     whoever keeps the log says that it lost some of it, or lets it be altered (`EventLog.check`)
    seals      a seal that does not fit the records before it (`dorm.master.sealing`)
    snapshots  one of a record that is not there: the log was longer
    witness    a small file beside the master's key: a sequence and the log's hash chain there, written now and then and at the
               end.  So it may be old, and is never ahead of what was really read
    lease      the same from the last leader, several times in the lease's duration, where all masters see it
    (`dorm.master.lease`) readers    one that opens again finds another record in the place of the last that it had read
    (`EventLog.read`)

A witness that is missing, or can't be read, says nothing.

    LogAltered   records were lost or changed; the message says what to do
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from typing import TYPE_CHECKING

import msgspec
import structlog

from events.log.records import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from events.log.interface import EventLog

_log = structlog.get_logger(__name__)
_EVERY_S = 5.0
_LARGEST = 1000
"""Bytes; a file that is longer is something else."""


class LogAltered(Exception):
    """The log is not what masters have sealed, or what this one has seen of it."""


class Sighting(msgspec.Struct, frozen=True):
    """The chain after a record."""

    cluster: str
    seq: int
    chain: str


class Integrity:
    """One master's doubts about its log.  `witness` is the file, None for none; with `accept` doubts are only logged."""

    def __init__(self, cluster: str, witness: Path | None, *, accept: bool = False) -> None:
        self._cluster = cluster
        self._witness = witness
        self._accept = accept
        self._sightings: list[Sighting] = []
        """Of records that are still to be folded, in their order."""
        self._altered = ""

    async def ask(self, log: EventLog) -> None:
        """What whoever keeps the log says of it.  Raises LogDamaged, LogUnavailable."""
        try:
            await log.check()
        except LogDamaged as error:
            if not self._accept:
                raise
            _log.error("the log is taken as it is", found=str(error))

    async def open(self, log: EventLog, snapshots: Iterable[int], leader: tuple[int, str] = (0, "")) -> int:
        """Before anything is folded, with the sequences of the log's snapshots and what the last leader had seen; gives the
        log's end.  Raises LogAltered, LogDamaged, LogUnavailable."""
        await self.ask(log)
        found = [Sighting(self._cluster, *leader)]
        if self._witness is not None and (own := await asyncio.to_thread(_read, self._witness, self._cluster)):
            found.append(own)
        self._sightings = sorted((one for one in found if one.seq), key=lambda one: one.seq)
        end = await self.reach(log, max([*snapshots, *(one.seq for one in self._sightings)], default=0))
        return max(end, await log.end())

    async def reach(self, log: EventLog, seen: int) -> int:
        """The log's end, which is not before a record that was seen.  Raises LogAltered, LogDamaged, LogUnavailable."""
        end = await log.end()
        if seen > end and not await _reaches(log, seen):
            self._altered, self._sightings = f"the log ends at record {end}, and record {seen} was there before", []
            self.check()
        return end

    def folded(self, seq: int, chain: str) -> None:
        """The chain after the record that was folded just now."""
        while self._sightings and self._sightings[0].seq <= seq:
            sighting = self._sightings.pop(0)
            # Where a snapshot has led past it, nothing is left to compare.
            if seq == sighting.seq and chain != sighting.chain:
                self._altered = f"the records up to {seq} are not those that this master or the last leader has seen"

    def stored(self, seq: int, basis: int) -> None:
        """A round has this place on the log, and was made of all records up to `basis`.  Raises LogAltered."""
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
                f"{altered}: records were lost or changed behind the masters' back. Restore a backup with "
                "`dorm replay import`, or, if this log is the one that you mean, start once with --accept-log"
            )
        _log.error("the log is taken as it is", found=altered)

    async def remember(self, seen: Callable[[], tuple[int, str]]) -> None:
        """Keep the witness up to date until cancelled.  `seen` gives a sequence and the chain there."""
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
            _write(self._witness, Sighting(self._cluster, *seen()))  # Nobody would wait for a thread any more.


async def _reaches(log: EventLog, seq: int) -> bool:
    """Whether there is such a record.  A server that is behind the others may only believe that it knows the end; a reader
    asks again for as long as that may be."""
    try:
        async with contextlib.aclosing(log.read(after=seq)) as batches:
            async for _ in batches:
                break
    except LogDamaged:
        return False
    return True


def _read(path: Path, cluster: str) -> Sighting | None:
    """None where nothing is known of this cluster."""
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
    """Whole or not at all.  A disk that takes nothing is said and is no error."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(msgspec.json.encode(sighting))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("what this master has seen of the log can't be written", file=str(path), reason=str(error))
