"""The masters' lease on NATS JetStream: one key in a KV bucket.

    bucket DORM_leadership-<cluster>, key master     {"holder": "lab1-6c0f", "ttl_s": 2.0, "seq": 1234, "chain": "…",
                                                      "parts": true};
                                                     "" as holder: given back

Each change names the revision it replaces, so of two writers one is refused.  The bucket has no TTL: that would end a lease
whenever a server takes a moment to change its own leader, and the waiting masters measure time themselves.  It is stored on
disk, since a restarting server must not turn every master into a candidate.

Any key-value client can read the key and delete it.  Dorm does not use the client of nats-py (`nats.js.kv.KeyValue`, as
of 2.16), which would lose these guarantees:

* A look is answered by the stream's leader.  `KeyValue.get` sends a direct get wherever the bucket allows those, as this one
  does, and any replica answers, however far it lags.  A master that starts would compare the log with an earlier sighting of
  the last leader, and miss that the servers have replaced records since then.  A leader whose renewal was stored without an
  answer would read another master's earlier lease and depose itself.  Taking over stays safe: it names the revision.
* A lease is stored in this bucket or not at all.  `KeyValue.update` does not name the stream that it expects, so whatever
  stream has the key's subject would accept it.
* `written_at` is the server's time.  `KeyValue.get` drops it (`created` is None).
* The server never removes a lease.  A bucket of `create_key_value` allows messages with a TTL, which any writer could use.

It would save no code either: values, errors and lost connections need the same handling around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from nats.js.api import DiscardPolicy, StorageType, StreamConfig

from events.limits import Sequence
from events.log.leadership import Held, Leadership
from events.log.records import LogDamaged, LogUnavailable, Overtaken
from events.nats.link import as_log_errors
from events.nats.reader import last_record
from events.nats.settings import LARGEST_LEASE

if TYPE_CHECKING:
    from events.log.records import Record
    from events.nats.link import Link

_TIMEOUT_S = 5.0
_UNREADABLE = "?"
_LONGEST_S = 3600.0


class _Value(msgspec.Struct, frozen=True):
    holder: str
    ttl_s: float
    seq: Sequence = 0
    chain: Annotated[str, msgspec.Meta(max_length=200)] = ""
    parts: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Value).decode


def _bucket(cluster: str) -> str:
    return f"DORM_leadership-{cluster}"


def lease_subject(cluster: str) -> str:
    """Return the subject of the lease, on which each change of it is published."""
    return f"$KV.{_bucket(cluster)}.master"


def leadership_config(cluster: str) -> StreamConfig:
    """Return the configuration of a KV bucket with a history of one, so that `nats kv get` shows the leader."""
    return StreamConfig(
        name=f"KV_{_bucket(cluster)}",
        subjects=[f"$KV.{_bucket(cluster)}.>"],
        storage=StorageType.FILE,
        max_msgs_per_subject=1,
        discard=DiscardPolicy.NEW,
        allow_direct=True,
        max_msg_size=LARGEST_LEASE,
        allow_rollup_hdrs=True,
        deny_delete=True,
    )


class JetStreamLeadership(Leadership):
    """The lease of one cluster's masters."""

    def __init__(self, link: Link, cluster: str) -> None:
        self.writes_parts = True
        """Whether this process writes the nodes' parts while it leads."""
        self._other: JetStreamLeadership | None = None
        self._link = link
        self._stream = f"KV_{_bucket(cluster)}"
        self._key = lease_subject(cluster)

    def stand_in_for(self, other: JetStreamLeadership) -> JetStreamLeadership:
        """Return this lease, which from now on says the same as `other` about the nodes' parts: both are of one master."""
        self._other = other
        return self

    async def replicas(self) -> int:
        """Return how many servers hold it, which decides how long it may be without an answer."""
        with as_log_errors("looking up the lease of the masters"):
            config = (await self._link.jetstream(timeout=_TIMEOUT_S).stream_info(self._stream)).config
        return int(config.num_replicas or 1)

    async def written_at(self) -> int:
        """Return when it was last taken, renewed or given back, UTC ns by the server's clock; 0 if it never was."""
        record = await self._record()
        return record.time if record is not None else 0

    async def _record(self) -> Record | None:
        try:
            return await last_record(self._link, self._stream, self._key, _TIMEOUT_S)
        except LogDamaged:  # No such bucket: no master of this build has opened this cluster.
            return None

    async def look(self) -> Held | None:
        record = await self._record()
        if record is None:
            return None
        try:
            value = _decode(record.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            value = _Value(_UNREADABLE, 0.0)
        # Whatever another client wrote there, the lease must expire eventually.
        ttl_s = value.ttl_s if 0.0 <= value.ttl_s <= _LONGEST_S else _LONGEST_S
        return Held(value.holder, ttl_s, record.seq, value.seq, value.chain, value.parts)

    async def take(self, holder: str, ttl_s: float, over: Held | None) -> Held | None:
        try:
            if over is None:
                return await self._write(_Value(holder, ttl_s), 0)
            return await self._write(_Value(holder, ttl_s, over.seq, over.chain), over.revision)
        except Overtaken:
            return None

    async def renew(self, held: Held) -> Held | None:
        return await self._replace(held, held.holder)

    async def give_back(self, held: Held) -> None:
        await self._replace(held, "")

    async def _replace(self, held: Held, holder: str) -> Held | None:
        """Write a new revision, or return None if another master holds the lease.  A changed revision may be our own write
        whose answer was lost: then the next try builds on it."""
        last: Held | None = held
        for _ in range(2):
            if last is None or last.holder != held.holder:
                return None
            try:
                return await self._write(_Value(holder, held.ttl_s, held.seq, held.chain), last.revision)
            except Overtaken:
                last = await self.look()
        raise LogUnavailable("the lease of the masters keeps changing; try again", code="log.contended")

    async def _write(self, value: _Value, revision: int) -> Held:
        """Write the key.  Raises Overtaken if it has another revision (0: it does not exist)."""
        headers = {"Nats-Expected-Stream": self._stream, "Nats-Expected-Last-Subject-Sequence": str(revision)}
        value = msgspec.structs.replace(value, parts=(self._other or self).writes_parts)
        with as_log_errors("writing the lease of the masters"):
            ack = await self._link.jetstream().publish(self._key, _encode(value), timeout=_TIMEOUT_S, headers=headers)
        return Held(value.holder, value.ttl_s, ack.seq, value.seq, value.chain, value.parts)
