"""How long a change of the cluster waits in the API, in virtual time: on any machine, and next to any load, the same.

A page then needs a few frames to draw it (`tests.web.test_live`), so a resize is seen within a second of its event, as long as
the machine keeps up.
"""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import TYPE_CHECKING

import pytest

from dorm.api.follower import Follower
from dorm.api.options import Limits
from dorm.api.streams import ViewStream
from events.codec import decode
from events.kinds import ContainerExited, ContainerStarted, Resized, Round
from events.log.memory import MemoryLog
from events.quantities import SECOND
from tests.replay.busy import CLUSTER, START, busy_log
from tests.simulation.world.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dorm.core.state import State
    from events.log.records import Record

RECORDS = busy_log(4000, apps=10, nodes=4)
FIRST = 300
SLOWEST_S = 0.8
"""What is left of a second once the page has had its frames."""


class Reader:
    """A page's connection: notes when which position has come."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.came: list[tuple[int, float]] = []

    def push(self, chunk: bytes) -> bool:
        self.came += [(int(seq), self._loop.time()) for seq in re.findall(rb"^id: (\d+)", chunk, re.MULTILINE)]
        return True

    async def write(self, frames: Iterable[bytes]) -> None:
        self.push(b"".join(frames))

    def check(self, now: float) -> bool:
        return now >= 0

    async def over(self) -> None:
        await asyncio.Event().wait()


class SlowView(ViewStream):
    """A view of a cluster so large that each change takes a while to find."""

    def __init__(self, follower: Follower, loop: Loop, takes_s: float) -> None:
        super().__init__(follower, Limits(), dict)
        self._loop = loop
        self._takes_s = takes_s

    def _step(self, state: State) -> None:
        super()._step(state)
        self._loop.now += self._takes_s


def moves_the_picture(record: Record) -> bool:
    event = decode(record)
    if isinstance(event, Round):
        return any(isinstance(fact, Resized) for fact in event.events)
    return isinstance(event, ContainerStarted | ContainerExited)


@pytest.mark.parametrize("takes_s", [0.0, 0.03, 0.2])
@pytest.mark.parametrize("seed", range(3))
def test_a_resize_is_sent_to_the_page_within_a_second(takes_s: float, seed: int) -> None:
    loop, chance = Loop(), Random(seed)  # type: ignore[abstract]
    asyncio.set_event_loop(loop)
    log = MemoryLog(lambda: START + int(loop.time() * SECOND), RECORDS[:FIRST])
    stored: dict[int, float] = {}

    async def play() -> list[tuple[int, float]]:
        follower, reader = Follower(log, CLUSTER), Reader(loop)
        view = SlowView(follower, loop, takes_s)
        tasks = [asyncio.create_task(follower.run()), asyncio.create_task(view.run())]
        while not follower.ready:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)
        tasks.append(asyncio.create_task(view.serve(reader, None)))  # type: ignore[arg-type]
        for record in RECORDS[FIRST:]:
            stored[record.seq] = loop.time()
            await log.append(record.subject, record.body, msg_id=record.msg_id)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.expovariate(4.0))
        while not reader.came or reader.came[-1][0] < RECORDS[-1].seq:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return reader.came

    try:
        came = loop.run_until_complete(asyncio.wait_for(play(), 3600.0))
    finally:
        asyncio.set_event_loop(None)
    moved = [record for record in RECORDS[FIRST:] if moves_the_picture(record)]
    waited = [next(at for seq, at in came if seq >= record.seq) - stored[record.seq] for record in moved]
    assert len(waited) > 50
    assert max(waited) <= SLOWEST_S
