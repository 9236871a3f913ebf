"""The log on three NATS servers that hold it together, of which some are killed or frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from events.jetstream import Connection
from events.jetstream_streams import stream_configs
from events.log import LogRefused
from tests.nats_server import NatsCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsCluster]:
    """For all tests here, each of which leaves it as it was: three that run."""
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"))
    await cluster.start()
    yield cluster
    await cluster.stop()


async def replicas(cluster: NatsCluster, name: str) -> set[int | None]:
    """How many servers hold the cluster's streams."""
    async with cluster.owner() as jetstream:
        return {(await jetstream.stream_info(str(one.name))).config.num_replicas for one in stream_configs(name)}


@pytest.mark.asyncio(loop_scope="module")
async def test_new_streams_are_held_by_three_and_others_are_raised_where_that_is_asked(cluster: NatsCluster) -> None:
    await (await Connection.open(cluster.url, "three", create=True)).close()
    assert await replicas(cluster, "three") == {3}
    await (await Connection.open(cluster.url, "one", create=True, replicas=1)).close()
    await (await Connection.open(cluster.url, "one", create=True)).close()
    assert await replicas(cluster, "one") == {1}
    connection = await Connection.open(cluster.url, "one", create=True, replicas=3)
    assert await replicas(cluster, "one") == {3}
    assert (await connection.log.append("dorm.one.A.x", b"")).seq == 1
    await connection.close()
    await (await Connection.open(cluster.url, "one", create=True, replicas=1)).close()
    assert await replicas(cluster, "one") == {3}, "it was lowered"
    with pytest.raises(LogRefused, match="5 replicas need a NATS cluster of at least 5 servers"):
        await Connection.open(cluster.url, "one", create=True, replicas=5)
