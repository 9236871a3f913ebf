"""Floods of `make overload`: the load that one user, some readers or one node can put on a cluster, each until it is ended.

python -m tests.lab.overload.floods NAME URL CLUSTER COUNT     one of them, in a separate process: the one that is measured has
                                                                no part of that work
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from itertools import count
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from events import subjects
from events.codec import encode
from events.kinds import AppSubmitted, NodeReported
from events.log.records import LogError
from events.nats.connection import Connection
from tests.lab.overload.toy_agents import node_name
from tests.lab.overload.users import spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TAILS = 50
REPORTS_PER_S = 1000
_WINDOW = 128
"""Submissions in flight."""
_GOOD_OF = 20
_LARGEST = 1e6
"""Seconds: an app that would run forever."""


@contextlib.asynccontextmanager
async def _connected(url: str, cluster: str, name: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(url, cluster, name=name, timeout=30.0)
    try:
        yield connection
    finally:
        await connection.close()


async def flood_of_submissions(url: str, cluster: str, submissions: int) -> None:
    """Submit apps: one in twenty is valid, requests a whole node, and would run forever; the others request more than any node
    has."""
    async with _connected(url, cluster, "flood") as connection:
        subject = subjects.fact(cluster, "AppSubmitted", "flood")
        slots = asyncio.Semaphore(_WINDOW)

        async def submit(number: int) -> None:
            document = spec(f"flood-{number}", _LARGEST, n_max=1, user="flood")
            document["demand"] = {"cpu": 400 if number % _GOOD_OF else 4}
            event = AppSubmitted(id=f"flood.{secrets.token_hex(8)}", at=time.time_ns(), by="flood", spec=document)
            try:
                with contextlib.suppress(LogError):
                    await connection.log.append(subject, encode(event), msg_id=event.id, timeout=30.0)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for number in range(submissions):
                await slots.acquire()
                tasks.create_task(submit(number))
        await asyncio.Event().wait()


async def flood_of_tails(url: str, cluster: str) -> None:
    """Open tails: half of them request everything from the start through the log's reader and take one batch; the others are
    clients of the server that never read from their connection."""
    address = urlsplit(url)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(TAILS // 2):
            connection = await stack.enter_async_context(_connected(url, cluster, f"tail-{number}"))
            records = await stack.enter_async_context(contextlib.aclosing(connection.log.read(follow=True)))
            await anext(records)
            _, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 10)
            stack.callback(writer.close)
            writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nSUB > 1\r\n')
            await writer.drain()
        await asyncio.Event().wait()


async def flood_of_reports(url: str, cluster: str) -> None:
    """Publish one node's reports, a thousand a second, whether they are acknowledged or not."""
    async with _connected(url, cluster, "reporter") as connection, asyncio.TaskGroup() as tasks:
        node, loop = node_name(0), asyncio.get_running_loop()
        began, slots = loop.time(), asyncio.Semaphore(_WINDOW)

        async def report() -> None:
            try:
                with contextlib.suppress(LogError):
                    await connection.bus.publish_report(subjects.report(cluster, node), encode(NodeReported(node=node)))
            finally:
                slots.release()

        for number in count():
            await asyncio.sleep(max(0.0, began + number / REPORTS_PER_S - loop.time()))
            await slots.acquire()
            tasks.create_task(report())


def main() -> None:
    name, url, cluster, number = sys.argv[1:]
    floods = {
        "reports": lambda: flood_of_reports(url, cluster),
        "tails": lambda: flood_of_tails(url, cluster),
        "submissions": lambda: flood_of_submissions(url, cluster, int(number)),
    }
    asyncio.run(floods[name]())


FLOODS = ("reports", "tails", "submissions")
"""In this order, because submissions occupy the cluster for the longest time."""

if __name__ == "__main__":
    main()
