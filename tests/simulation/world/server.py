"""The NATS server's data, and its failures: the truth behind every simulated connection.

An append is written, and a moment later it is durable: then it is acknowledged and readers see it, as with
`sync_interval: always` or on a quorum.  A killed server keeps everything durable, and a random part of what was only written.
Heartbeats, the lease, snapshots and the ids of the duplicate window survive with it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from events.log.leadership import Held
from events.log.records import Appended, Archived, LogDamaged, LogFull, LogRefused, LogUnavailable, Overtaken, Record
from events.log.stores import MemorySnapshots, StoredPart
from events.quantities import SECOND
from events.subjects import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.simulation.world.world import World

WINDOW_S = 600.0
MAX_PAYLOAD = 2**20
"""The largest message in bytes, as by default."""
HEADER_ROOM = 1024
SYNC_S = (0.0002, 0.003)


class Subscription:
    """One reader of the log, on the server's side.  `deliver` sends records to the reader."""

    def __init__(self, after: int, subjects: Sequence[str], deliver: Callable[[list[Record]], None]) -> None:
        self.after = after
        self.deliver = deliver
        self._subjects = subjects
        self._known: dict[str, bool] = {}

    def wanted(self, records: Iterable[Record]) -> list[Record]:
        return [record for record in records if self._wants(record.subject)] if self._subjects else list(records)

    def _wants(self, subject: str) -> bool:
        if subject not in self._known:
            self._known[subject] = any(matches(pattern, subject) for pattern in self._subjects)
        return self._known[subject]


class Server:
    """The server without a network.  Requests are answered through a `reply` with a result or an error."""

    def __init__(self, world: World) -> None:
        self.records: list[Record] = []
        self.purged = 0
        """Records up to this sequence are in `records`, which is the truth, but are no longer delivered."""
        self.on_purge: list[Callable[[int], None]] = []
        """Told of the last sequence that is about to be removed."""
        self.durable = 0
        """The sequence up to which nothing is ever lost, and which readers see."""
        self.acknowledged = 0
        self.up = True
        self.full = False
        """No room left: nothing more is stored."""
        self.max_payload = MAX_PAYLOAD
        self.dedupe = True
        self.fence = True
        self.lose_acknowledged = 0
        """Broken on purpose: so many durable records are lost at the next crash."""
        self.on_record: list[Callable[[Record], None]] = []
        """Told of each record, once it is durable."""
        self.on_append: list[Callable[[str, bytes, str], None]] = []
        """Told of each append right before the server looks at it: subject, body and message id."""
        self.on_crash: list[Callable[[], None]] = []
        self.on_up: list[Callable[[], None]] = []
        self.reports: dict[str, Record] = {}
        self.report_readers: list[tuple[str, Callable[[Record], None]]] = []
        self.readers: list[Subscription] = []
        self.snapshots = MemorySnapshots()
        self.parts: dict[str, StoredPart] = {}
        """The last part of each node, which survives a crash."""
        self.part_readers: list[tuple[str, Callable[[StoredPart], None]]] = []
        self.part_fence = True
        self.repeat_parts = False
        """Whether each new part is followed by the one that it replaced, as if that had been delayed on its way."""
        self._part_revision = 0
        self._world = world
        self._chance = world.chance("server")
        self._skew = 0
        self._held: Held | None = None
        self._ids: dict[str, tuple[int, float]] = {}
        self._last: dict[str, Record] = {}
        self._waiting: list[tuple[int, Callable[[Any], None], Appended]] = []
        """Appends that are not durable yet, and whom to tell."""
        self._paused_until = 0.0
        self._refuses = False
        self._inbox: deque[Callable[[], None]] = deque()
        self._crashes = 0

    # --- its life -------------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        return self._world.wall() + self._skew

    def step_clock(self, seconds: float) -> None:
        self._world.trace("clock steps", server=True, by=seconds)
        self._skew += int(seconds * SECOND)

    def crash(self, down_s: float) -> None:
        """Kill it, and start it again after `down_s`."""
        if not self.up:
            return
        self.up = False
        self._crashes += 1
        keep = self._chance.randint(self.durable, len(self.records))
        if self.lose_acknowledged:
            self.durable = keep = max(0, self.durable - self.lose_acknowledged)
        self._world.trace("server is killed", seconds=down_s, lost=len(self.records) - keep)
        del self.records[keep:]
        self._ids = {known: (seq, at) for known, (seq, at) in self._ids.items() if seq <= keep}
        self._last = {record.subject: record for record in self.records}
        self._waiting.clear()
        self._inbox.clear()
        self._paused_until = 0.0
        self.readers.clear()
        self.part_readers.clear()
        for tell in self.on_crash:
            tell()
        self._world.after(down_s, self._start)

    def _start(self) -> None:
        self._world.trace("server is up")
        self.up = True
        self._become_durable(self._crashes)
        for tell in self.on_up:
            tell()

    def pause(self, seconds: float) -> None:
        """Do nothing for this long: either stall, and answer everything afterwards, or report at once that the stream has no
        leader."""
        self._refuses = self._chance.random() < 0.4
        self._world.trace("server is stalled", seconds=seconds, refuses=self._refuses)
        self._paused_until = max(self._paused_until, self._world.now + seconds)
        self._world.at(self._paused_until, self._continue)

    def _continue(self) -> None:
        while self._inbox and self._world.now >= self._paused_until:
            self._inbox.popleft()()

    def handle(self, request: Callable[[], None], reply: Callable[[Any], None] | None = None) -> None:
        """Handle a request, which `reply` can refuse."""
        if not self.up:
            return
        if self._world.now >= self._paused_until and not self._inbox:
            request()
        elif self._refuses and reply is not None:
            reply(LogUnavailable("JetStream system temporarily unavailable"))
        else:
            self._inbox.append(request)

    # --- the log --------------------------------------------------------------------------------------------------------

    def append(
        self, subject: str, body: bytes, msg_id: str, expected_last: int | None, reply: Callable[[Any], None]
    ) -> None:
        if len(body) + HEADER_ROOM > self.max_payload:
            reply(
                LogRefused(
                    f"append: the message has {len(body):,} bytes; the server takes at most {self.max_payload:,}"
                )
            )
            return
        for tell in list(self.on_append):
            tell(subject, body, msg_id)
        last = self._last[subject].seq if subject in self._last else 0
        last = last if last > self.purged else 0
        if self.fence and expected_last is not None and last != expected_last:
            reply(Overtaken(f"{subject} is at {last}, not at {expected_last}"))
            return
        now = self._world.now
        if self.dedupe and msg_id in self._ids and now - self._ids[msg_id][1] < WINDOW_S:
            known = self._ids[msg_id][0]
            if known > self.durable and self._chance.random() < 0.5:
                reply(LogUnavailable("append: duplicate message id is in process"))
            else:
                self._answer_when_durable(Appended(known, duplicate=True), reply)
            return
        if self.full:
            reply(LogFull("append: insufficient storage resources available"))
            return
        record = Record(len(self.records) + 1, self.clock(), subject, body, msg_id)
        self.records.append(record)
        self._last[subject] = record
        if msg_id:
            self._ids[msg_id] = (record.seq, now)
        self._answer_when_durable(Appended(record.seq), reply)

    def _answer_when_durable(self, stored: Appended, reply: Callable[[Any], None]) -> None:
        if stored.seq <= self.durable:
            reply(stored)
            return
        self._waiting.append((stored.seq, reply, stored))
        if len(self._waiting) == 1:
            self._world.after(self._chance.uniform(*SYNC_S), self._become_durable, self._crashes)

    def _become_durable(self, crashes: int) -> None:
        if crashes != self._crashes or not self.up:
            return
        new = self.records[self.durable :]
        self.durable = len(self.records)
        for record in new:
            for tell in self.on_record:
                tell(record)
        waiting, self._waiting = self._waiting, []
        for seq, reply, stored in waiting:
            self.acknowledged = max(self.acknowledged, seq)
            reply(stored)
        for reader in self.readers:
            if wanted := reader.wanted(new):
                reader.deliver(wanted)

    def read(self, after: int, subjects: Sequence[str], reply: Callable[[Any], None]) -> None:
        if after > self.durable:
            reply(LogDamaged(f"the log ends at {self.durable}, before {after}"))
            return
        if after < self.purged:
            reply(Archived(self.purged))
            return
        found = self.records[after : self.durable]
        reply(Subscription(after, subjects, lambda _: None).wanted(found) if subjects else found)

    def still_there(self, record: Record, reply: Callable[[Any], None]) -> None:
        """Return whether this is the record of that sequence, if there is one."""
        there = self.records[record.seq - 1] if record.seq <= self.durable else record
        reply(None if there == record else LogDamaged(f"record {record.seq} differs from the one read before"))

    def subscribe(self, reader: Subscription, reply: Callable[[Any], None]) -> None:
        """Deliver all existing records to it, and then new ones."""
        if reader.after < self.purged:
            reply(Archived(self.purged))
            return
        if reader.after > self.durable:
            reply(LogDamaged(f"the log ends at {self.durable}, before record {reader.after}, which was read from it"))
            return
        reply(None)
        if wanted := reader.wanted(self.records[reader.after : self.durable]):
            reader.deliver(wanted)
        self.readers.append(reader)

    def unsubscribe(self, reader: Subscription) -> None:
        self.readers = [one for one in self.readers if one is not reader]

    def record_at(self, seq: int, reply: Callable[[Any], None]) -> None:
        reply(self.records[seq - 1] if self.purged < seq <= self.durable else None)

    def start(self, reply: Callable[[Any], None]) -> None:
        reply(self.purged)

    def purge(self, upto: int, reply: Callable[[Any], None]) -> None:
        """A late request of a master that was succeeded removes nothing."""
        if upto <= self.purged:
            reply(None)
            return
        for tell in self.on_purge:
            tell(upto)
        self._world.trace("records are removed", server=True, upto=upto)
        self.purged = upto
        reply(None)

    def last_on(self, subject: str, reply: Callable[[Any], None]) -> None:
        last = self._last.get(subject)
        if last is not None and last.seq > self.durable:
            found = [record for record in self.records[: self.durable] if record.subject == subject]
            last = found[-1] if found else None
        reply(last if last is not None and last.seq > self.purged else None)

    # --- beside the log -------------------------------------------------------------------------------------------------

    def report(self, subject: str, body: bytes, reply: Callable[[Any], None]) -> None:
        if self.full:
            reply(LogFull("report: insufficient storage resources available"))
            return
        record = Record(0, self.clock(), subject, body)
        self.reports[subject] = record
        reply(None)
        for pattern, deliver in self.report_readers:
            if matches(pattern, subject):
                deliver(record)

    def put_part(self, node: str, body: bytes, expected: int, reply: Callable[[Any], None]) -> None:
        if self.full:
            reply(LogFull("storing a part: insufficient storage resources available"))
            return
        there = self.parts.get(node)
        if self.part_fence and (there.revision if there is not None else 0) != expected:
            reply(Overtaken(f"the part of {node} is not at {expected}"))
            return
        self._part_revision += 1
        part = self.parts[node] = StoredPart(node, self._part_revision, body)
        reply(part.revision)
        for wanted, deliver in self.part_readers:
            if wanted == node:
                deliver(part)
                if self.repeat_parts and there is not None:
                    deliver(there)

    def all_parts(self, reply: Callable[[Any], None]) -> None:
        reply([part for _, part in sorted(self.parts.items())])

    def last_part(self, node: str, reply: Callable[[Any], None]) -> None:
        reply(self.parts.get(node))

    def follow_part(self, node: str, deliver: Callable[[StoredPart], None], reply: Callable[[Any], None]) -> None:
        reply(None)
        if (part := self.parts.get(node)) is not None:
            deliver(part)
        self.part_readers.append((node, deliver))

    def look(self, reply: Callable[[Any], None]) -> None:
        reply(self._held)

    def take(self, holder: str, ttl_s: float, over: Held | None, reply: Callable[[Any], None]) -> None:
        if self.full:
            reply(LogUnavailable("lease: insufficient storage resources available"))
            return
        seq, chain = (over.seq, over.chain) if over else (0, "")
        taken = Held(holder, ttl_s, 0, seq, chain, parts=True)
        reply(self._store(taken) if self._held == over else None)

    def renew(self, held: Held, reply: Callable[[Any], None]) -> None:
        if self.full:
            reply(LogUnavailable("lease: insufficient storage resources available"))
            return
        mine = self._held is not None and self._held.holder == held.holder
        reply(self._store(held) if mine else None)

    def give_back(self, held: Held, reply: Callable[[Any], None]) -> None:
        if self._held is not None and self._held.holder == held.holder:
            self._store(msgspec.structs.replace(held, holder=""))
        reply(None)

    @property
    def held(self) -> Held | None:
        """Return the stored lease."""
        return self._held

    def _store(self, held: Held) -> Held:
        if self._held is None or self._held.holder != held.holder:
            self._world.trace("lease", holder=held.holder)
        self._held = msgspec.structs.replace(held, revision=self._held.revision + 1 if self._held else 1)
        return self._held
