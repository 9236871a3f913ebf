"""The records that a node follows: its part, and of the log its own facts.

*A part becomes what is desired*: `agents.desired` says how.

*Keys.*  A node takes the masters' keys from the log. It reads them before it accepts its first part, and again when a
part is not signed by a known key. A part also holds the keys. A node accepts them from a verified part, and from its
first part if it cannot read the log back to its start.

*The desired state on disk* lets a restart read only later records.  It affects how long a start takes, never its
result. It is used only if it is complete, was made by the same sources for this node of this cluster, and the log
still has the record after which it was saved.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec
import structlog

from agents.desired import Desired, known_of, own_subjects, subjects_of_identities
from events import kinds as k
from events.codec import decode
from events.durable import write_whole
from events.identities import FOUNDING, Identities, after, takes
from events.log.records import LogDamaged, LogError, until_answered
from events.log.stores import content_of, identity
from events.parts import PartUnreadable, is_part_signed_by, unpacked
from events.sources import fingerprint
from events.subjects import who_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from agents.runtime.interface import Runtime
    from events.log.interface import EventLog, ReadableLog
    from events.log.records import Record
    from events.log.stores import StoredPart
    from events.parts import NodePart, Signed


# --- whose signature counts -------------------------------------------------------------------------------------------


class Keys:
    """The keys of one cluster's masters, as one node knows them."""

    def __init__(self, log: ReadableLog, cluster: str) -> None:
        self._log = log
        self._cluster = cluster
        self._open = False
        """Whether the cluster is certainly open, and so stays open (`events.identities.takes`)."""

    async def believe(self, part: NodePart, signed: Signed, known: Identities | None) -> bool:
        """Return whether a master of the cluster wrote this part.  `known`: the cluster's identities as far as the node
        knows them, None for none.  Raises LogUnavailable, LogRefused."""
        if part.cluster != self._cluster:
            return False
        if known is not None and _signs(known, part, signed):
            return True
        if known is None and self._open:
            return part.masters is None
        start = await self._log.start()
        on_the_log = await self._read(start)
        if on_the_log is None and known is None:
            if not start:
                self._open = part.seq >= FOUNDING
                return part.masters is None
            on_the_log = known_of(part.masters, part.node)
            if on_the_log is None:
                return True
        return on_the_log is not None and _signs(on_the_log, part, signed)

    async def _read(self, start: int) -> Identities | None:
        """Return the identities that the log states, None if it states none."""
        known: Identities | None = None
        subjects = subjects_of_identities(self._cluster)
        with contextlib.suppress(LogDamaged):
            async with contextlib.aclosing(self._log.read(after=start, subjects=subjects)) as batches:
                async for batch in batches:
                    for record in batch:
                        event, who = decode(record), who_of(record.subject)
                        if isinstance(event, k.OfIdentities) and takes(known, event, who, record.seq) is None:
                            known = after(known, event, who, record.seq)
        return known


def _signs(known: Identities, part: NodePart, signed: Signed) -> bool:
    keys = known.keys_at(part.seq)
    return part.masters is not None and (not keys or is_part_signed_by(signed.document, signed.signature, keys))


# --- the desired state on disk -----------------------------------------------------------------------------------------

DOUBT_S = 30.0


class Doubt:
    """Whether a log is shorter than the part that was read before.  In a cluster, a server that was cut off and briefly
    assumes that it still leads reports that too, so the condition has to hold for half a minute."""

    def __init__(self) -> None:
        self._since: float | None = None

    def clear(self) -> None:
        """The log is long enough after all."""
        self._since = None

    def confirmed(self, now: float) -> bool:
        """Note that the log seems too short at `now` (seconds); return whether that is certain by now."""
        if self._since is None:
            self._since = now
        return now - self._since >= DOUBT_S


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    cluster: str
    node: str
    build: str
    seq: int
    record: str
    """`identity` of the record `seq`."""
    content: str
    body: bytes


# Made here, not on first use: msgspec reads a type's annotations then, and two threads that do so at once crash the process.
_KEPT, _DESIRED = msgspec.msgpack.Decoder(_Kept), msgspec.msgpack.Decoder(Desired)


class DesiredFile:
    """The file; `build` names the sources that made the state.  `load` and `save` block."""

    def __init__(self, path: Path, cluster: str, node: str) -> None:
        self.path = path
        self._cluster = cluster
        self._node = node

    def save(self, desired: Desired, last: Record, build: str) -> None:
        """Save the state; `last` is the last record folded.  Facts in the agent's outbox that were not read back are left
        out: they may never have been stored.  Raises OSError."""
        folded = msgspec.structs.replace(desired, announced=set(), exited=desired.exited - desired.due)
        body = msgspec.msgpack.encode(folded)
        kept = _Kept(self._cluster, self._node, build, last.seq, identity(last), content_of(body), body)
        write_whole(self.path, msgspec.msgpack.encode(kept), sync=False)  # `content` shows if it is torn

    def load(self, build: str) -> tuple[Desired, str] | None:
        """Return the saved state and the identity of its last record; None if it cannot be used."""
        try:
            kept = _KEPT.decode(self.path.read_bytes())
            if (kept.cluster, kept.node, kept.build) != (self._cluster, self._node, build):
                return None
            if kept.content != content_of(kept.body):
                return None
            desired = _DESIRED.decode(kept.body)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return (desired, kept.record) if (desired.node, desired.seq) == (self._node, kept.seq) else None


async def still_there(log: ReadableLog, patterns: Sequence[str], seq: int, record: str) -> bool:
    """Return whether the log still has the last record that was folded.  Raises LogDamaged if it ends before it."""
    end = await log.end()
    if end < seq:
        raise LogDamaged(f"the log ends at record {end}, and this node had read it up to {seq}", code="log.truncated")
    async with contextlib.aclosing(log.read(after=seq - 1, subjects=patterns)) as batches:
        async for batch in batches:
            return batch[0].seq == seq and identity(batch[0]) == record
    return False


# --- following --------------------------------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0
_SAVE_EVERY = 5_000
"""Records folded by this node between two saves of its state."""
_LOOK_S = 10.0
"""Seconds between looks at whether this node waits for a part."""
_WHY_NO_PART = {
    None: "no master leads",
    False: "the leading master writes no parts: it is of a release before 0.6.0, or the cluster has no store for them",
    True: "the leading master has not written one yet, or the server does not let this node read it",
}


class Follower:
    """One node's reader, and keeper of `desired`; `clock` returns UTC ns."""

    def __init__(
        self, log: EventLog, cluster: str, node: str, desired: Desired, root: Path, *, clock: Callable[[], int]
    ) -> None:
        self._log = log
        self._cluster = cluster
        self._node = node
        self._desired = desired
        self._clock = clock
        self._file = DesiredFile(root / "desired", cluster, node)
        self._patterns = own_subjects(cluster, node)
        self._sources = ""
        self._last: Record | None = None
        self._folded_at = 0.0
        self._unsaved = 0
        self._keys = Keys(log, cluster)
        self._believes = False
        """Whether this process has believed a part."""

    async def recall(self, runtime: Runtime) -> None:
        """Start with the state that a previous agent saved, if it belongs to this log.  Raises LogDamaged if the log is not
        the one that the containers of `runtime` followed."""
        self._sources = await asyncio.to_thread(fingerprint, "agents", "events")
        kept = await asyncio.to_thread(self._file.load, self._sources)
        if kept is None:
            return
        desired, record = kept
        doubted = Doubt()
        while True:
            try:
                if not await still_there(self._log, self._patterns, desired.seq, record):
                    return
                break
            except LogDamaged as error:
                if not any(seen.state == "running" for seen in await runtime.list()):
                    return  # a recreated cluster, on a node without remains of the old one
                if doubted.confirmed(asyncio.get_running_loop().time()):
                    raise self._not_this_log(error) from error
                await asyncio.sleep(_AGAIN_S)
        for name in desired.__struct_fields__:
            setattr(self._desired, name, getattr(desired, name))
        _log.debug("continues from the previous fold", node=self._node, seq=desired.seq)

    async def follow(
        self, fold: Callable[[list[Record]], Awaitable[None]], take: Callable[[NodePart], Awaitable[None]]
    ) -> None:
        """Pass each later batch of own facts to `fold`, and each valid part to `take`, until cancelled. Raises
        LogDamaged if the log is not the one followed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_parts(take))
            tasks.create_task(self._say_what_is_missing())
            tasks.create_task(self._follow_log(fold))

    # --- the log --------------------------------------------------------------------------------------------------------

    async def _follow_log(self, fold: Callable[[list[Record]], Awaitable[None]]) -> None:
        doubted = Doubt()
        self._folded_at = asyncio.get_running_loop().time()
        while True:
            try:
                async for batch in self._log.read(after=await self._after(), subjects=self._patterns, follow=True):
                    doubted.clear()
                    await fold(batch)
            except LogDamaged as error:
                if doubted.confirmed(asyncio.get_running_loop().time()):
                    raise self._not_this_log(error) from error
                _log.warning("the log ends too early, looking again", node=self._node, reason=str(error))
                await asyncio.sleep(_AGAIN_S)

    async def _after(self) -> int:
        """Return where to continue reading: archived records are in the part."""
        if self._desired.seq:
            return self._desired.seq
        return await until_answered(self._log.start, f"looking up the log's start for node {self._node}")

    # --- the part -------------------------------------------------------------------------------------------------------

    async def _follow_parts(self, take: Callable[[NodePart], Awaitable[None]]) -> None:
        async for stored in self._log.parts.follow(self._node):
            part = await self._believed(stored)
            if part is not None:
                self._believes = True
                await take(part)

    async def _believed(self, stored: StoredPart) -> NodePart | None:
        """Return the part if a master of this cluster wrote it, None if not."""
        desired = self._desired
        try:
            part, signed = unpacked(stored.body)
        except PartUnreadable as error:
            _log.error("a part can't be read", node=self._node, reason=str(error))
            return None
        if not self._believes and not await self._reaches(part.seq):
            return None
        if not await until_answered(
            lambda: self._keys.believe(part, signed, desired.known),
            f"looking up the masters' keys for node {self._node}",
        ):
            desired.unsigned += 1
            _log.error("a part that no known master signed is not obeyed", node=self._node, seq=part.seq)
            return None
        return part

    async def _reaches(self, seq: int) -> bool:
        """Return whether the log has the record that a part derives from.  A store that outlived its log does not count."""
        doubted = Doubt()
        while (end := await until_answered(self._log.end, f"looking up the log's end for node {self._node}")) < seq:
            if doubted.confirmed(asyncio.get_running_loop().time()):
                _log.error("a part is of another log", node=self._node, seq=seq, end=end)
                return False
            await asyncio.sleep(_AGAIN_S)
        return True

    def taken(self, part: NodePart) -> bool:
        """Make `part` the desired state. Return False if it is older than that."""
        taken = self._desired.install(part)
        if taken:
            self._folded_at = asyncio.get_running_loop().time()
            self._unsaved += 1
        return taken

    async def _say_what_is_missing(self) -> None:
        """Log why this node waits for a part, once for each reason, until it has one."""
        logged = ""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._desired.fresh:
                logged = ""
                continue
            why = ""
            with contextlib.suppress(LogError):
                why = _WHY_NO_PART[await self._log.parts.written()]
            if why and why != logged:
                _log.warning("this node waits for its part, and starts and stops nothing", node=self._node, reason=why)
                logged = why

    # --- what is kept ---------------------------------------------------------------------------------------------------

    def folded(self, batch: list[Record]) -> None:
        """Note that `batch` is part of `desired` now.  Blocks for the time of a small file, now and then."""
        self._last, self._folded_at = batch[-1], asyncio.get_running_loop().time()
        self._unsaved += len(batch)
        if self._unsaved >= _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Save the folded state.  Blocks for the time of a small file."""
        if self._last is None or not self._unsaved:
            return
        try:
            self._file.save(self._desired, self._last, self._sources)
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("what was folded could not be kept", node=self._node, reason=str(error))
        self._unsaved = 0

    def log_time(self) -> int:
        """Estimate log time now (UTC ns), since this machine's clock may be off by hours."""
        since = asyncio.get_running_loop().time() - self._folded_at
        return self._desired.time + int(since * 1e9) if self._desired.time else self._clock()

    def _not_this_log(self, error: LogDamaged) -> LogDamaged:
        self._last = None  # so that its folded state is not saved
        return LogDamaged(
            f"{error}: this is not the log that node {self._node} has followed, so nothing was started or stopped; put "
            f"the log back, or, if it was recreated on purpose, stop the node's containers, remove {self._file.path} and "
            "start the agent again",
            code="log.another",
        )
