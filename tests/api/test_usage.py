"""What a node's containers use now, from the heartbeats of the machine that holds its name, as a rate between two of them; and
the use over a span of time, as `dorm usage` counts it.  Who reads the own apps only gets the own usage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest

from dorm.api.clusters import ArchivedCluster
from dorm.api.identity import Doorkeeper
from dorm.api.options import Options
from dorm.api.serving import serving
from events import subjects
from events.codec import encode
from events.identities import User
from events.kinds import ContainerUse, NodeReported
from replay.diff import Diff
from replay.moments import AtSequence
from replay.usage import usage
from tests.api.served import PATIENCE_S, Api, connected, say, served
from tests.core.records import joined
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from events.log.records import Record
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


def report(cpu_s: float, **more: Any) -> NodeReported:
    uses = [ContainerUse(app="x", generation=1, slot=slot, cpu_s=cpu_s * (slot + 1), memory=1 << 20) for slot in (0, 1)]
    return NodeReported(node="a", **{"used": {"memory": 2 << 20}, "containers": uses, **more})


async def test_use_comes_from_the_last_heartbeats(nats_server: NatsServer) -> None:
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


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return busy_log(700, apps=5, nodes=2)


async def test_usage_over_a_span_agrees_with_the_command(records: list[Record]) -> None:
    log, options = log_of(records), Options(port=0, archive="busy")
    async with (
        serving(ArchivedCluster(log), options) as server,
        aiohttp.ClientSession(base_url=server.url) as session,
    ):
        following = asyncio.create_task(server.run())
        try:
            await server.services.follower.reach(len(records), PATIENCE_S)
            api = Api(server, session)
            found = await api.get("/v1/usage?from=100&to=600&by=user,node&every=10m")
            expected = await usage(log, AtSequence(100), AtSequence(600), by=("user", "node"), every_s=600.0)
            assert found == msgspec.to_builtins(expected)
            assert {row["user"] for row in (await api.get("/v1/usage?user=ann&by=user,app"))["rows"]} == {"ann"}
            for wrong, status, code in (
                ("by=team", 422, "usage.by.unknown"),
                ("every=1ms", 422, "usage.every.too_short"),
                ("every=often", 422, "quantity.malformed"),
                ("user=nobody", 404, "name.not_found"),
                ("from=600&to=100", 422, "moment.end_before_start"),
                ("from=600&to=600", 422, "accounting.empty_span"),
            ):
                answer = await api.get(f"/v1/usage?{wrong}", status)
                assert answer["code"] == code
            difference = msgspec.convert(await api.get("/v1/diff?from=100"), Diff)
            assert difference.set_by == []
        finally:
            following.cancel()
            await asyncio.wait({following})


def test_a_plain_user_sees_only_their_own_tenants_usage() -> None:
    door = Doorkeeper.__new__(Doorkeeper)
    door._everyone = False
    door._users = {
        name: User(name, role, f"{name}s", "", 1)  # type: ignore[arg-type]
        for name, role in (("ann", "user"), ("rob", "reader"), ("oda", "operator"))
    }
    assert [door.own_only(name) for name in ("ann", "rob", "oda")] == ["anns", None, None]
    door._users = None
    assert door.own_only("ann") is None
