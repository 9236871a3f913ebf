"""One fold of a log that serves the views of all tenants.

    views = Views(log, key)
    await views.run()                                    follows the log until cancelled
    async for batch in views.read("vision", after=118)   the log as this tenant sees it

The newest records are kept as they were folded, so a following reader costs only the new records.  A reader that
starts further back has its own fold from the nearest snapshot, until it has caught up.  A state as a tenant sees it is made of
the present fold or of one of the log's snapshots, and kept for a while, so a reader of a long log starts at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from dorm.core.evolve import GapError
from dorm.core.snapshot import copy, dump, load, pack
from dorm.core.state import SCHEMA
from dorm.live_fold import LiveFold
from events.codec import decode, encode
from events.kinds import NodeReported
from events.log.records import LogDamaged, LogUnavailable
from replay.frames import build, state_after
from replay.tenants.projection import Projection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.log.records import Record
    from events.log.stores import SnapshotInfo
    from replay.tenants.projection import Seen

_MOST, _ROOM = 2048, 16 << 20
"""Records that are kept as they were folded, and the bytes of their bodies."""
_PIECE = 256
"""Records that are projected before other readers get their turn."""
_STATES = 64
"""States of tenants that are kept."""
_FRESH = 512
"""Records after which a kept state is replaced."""
_PAST_AT_ONCE = 2
"""Threads that fold the past."""
_PAST_OF_TENANT = 4
"""Readers of one tenant that read the past, each with a state of its own."""
_CATCH_UP_S = 5.0


class Views:
    """The views of one log's tenants."""

    def __init__(self, log: ReadableLog, key: bytes) -> None:
        """`key` of the pseudonyms, see `replay.tenants.projection.key_of`."""
        self.log = log
        self._key = key
        self._projection: Projection | None = None
        """None until the log was read."""
        self._seen: deque[Seen] = deque()
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int], tuple[SnapshotInfo, bytes]] = OrderedDict()
        """States as tenants see them, by tenant and sequence."""
        self._latest: dict[str, int] = {}
        """The sequence of the latest one of each tenant that was made of the present."""
        self._computing = asyncio.Semaphore(_PAST_AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Turns by tenant: how many more of its readers may read the past."""
        self._fold = LiveFold(log, begin=self._present_state, step=self._take, piece=_PIECE)
        self._fold.on_begin.append(lambda state: self._start_over(Projection(state, key)))
        self._fold.on_restart.append(lambda: self._start_over(None))

    # --- following ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the log until cancelled.  Raises LogClosed."""
        await self._fold.run()

    async def _present_state(self) -> State:
        return (await state_after(self.log, await self.log.end()))[0]

    def _take(self, _state: State, records: Sequence[Record]) -> None:
        assert self._projection is not None
        for record in records:
            self._seen.append(self._projection.take(record))
            self._bytes += len(record.body)
        while len(self._seen) > _MOST or (self._bytes > _ROOM and len(self._seen) > 1):
            self._bytes -= len(self._seen.popleft().record.body)

    def _start_over(self, projection: Projection | None) -> None:
        self._projection = projection
        self._seen.clear()
        self._kept.clear()
        self._latest.clear()
        self._bytes = 0

    # --- asking ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State | None:
        """The current state, which continues to be folded; None while the log is not read."""
        return self._projection.state if self._projection is not None else None

    async def end(self) -> int:
        """Return the log's last record, once the fold has it.  Raises LogUnavailable."""
        end = await self.log.end()
        try:
            await self._fold.reach(end, _CATCH_UP_S)
        except TimeoutError:
            raise LogUnavailable("the log is not read yet; try again", code="log.view.behind") from None
        return end

    async def read(self, tenant: str, *, after: int, until: int | None = None) -> AsyncGenerator[list[Record], None]:
        """Yield the records of a tenant's view with `seq > after`, up to `until`; without it, also those to come. Raises
        LogDamaged if the log ends before `after`, LogUnavailable."""
        end = await self.end()
        if after > end:
            raise LogDamaged(f"the log ends at {end}, before {after}", code="log.truncated")
        projection = self._projection
        while until is None or after < until:
            if projection is None or self._projection is not projection:
                raise LogUnavailable("the log is being read again; ask again", code="log.view.behind")
            first = self._seen[0].record.seq if self._seen else projection.state.seq + 1
            if after + 1 < first:
                target = min(first - 1, until or first - 1)
                async with contextlib.aclosing(self._past(tenant, after, target)) as pieces:
                    async for piece in pieces:
                        after = piece[-1].seq
                        yield piece
            elif after >= projection.state.seq:
                await self._fold.moved()
            else:
                last = min(projection.state.seq, until or projection.state.seq, after + _PIECE)
                piece = [self._seen[seq - first].record_for(tenant) for seq in range(after + 1, last + 1)]
                after = last
                yield piece
                await asyncio.sleep(0)

    async def _past(self, tenant: str, after: int, upto: int) -> AsyncGenerator[list[Record], None]:
        """Yield records that are not kept any more, by a fold of their own."""
        turn = self._turns.setdefault(tenant, asyncio.Semaphore(_PAST_OF_TENANT))
        async with turn:
            async with self._computing:
                state, _ = await state_after(self.log, after)
            projection = Projection(state, self._key)

            def project(records: list[Record]) -> list[Record]:
                return [projection.take(record).record_for(tenant) for record in records]

            try:
                async with contextlib.aclosing(self.log.read(after=after)) as batches:
                    async for batch in batches:
                        for first in range(0, len(batch), _PIECE):
                            piece = [record for record in batch[first : first + _PIECE] if record.seq <= upto]
                            if piece:
                                async with self._computing:
                                    made = await asyncio.to_thread(project, piece)
                                # Here, a slow reader delays no other reader.
                                yield made
                        if batch[-1].seq >= upto:
                            return
            except GapError as error:
                raise LogDamaged(str(error)) from None

    def report(self, record: Record, tenant: str) -> Record | None:
        """Return a node's heartbeat with the use of this tenant's containers alone."""
        event, state = decode(record), self.state
        if state is None or not isinstance(event, NodeReported):
            return None
        apps = state.apps
        own = [
            container
            for container in event.containers
            if container.app in apps and apps[container.app].tenant == tenant
        ]
        return msgspec.structs.replace(record, body=encode(msgspec.structs.replace(event, containers=own)), msg_id="")

    # --- states ---------------------------------------------------------------------------------------------------------

    async def infos(self, tenant: str) -> list[SnapshotInfo]:
        """Return the states that a reader can start from: a view of each snapshot of the log, whose digest is computed
        on request, and one of the present.  Raises the log's errors."""
        end = await self.end()
        shown = [
            msgspec.structs.replace(info, digest="", content="", size=0, chain="", record="")
            for info in await self.log.snapshots.infos()
            if (info.core, info.build) == (SCHEMA, build()) and info.seq < end
        ]
        present = await self._present(tenant)
        return [info for info in shown if info.seq != present.seq] + ([present] if present.seq else [])

    async def snapshot(self, tenant: str, seq: int) -> tuple[SnapshotInfo, bytes] | None:
        """Return one of these states, None if it is gone. Raises the log's errors."""
        kept = self._kept.get((tenant, seq))
        if kept is not None:
            return self._keep(tenant, *kept)
        for info in await self.log.snapshots.infos():
            if (info.seq, info.core, info.build) == (seq, SCHEMA, build()):
                body = await self.log.snapshots.get(info)
                made = await asyncio.to_thread(self._of_snapshot, tenant, info, body) if body is not None else None
                return self._keep(tenant, *made) if made is not None else None
        return None

    async def _present(self, tenant: str) -> SnapshotInfo:
        projection = self._projection
        if projection is None:
            raise LogUnavailable("the log is being read again; ask again", code="log.view.behind")
        latest = self._latest.get(tenant, 0)
        kept = self._kept.get((tenant, latest))
        if kept is None or latest < projection.state.seq - _FRESH:
            taken = copy(projection.state_for(tenant))
            kept = await asyncio.to_thread(pack, taken, build=build())
            self._latest[tenant] = kept[0].seq
        return self._keep(tenant, *kept)[0]

    def _of_snapshot(self, tenant: str, info: SnapshotInfo, body: bytes) -> tuple[SnapshotInfo, bytes] | None:
        state = load(info, body, build=build())
        return dump(Projection(state, self._key).state_for(tenant), build=build()) if state is not None else None

    def _keep(self, tenant: str, info: SnapshotInfo, body: bytes) -> tuple[SnapshotInfo, bytes]:
        self._kept[tenant, info.seq] = info, body
        self._kept.move_to_end((tenant, info.seq))
        while len(self._kept) > _STATES:
            (other, seq), _ = self._kept.popitem(last=False)
            if self._latest.get(other) == seq:
                del self._latest[other]
        return info, body
