"""An agent's folded state, kept in its folder, so that a restart reads only later records.

It affects how long a start takes, never its result. It is used only if it is complete, was folded by the same sources
for this node of this cluster, and the log still has the record after which it was saved.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from agents.desired import Desired
from events.durable import write_whole
from events.log.records import LogDamaged
from events.log.stores import content_of, identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from events.log.interface import ReadableLog
    from events.log.records import Record


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
    """The file; `build` names the sources that folded the state.  `load` and `save` block."""

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
