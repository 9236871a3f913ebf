"""What a node's containers use: from the heartbeats of the machine that holds its name, as a rate between two of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from events import subjects
from events.codec import encode
from events.kinds import ContainerUse, NodeReported
from tests.api.served import connected, say, served
from tests.core.records import joined

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


def report(cpu_s: float, **more: Any) -> NodeReported:
    uses = [ContainerUse(app="x", generation=1, slot=slot, cpu_s=cpu_s * (slot + 1), memory=1 << 20) for slot in (0, 1)]
    return NodeReported(node="a", **{"used": {"memory": 2 << 20}, "containers": uses, **more})


async def test_use_is_what_the_last_heartbeats_say(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        seq = await say(connection.log, connection.cluster, joined("a"), "a")

        async def heard(event: NodeReported) -> None:
            await connection.bus.publish_report(subjects.report(connection.cluster, "a"), encode(event))

        async with served(connection) as api:
            await api.reach(seq)
            assert (await api.get("/v1/nodes/b/usage", 404))["code"] == "node.not_found"
            found = await api.get("/v1/nodes/a/usage")
            assert (found["at"], found["measured"], found["used"]) == (None, False, {})

            # A rate needs two reports, or a container's start on the log.
            await heard(report(10.0))
            found = await api.get("/v1/nodes/a/usage")
            assert found["measured"]
            assert 0 <= found["age_s"] < 60
            assert found["used"] == {"memory": 2 << 20}
            assert [one["cpu"] for one in found["containers"]] == [None, None]

            await asyncio.sleep(0.6)
            await heard(report(10.3))
            found = await api.get("/v1/nodes/a/usage")
            one, two = found["containers"]
            assert one["over_s"] == two["over_s"] >= 0.5
            assert one["cpu"] == pytest.approx(300 / one["over_s"], rel=0.02)
            assert two["cpu"] == pytest.approx(600 / one["over_s"], rel=0.02)
            assert found["used"] == {"memory": 2 << 20, "cpu": one["cpu"] + two["cpu"]}

            # An engine that was too slow, and a machine that does not hold the name.
            await heard(report(0.0, used={}, containers=[]))
            found = await api.get("/v1/nodes/a/usage")
            assert (found["measured"], found["used"], found["containers"]) == (False, {}, [])
            assert found["at"] is not None
            await heard(report(11.0, identity="f" * 32))
            assert (await api.get("/v1/nodes/a/usage"))["at"] is None
