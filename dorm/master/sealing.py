"""Sealing the log, the master's key, and checks that the log is still what was read of it.

    sign_round  a round with its signature, if the cluster names its masters' keys
    Sealer      follows every record, decides when to seal and what; no I/O
    open_key    the key of this master, made at its first start (read_key: an existing one)

A seal is due once `MOST_RECORDS` records are unsealed, or `LONGEST_NS` after the first of them, or on request
(`SealRequested`).  Seals themselves don't count, so an idle log does not grow.

Masters do not lead on a log that was truncated or changed unobserved.  They learn of it from:

    server     the log's server reports that it lost records, or allows altering them (`EventLog.check`)
    seals      a seal does not fit the records before it
    snapshots  one names a record that does not exist: the log was longer
    witness    a small file beside the master's key: a sequence and the log's hash chain there, written from time to time and
               at the end.  It may be old, but is never ahead of what was read
    lease      the same from the last leader, several times per lease duration, visible to all masters (`dorm.master.lease`)
    readers    one that reopens finds another record in place of the last one it had read (`ReadableLog.read`)

A missing or unreadable witness proves nothing.

    KeyFileError   the key can't be used: the message says why, and never holds any of it
    LogAltered     records were lost or changed; the message says what to do
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections import deque
from typing import TYPE_CHECKING

import msgspec
import structlog

from events.chain import START, Chain, KeyUnusableError, SealKey, new_seed, signed_round
from events.durable import write_whole
from events.errors import DormError
from events.kinds import LogSealed, Round, SealRequested
from events.log.records import LogDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from events.identities import Identities
    from events.kinds import Event
    from events.log.interface import EventLog, ReadableLog
    from events.log.records import Record


# --- seals ------------------------------------------------------------------------------------------------------------

MOST_RECORDS = 1000
LONGEST_NS = 60_000_000_000
_REMEMBERED = 4096
"""Records between a seal's basis and itself; a seal that is stored later is not compared here."""
_LARGEST_KEY = 1000
"""Bytes; a longer file is not a key."""


class KeyFileError(DormError):
    """The file can't be read, can be read by others, or holds no key."""

    code = "key.unreadable"


class Sealer:
    """One master's view of what is sealed.  Without a key it only keeps the chain.

    It starts where the chain is known: at the start of the log, or after the record of a snapshot that holds the chain."""

    def __init__(self, cluster: str, key: SealKey | None, seq: int = 0, chain: str = "", *, renamed: int = 0) -> None:
        """`renamed`: up to this sequence, the seals are those of a cluster of another name (`ReadableLog.renamed_upto`)."""
        self._cluster = cluster
        self._key = key
        self._chain = Chain(seq, bytes.fromhex(chain) if chain else START)
        self._renamed = renamed
        self._after = seq
        self._unsealed = 0
        """Records since the last seal that are not seals."""
        self._since = 0
        """Log time of the first of them."""
        self._is_requested = False
        self._recent = deque([self._chain.value], _REMEMBERED)
        """The chain after each of the most recent records."""
        self.misfit = 0
        """Sequence of the first seal that does not match the records before it, which have been changed since. 0 for
        none."""

    @property
    def public(self) -> str:
        """The key's public half, '' without a key."""
        return self._key.public if self._key else ""

    @property
    def chain(self) -> str:
        """The chain after the last record that was taken, in hex as snapshots keep it."""
        return self._chain.value.hex()

    def take(self, record: Record, event: Event) -> None:
        """Add the next record and its decoded event."""
        seals = [fact for fact in event.events if isinstance(fact, LogSealed)] if isinstance(event, Round) else []
        for seal in seals if record.seq > self._renamed else ():
            back = record.seq - seal.upto
            if not self.misfit and 0 < back <= len(self._recent) and self._recent[-back].hex() != seal.chain:
                self.misfit = record.seq
        self._chain.follow(record)
        self._recent.append(self._chain.value)
        if seals:
            self._sealed(record, max(seal.upto for seal in seals))
            return
        self._unsealed += 1
        self._since = self._since or record.time
        self._is_requested = self._is_requested or isinstance(event, SealRequested)

    def _sealed(self, record: Record, upto: int) -> None:
        """Records between a seal's basis and itself wait for the next seal."""
        self._after = max(self._after, min(upto, record.seq - 1))
        self._chain.forget(self._after)
        self._unsealed = record.seq - 1 - self._after
        self._since = record.time if self._unsealed else 0
        self._is_requested = False

    def due(self) -> int | None:
        """Return when (UTC ns) the next seal is due, 0 for now, None if there is nothing to seal."""
        if self._key is None or not self._unsealed:
            return None
        return 0 if self._is_requested or self._unsealed >= MOST_RECORDS else self._since + LONGEST_NS

    def seal(self, epoch: int) -> LogSealed:
        """Return a seal of all records that were taken."""
        assert self._key is not None
        return self._key.seal(self._cluster, epoch, self._chain, self._after)


def sign_round(key: SealKey | None, known: Identities | None, event: Round, previous: int) -> Round | None:
    """Return the round to store after the record `previous` of its subject; None if it needs the signature of another
    key."""
    keys = known.keys_at(event.basis) if known is not None else []
    if not keys:
        return event
    return signed_round(key, event, previous) if key is not None and key.public in keys else None


def open_key(path: Path) -> SealKey:
    """Return the key in this file, which is created (mode 0600) if it does not exist.  Raises KeyFileError."""
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        raise KeyFileError(f"key {path}: {error.strerror}") from None
    return read_key(path)


def read_key(path: Path) -> SealKey:
    """Return the key in an existing file.  Raises KeyFileError."""
    try:
        return SealKey(_read(path))
    except KeyUnusableError as error:
        raise KeyFileError(f"key {path}: {error}", code=error.code) from None
    except FileNotFoundError:
        raise KeyFileError(
            f"there is no key {path}; a master makes one at its first start, `dorm up --data DIR` in DIR/{path.name}",
            code="key.not_found",
        ) from None
    except OSError as error:
        raise KeyFileError(f"key {path}: {error.strerror}") from None


def pseudonyms_of(key: SealKey) -> bytes:
    """Return the secret from which pseudonyms in users' views of the log are made: the same wherever the masters' key is, and
    unknown to users."""
    return key.sign(b"the secret of pseudonyms in views of the log")


def _make(path: Path) -> None:
    """Write a new key atomically, never over one that another master has just made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, new_seed() + b"\n", mode=0o600, replace=False)


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as reader:
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise KeyFileError(f"key {path} is not a file", code="key.not_a_file")
        if status.st_mode & 0o077:
            raise KeyFileError(
                f"key {path} can be read by others; `chmod 600 {path}`, or move it away for a new one",
                code="key.too_open",
            )
        return reader.read(_LARGEST_KEY).strip()


# --- whether the log is the same --------------------------------------------------------------------------------------

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
        """Sightings of records that are not yet folded, in order."""
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
        sightings = [Sighting(self._cluster, *leader)]
        if self._witness is not None and (own := await asyncio.to_thread(_read_place, self._witness, self._cluster)):
            sightings.append(own)
        self._sightings = sorted((each for each in sightings if each.seq), key=lambda each: each.seq)
        end = await self.reach(log, max([*snapshots, *(sighting.seq for sighting in self._sightings)], default=0))
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


def _read_place(path: Path, cluster: str) -> Sighting | None:
    """Return the witness, None if it holds nothing about this cluster."""
    try:
        with path.open("rb") as file:
            sighting = msgspec.json.decode(file.read(_LARGEST), type=Sighting)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _log.warning("what this master has seen of the log can't be read", file=str(path), reason=str(error))
        return None
    return sighting if sighting.cluster == cluster and sighting.seq > 0 else None


def _write(path: Path, sighting: Sighting) -> None:
    """Write the witness atomically.  A failing disk is logged and is not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(sighting))
    except OSError as error:
        _log.warning("what this master has seen of the log can't be written", file=str(path), reason=str(error))
