"""A node that hangs delays only requests to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from dorm.bench.api.callers import READS
from events import subjects
from events.kinds import ContainerStarted
from tests.api.served import PATIENCE_S, Api, connected, led, say, served, streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.core.state import State
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

AT_ONCE = 12


async def test_a_silent_node_delays_no_answer(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "well", "hung"), served(connection) as api:
        asked: list[bytes] = []
        enough = asyncio.Event()

        async def hang(question: bytes) -> AsyncIterator[bytes]:
            asked.append(question)
            if len(asked) == AT_ONCE:
                enough.set()
            await asyncio.Event().wait()
            yield b""

        subject = subjects.ask(connection.cluster, "hung", "logs")
        sent = await api.send("POST", "/v1/apps", {**SPEC, "name": "wide", "n_min": 2, "n_max": 2})
        hanging = asyncio.create_task(connection.bus.answer(subject, hang))
        slot = await slot_on(api, sent["id"], "hung")
        started = ContainerStarted(app=sent["id"], generation=1, slot=slot, node="hung")
        await api.reach(await say(connection.log, connection.cluster, started, "hung"))
        following = [
            asyncio.create_task(api.get(f"/v1/apps/wide/logs?slot={slot}&follow=true")) for _ in range(AT_ONCE)
        ]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await enough.wait()
            async with asyncio.timeout(PATIENCE_S), streaming(api, "/v1/view/changes") as changes:
                for path in (*READS, f"/v1/apps/{sent['id']}", "/v1/nodes/hung", "/v1/nodes/hung/usage", "/"):
                    async with api.session.get(path) as answer:
                        assert answer.status == 200, path
                        await answer.read()
                await api.send("POST", "/v1/apps", {**SPEC, "name": "later"})
                assert (await changes.next() or {})["event"] == "change"
            assert not any(one.done() for one in following)
        finally:
            for task in (*following, hanging):
                task.cancel()
            await asyncio.gather(*following, hanging, return_exceptions=True)


SPEC = {"command": ["work"], "demand": {"cpu": 3}}


async def slot_on(api: Api, app: str, node: str) -> int:
    """The slot of an app's container on a node, once it is released."""

    def released(state: State) -> list[int]:
        current = state.apps[app].current if app in state.apps else None
        containers = current.containers if current is not None and current.released else {}
        return [slot for slot, container in containers.items() if container.node == node]

    async with asyncio.timeout(PATIENCE_S):
        while not (slots := await api.follower.look(released)):
            await api.follower.moved()
    return int(slots[0])
