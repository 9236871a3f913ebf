"""The cost of users' views: CPU of the serving process, by follower and record, without the network.

python -m tests.lab.views --records 20000 --followers 0,8,32
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from events import kinds as k
from events import subjects
from events.log.memory import MemoryBus, MemoryLog
from events.log.views import Unpacking
from events.requests import ViewQuestion
from replay.tenants.projection import key_of
from replay.tenants.shared_views import Views
from replay.tenants.view_requests import Answering
from tests.replay.tenants.lives import BOB, Life

if TYPE_CHECKING:
    from events.log.records import Record

_CLUSTER = "story"
_BATCH = 10
"""Records that arrive at once."""


def life(records: int) -> list[Record]:
    """Return a log of two tenants' apps: mostly reports of progress, with some decisions."""
    made = Life(1, hostile=False).play(60)
    while len(made.records) < records:
        running = [app for app in made.state.apps.values() if app.settled and app.current is not None]
        for app in running:
            generation = app.generations[app.generation]
            node = generation.containers[min(generation.containers)].node
            for step in range(50):
                made.by(node, k.AppProgressed(app=app.id, generation=generation.number, step=step, loss=0.5))
        made.play(1)
    return made.records[:records]


async def follow(answering: Answering, user: str, after: int, upto: int) -> None:
    question = msgspec.json.encode(ViewQuestion(what="read", after=after, until=upto, follow=True))
    unpacking = Unpacking()
    async for piece in answering.answerer(subjects.view(_CLUSTER, user))(question):
        for _ in unpacking.take(piece):
            pass


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--followers", default="0,8,32")
    options = parser.parse_args()
    followers = [int(one) for one in options.followers.split(",")]
    records = life(options.records)
    for number in followers:
        log = MemoryLog(time.time_ns)
        half = len(records) // 2
        log.records[:] = records[:half]
        views = Views(log, key_of(b"of a measurement, in no cluster"))
        answering = Answering(views, MemoryBus(time.time_ns), _CLUSTER, b"key")
        running = asyncio.create_task(views.run())
        began = time.perf_counter()
        await views.end()
        await views.infos("alice")
        ready_s = time.perf_counter() - began
        users = ("alice", "amy", BOB, "canary-carl")
        tasks = [
            asyncio.create_task(follow(answering, users[index % len(users)], half, len(records)))
            for index in range(number)
        ]
        await asyncio.sleep(0.1)
        before = time.process_time()
        for first in range(half, len(records), _BATCH):
            for record in records[first : first + _BATCH]:
                await log.append(record.subject, record.body)
            await views.end()
        await asyncio.gather(*tasks)
        used = time.process_time() - before
        running.cancel()
        each = len(records) - half
        more = f", {used / each / number * 1e6:.1f} by follower" if number else ""
        print(
            f"{number} followers: {used:.2f} CPU s for {each:,} records, {used / each * 1e6:.0f} µs a record{more}; "
            f"first state of {half:,} records after {ready_s:.2f} s"
        )


if __name__ == "__main__":
    asyncio.run(main())
