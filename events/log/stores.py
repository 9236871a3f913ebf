"""What a cluster keeps next to its log: shipped folders, snapshots, progress and the nodes' parts.

Each store is an interface, with a store in memory for tests and simulations, and a null object for logs without such a
store.  The stores of a cluster are in `events.nats.stores` and `events.nats.parts_store`.

*Shipped folders* (`Files`) are blobs by tenant and hash (`events.workdir`).  Each tenant has blobs of its own, so that
a server can keep tenants from each other's.  A name identifies the content, so a blob is written once, and again only
to renew its time.  A full store refuses; no stored blob is dropped for a later one.  Each tenant has a quota
(`Limits.quota_of`).  Clients keep to it (`dorm.workdir.shipping`), and the leading master removes what another program
has written beyond it (`dorm.workdir.keeping`).  Tenants may write and not remove, which servers can't allow for single
subjects: a tenant that gives up a blob writes an empty one in its place, which counts as none, and masters remove it.

*Snapshots* of the state bound how much must be folded to start, or to reach a moment of the past.  Bodies are opaque
here (`dorm.core` makes and reads them) and are stored under their own hash, so a body that differs from what was put
is never used.  A snapshot is never a source of truth: a reader checks it, and folds from the start if it does not fit.
Losing all snapshots costs time and nothing else.

*Progress* is what apps report between two marks.  The log has the reports that decisions and forecasts depend on: the
first of each generation, the last, and marks about once a minute.  The reports in between are records of a separate
stream with its own sequences.  It drops the oldest ones and no decision depends on it, so a missing or incomplete
stream affects only curves.  A reader that wants all of them reads both, in the order of their times
(`events.log.interface.Combined`).

*Parts* are the last part of each node.  A write of a part succeeds only if its writer knows the part that it replaces.
A deposed master does not know what its successor wrote, so it can't overwrite it.  Bodies are bytes; `events.parts`
gives them a meaning.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from events import limits
from events.log.records import LogRefused, Overtaken, Record, on_subjects
from events.subjects import PROGRESS, matches, token
from events.workdir import Limits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence


# --- shipped folders --------------------------------------------------------------------------------------------------

EVERY_TENANT = "*"


class StoredBlob(NamedTuple):
    """A blob of the store, without its content."""

    tenant: str
    """Tenant as a token of a subject."""
    name: str
    size: int
    """Bytes of its content as it is stored; 0 for a blob that its tenant has given up."""
    time: int
    """UTC nanoseconds, when it was stored last."""
    seq: int
    """Changes with every write."""
    head: int = 0
    """Bytes that the store keeps in addition to the content."""

    @property
    def takes(self) -> int:
        """Bytes that count against its tenant's quota."""
        return self.size + self.head


class Files(Protocol):
    """Blobs to read and to write.  Each method raises LogUnavailable, and LogRefused if the cluster has no such store or
    forbids it."""

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        """Store a blob, or renew its time. Raises LogFull if there is no room."""
        ...

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        """Return a blob as it is stored, and when that was (UTC ns); None if it is not there.  A server that is a moment
        behind may not have one yet that was stored just now."""
        ...

    async def listed(self, tenant: str = EVERY_TENANT) -> list[StoredBlob]:
        """Return all blobs of a tenant, or of all, sorted by tenant and name; also those that were given up."""
        ...

    async def remove(self, blob: StoredBlob) -> None:
        """Remove a blob, unless it was stored again since it was listed.  For masters and operators."""
        ...

    async def give_up(self, blob: StoredBlob) -> None:
        """Empty a blob, unless it was stored again since it was listed.  For its tenant."""
        ...

    async def limits(self) -> Limits:
        """Return what the cluster takes."""
        ...

    async def set_limits(self, limits: Limits) -> None: ...


class NoFiles(Files):
    """For logs that have none."""

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        raise _no_store()

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        raise _no_store()

    async def listed(self, tenant: str = EVERY_TENANT) -> list[StoredBlob]:
        raise _no_store()

    async def remove(self, blob: StoredBlob) -> None:
        raise _no_store()

    async def give_up(self, blob: StoredBlob) -> None:
        raise _no_store()

    async def limits(self) -> Limits:
        return Limits()

    async def set_limits(self, limits: Limits) -> None:
        raise _no_store()


def _no_store() -> LogRefused:
    return LogRefused("this log keeps no shipped folders", code="files.no_store")


class MemoryFiles(Files):
    """Blobs within one process, for tests."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stored: dict[tuple[str, str], tuple[StoredBlob, bytes]] = {}
        self._limits = Limits()
        self._seq = 0

    async def put(self, tenant: str, name: str, body: bytes) -> None:
        self._seq += 1
        blob = StoredBlob(token(tenant), name, len(body), self._clock(), self._seq)
        self._stored[blob.tenant, name] = blob, body

    async def get(self, tenant: str, name: str) -> tuple[bytes, int] | None:
        stored = self._stored.get((token(tenant), name))
        return (stored[1], stored[0].time) if stored is not None and stored[1] else None

    async def listed(self, tenant: str = EVERY_TENANT) -> list[StoredBlob]:
        wanted = {token(tenant)} if tenant != EVERY_TENANT else {owner for owner, _ in self._stored}
        return [blob for (owner, _), (blob, _) in sorted(self._stored.items()) if owner in wanted]

    async def remove(self, blob: StoredBlob) -> None:
        stored = self._stored.get((blob.tenant, blob.name))
        if stored is not None and stored[0].seq == blob.seq:
            del self._stored[blob.tenant, blob.name]

    async def give_up(self, blob: StoredBlob) -> None:
        stored = self._stored.get((blob.tenant, blob.name))
        if stored is not None and stored[0].seq == blob.seq:
            await self.put(blob.tenant, blob.name, b"")

    async def limits(self) -> Limits:
        return self._limits

    async def set_limits(self, limits: Limits) -> None:
        self._limits = limits


# --- snapshots --------------------------------------------------------------------------------------------------------

_encode = msgspec.msgpack.Encoder().encode


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot's metadata."""

    seq: limits.Sequence
    """The snapshot holds the state after this record."""
    time: limits.Moment
    """The state's log time, UTC nanoseconds."""
    core: limits.Number
    """Version of the core that folded it (`dorm.core.state.SCHEMA`): another build may fold the same log to another
    state."""
    build: str = ""
    """`events.sources.fingerprint` of the build that folded it.  Another build does not use it, even with the same core."""
    digest: str
    """The state's digest, as decisions carry it."""
    content: str
    """`content_of` the body, which is its address."""
    size: limits.Number
    """The body's size in bytes."""
    chain: str = ""
    """The log's hash chain after `seq`, so that a reader that starts here can continue it; empty if unknown."""
    record: str = ""
    """`identity` of the record `seq`.  A log that was recreated, or restored from a copy and then extended, has another
    record there, and the snapshot does not belong to it.  Empty if the store can't outlive its log."""
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    """Set by a rotation, which is about to remove the records that lead here: only a snapshot before the log's start is
    dropped all the same."""


def content_of(body: bytes) -> str:
    """Return the address of a body: 64 hex digits."""
    return hashlib.blake2b(body, digest_size=32).hexdigest()


def identity(record: Record) -> str:
    """Return a hash of the whole record: 32 hex digits."""
    return hashlib.blake2b(_encode(record), digest_size=16).hexdigest()


SNAPSHOT_EVERY = 10_000
"""Records between two snapshots.  Reading this many from a server and folding them takes about a tenth of a second, so any
moment is shown at once; a log of ten million then has 1,000 snapshots, about as many as a store keeps."""
MOST = 1024
"""Snapshots kept for one log.  Their list is one message, and has to stay below the size that every server accepts."""
MOST_BYTES = 256 * 2**20
"""Limit of the sum of their bodies."""


def surplus(
    infos: Sequence[SnapshotInfo], *, start: int = 0, kept: Collection[int] = frozenset()
) -> list[SnapshotInfo]:
    """Return which of a log's snapshots, given in order of sequence, to drop.  The last is the newest and stays, and so do
    those at the sequences `kept` and those that are pinned.  Those before `start` are of no use: the stream begins there.

    A snapshot goes if its neighbors are no more than `SNAPSHOT_EVERY` apart without it.  If there are still too many,
    those of other builds go first, oldest first; then the one whose removal leaves the smallest gap relative to its
    distance from the end.  So snapshots are dense near the end and sparse long ago.
    """
    own: list[SnapshotInfo] = []
    others: list[SnapshotInfo] = []
    early = [info for info in infos[:-1] if info.seq < start and info.seq not in kept]
    for info in infos:
        if info.seq in kept or info.pinned or info in early:
            continue
        (own if (info.core, info.build) == (infos[-1].core, infos[-1].build) else others).append(info)
    dropped: list[SnapshotInfo] = early
    index = 0
    while index < len(own) - 1:
        if _gap_without(own, index) <= SNAPSHOT_EVERY:
            dropped.append(own.pop(index))
        else:
            index += 1
    size = sum(info.size for info in (*own, *others))
    while len(own) + len(others) > MOST or size > MOST_BYTES:
        if others:
            gone = others.pop(0)
        elif len(own) > 1:
            gone = own.pop(min(range(len(own) - 1), key=partial(_missed, own)))
        else:
            break
        dropped.append(gone)
        size -= gone.size
    return dropped


def _gap_without(infos: Sequence[SnapshotInfo], index: int) -> int:
    return infos[index + 1].seq - (infos[index - 1].seq if index else 0)


def _missed(infos: Sequence[SnapshotInfo], index: int) -> float:
    return _gap_without(infos, index) / (infos[-1].seq - infos[index].seq + SNAPSHOT_EVERY)


class ReadableSnapshots(Protocol):
    """The snapshots of one log.  Its methods raise LogUnavailable and LogRefused as the log's do."""

    async def infos(self) -> Sequence[SnapshotInfo]:
        """Return all snapshots in order of sequence."""
        ...

    async def get(self, info: SnapshotInfo) -> bytes | None:
        """Return the body; None if it is gone or differs from what was put."""
        ...

    async def fetch(self, info: SnapshotInfo) -> tuple[SnapshotInfo, bytes] | None:
        """Return the body with all that is known of it.  A store that makes snapshots when they are asked for knows neither
        digest nor size before."""
        body = await self.get(info)
        return None if body is None else (info, body)


class Snapshots(ReadableSnapshots, Protocol):
    """A store of one log's snapshots."""

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        """Store it durably: once listed, it can be read.  A snapshot of the same sequence is replaced, unless it is
        pinned and this one is not; then this one is not stored."""
        ...

    async def drop(self, info: SnapshotInfo) -> None:
        """Remove it; a missing one is not an error. A newer one that has replaced it stays: the decision was about
        the old one."""
        ...


def yields_to(info: SnapshotInfo, there: SnapshotInfo | None) -> bool:
    """Return whether a snapshot is not stored because of the one that is there at its sequence."""
    return there is not None and bool(there.pinned) and not info.pinned


class NoSnapshots(ReadableSnapshots):
    """The snapshots of a log that has none."""

    async def infos(self) -> Sequence[SnapshotInfo]:
        return ()

    async def get(self, info: SnapshotInfo) -> bytes | None:
        return None


class MemorySnapshots(Snapshots):
    """Snapshots in memory."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[SnapshotInfo, bytes]] = {}

    async def put(self, info: SnapshotInfo, body: bytes) -> None:
        if not yields_to(info, self._kept.get(info.seq, (None,))[0]):
            self._kept[info.seq] = info, bytes(body)

    async def infos(self) -> Sequence[SnapshotInfo]:
        return [self._kept[seq][0] for seq in sorted(self._kept)]

    async def get(self, info: SnapshotInfo) -> bytes | None:
        _, body = self._kept.get(info.seq, (info, b""))
        return body if content_of(body) == info.content else None

    async def drop(self, info: SnapshotInfo) -> None:
        if info.seq in self._kept and self._kept[info.seq][0] == info:
            del self._kept[info.seq]


# --- progress ---------------------------------------------------------------------------------------------------------

EVERY_APP = "*"
"""Stands for every app."""
MOST_KEPT = 10_000
"""Records that a stream in memory keeps."""


class ReadableProgress(Protocol):
    """The stream as readers see it.  Sequences ascend, with gaps where records are forgotten or of other apps."""

    def read(self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False) -> AsyncGenerator[list[Record], None]:
        """Yield batches of records with `seq > after`, in order; of one app, by its id, or of every app.  Without `follow` it
        ends at the stream's end as of the start.  Raises LogUnavailable, LogRefused (with `follow` only once the connection is
        closed, or if the identity may not read it)."""
        ...

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        """Return the newest record of each app, or of one.  Raises LogUnavailable, LogRefused."""
        ...

    async def end(self) -> int:
        """Return the sequence of the last record, 0 for none.  Raises LogUnavailable, LogRefused."""
        ...

    async def at_time(self, time: int) -> int:
        """Return the sequence of the last record before the first one that is later than this time (UTC ns), 0 for none.
        Raises LogUnavailable, LogRefused."""
        ...


class Progress(ReadableProgress, Protocol):
    """The stream as agents see it."""

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        """Store one report.  Raises LogUnavailable, LogRefused: it need not be tried again, since the next one is newer."""
        ...


class NoProgress(Progress):
    """A log without such a stream."""

    async def read(
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        del after, app
        if follow:
            await asyncio.Event().wait()
        return
        yield []

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        return []

    async def end(self) -> int:
        return 0

    async def at_time(self, time: int) -> int:
        return 0

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        raise LogRefused("this log has no stream of progress", code="log.no_progress")


class MemoryProgress(Progress):
    """The stream in memory.  `clock` returns UTC ns."""

    def __init__(self, clock: Callable[[], int], records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = list(records)
        self._ids = {record.msg_id: None for record in self.records}
        self._clock = clock
        self._grown = asyncio.Condition()

    async def put(self, subject: str, body: bytes, *, msg_id: str = "", timeout: float = 5.0) -> None:
        if not matches(of_app(EVERY_APP), subject):
            raise LogRefused(f"{subject[:200]!r} is not a subject of progress", code="log.subject.malformed")
        async with self._grown:
            if msg_id and msg_id in self._ids:
                return
            self._ids[msg_id] = None
            last = self.records[-1] if self.records else None
            time = max(self._clock(), last.time if last is not None else 0)
            self.records.append(Record(last.seq + 1 if last is not None else 1, time, subject, bytes(body), msg_id))
            del self.records[:-MOST_KEPT]
            self._grown.notify_all()

    async def read(
        self, *, after: int = 0, app: str = EVERY_APP, follow: bool = False
    ) -> AsyncGenerator[list[Record], None]:
        pattern = of_app(app)
        while True:
            records = [record for record in self.records if record.seq > after]
            if records:
                after = records[-1].seq
                if wanted := on_subjects(records, [pattern]):
                    yield wanted
            if not follow:
                return
            async with self._grown:
                while not self.records or self.records[-1].seq <= after:
                    await self._grown.wait()

    async def newest(self, app: str = EVERY_APP) -> list[Record]:
        pattern = of_app(app)
        by_subject = {record.subject: record for record in self.records if matches(pattern, record.subject)}
        return sorted(by_subject.values(), key=lambda record: record.seq)

    async def end(self) -> int:
        return self.records[-1].seq if self.records else 0

    async def at_time(self, time: int) -> int:
        return max((record.seq for record in self.records if record.time <= time), default=0)


def of_app(app: str) -> str:
    """Return the pattern of an app's subjects, of any cluster: a stream is of one."""
    return f"dorm.*.{PROGRESS}.*.{app if app == EVERY_APP else token(app)}"


async def upto(progress: ReadableProgress, time: int, since: int) -> list[Record]:
    """Return the records that were stored after one time and up to another (UTC ns)."""
    records: list[Record] = []
    async with contextlib.aclosing(progress.read(after=await progress.at_time(since))) as batches:
        async for batch in batches:
            records += [record for record in batch if record.time <= time]
            if batch[-1].time > time:
                break
    return records


# --- parts ------------------------------------------------------------------------------------------------------------


class StoredPart(NamedTuple):
    """A part as the store has it."""

    node: str
    """The node's name as a token of a subject."""
    revision: int
    """Changes with every write."""
    body: bytes
    """b"" if it is incomplete because its writer stopped in the middle."""


class ReadableParts(Protocol):
    """Parts to read."""

    async def all(self) -> list[StoredPart]:
        """Return the parts of all nodes, sorted by node.  Raises LogUnavailable, LogRefused."""
        ...

    async def last(self, node: str) -> StoredPart | None:
        """Return the part of a node, None if it has none.  Raises LogUnavailable, LogRefused."""
        ...

    def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        """Yield a node's present part and then each complete replacement, without end and through outages; if many
        come at once, only the last ones.  Raises LogClosed."""
        ...

    async def written(self) -> bool | None:
        """Return whether the leading master writes parts; None if that is unknown. Raises LogUnavailable."""
        ...


class Parts(ReadableParts, Protocol):
    """Parts to read and to write."""

    async def put(self, node: str, body: bytes, expected: int) -> int:
        """Store a node's part in place of the one with revision `expected` (0: none yet).  Return the new revision.  Raises
        Overtaken if the store has another one, LogUnavailable if it is unknown whether it was stored, LogRefused."""
        ...

    def writes(self, parts: bool) -> None:
        """Say whether this process writes parts while it leads (`written`)."""


class NoParts(Parts):
    """For logs that have none."""

    async def all(self) -> list[StoredPart]:
        return []

    async def last(self, node: str) -> StoredPart | None:
        return None

    async def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        await asyncio.Event().wait()
        yield StoredPart(node, 0, b"")

    async def written(self) -> bool | None:
        return False

    async def put(self, node: str, body: bytes, expected: int) -> int:
        raise LogRefused("this log keeps no parts of nodes", code="part.no_store")

    def writes(self, parts: bool) -> None:
        return None


class MemoryParts(Parts):
    """Parts within one process, for tests."""

    def __init__(self) -> None:
        self.stored: dict[str, StoredPart] = {}
        self._written = False
        self._revision = 0
        self._changed = asyncio.Condition()

    async def all(self) -> list[StoredPart]:
        return [part for _, part in sorted(self.stored.items())]

    async def last(self, node: str) -> StoredPart | None:
        return self.stored.get(token(node))

    async def follow(self, node: str) -> AsyncGenerator[StoredPart, None]:
        after = 0
        while True:
            async with self._changed:
                while self._revision_of(node) <= after:
                    await self._changed.wait()
                part = self.stored[token(node)]
            after = part.revision
            yield part

    def _revision_of(self, node: str) -> int:
        part = self.stored.get(token(node))
        return part.revision if part is not None else 0

    async def written(self) -> bool | None:
        return self._written

    async def put(self, node: str, body: bytes, expected: int) -> int:
        async with self._changed:
            if self._revision_of(node) != expected:
                raise Overtaken(f"the part of {node} is at {self._revision_of(node)}, not at {expected}")
            self._revision += 1
            self.stored[token(node)] = StoredPart(token(node), self._revision, bytes(body))
            self._changed.notify_all()
            return self._revision

    def writes(self, parts: bool) -> None:
        self._written = parts
