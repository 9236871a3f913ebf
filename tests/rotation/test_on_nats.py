"""Rotation of a real log, beside a master on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import nats
import pytest

from dorm.cli.doctor import rotation_findings
from dorm.client.client import Client
from dorm.client.errors import Refused
from dorm.client.operating import rotate
from dorm.history import with_history
from dorm.master.master import Master
from dorm.rotation.service import Settings, rotating_while_leading
from events.chain import SealKey, new_seed
from events.kinds import PolicyChanged
from events.log.records import Archived, LogDamaged, LogRefused
from events.nats.connection import Connection
from events.nats.places import WEBHOOK
from events.nats.streams import log_stream
from events.subjects import fact_pattern
from replay.audit.audit import verify
from replay.audit.seal_checks import verify_seals
from tests.errors import raises
from tests.rotation.logs import records_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from events.kinds import LogRotated
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]
CLUSTER = "rotated"
KEY = SealKey(new_seed())


@contextlib.asynccontextmanager
async def leading(server: NatsServer, settings: Settings) -> AsyncIterator[tuple[Master, Client]]:
    """A leading master, with rotation next to it, and a client."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [await Connection.open(server.url, CLUSTER, create=True) for _ in range(3)]
        for connection in connections:
            stack.push_async_callback(connection.close)
        own, apart, theirs = connections
        master = Master(own.stream, own.bus, CLUSTER, name="m", clock=time.time_ns, key=KEY)
        running = asyncio.create_task(master.run())
        await master.elected.wait()
        await stack.enter_async_context(rotating_while_leading(master, apart, settings, KEY))
        with_history(theirs)
        yield master, Client(theirs.log, theirs.bus, CLUSTER, user="me", connection=theirs)
        running.cancel()
        await asyncio.wait([running])


async def busy(client: Client, times: int) -> None:
    """So many records, and a seal of them."""
    for number in range(times):
        await client.change_policy(PolicyChanged(quiet_ms=100 + number))
    await client.seal()


async def rotated(client: Client) -> list[LogRotated]:
    return [cut async for cut in rotate(client, keep_records=0, keep_s=0.0)]


async def test_a_rotated_log_reads_as_one_log(server: NatsServer, tmp_path: Path) -> None:
    settings = Settings(spool=tmp_path / "spool", place=str(tmp_path / "archives"))
    async with leading(server, settings) as (_, client):
        await busy(client, 20)
        before = await records_of(client.log)
        (first,) = await rotated(client)
        await busy(client, 5)
        (second,) = await rotated(client)
        assert (first.after, second.after) == (0, first.upto)
        assert (await records_of(client.log))[: len(before)] == before
        assert (await verify_seals(client.log)).good
        assert (await verify(client.log)).good
        with raises(Refused, "rotation.nothing_due"):
            await rotated(client)

    # Another master starts without the archives, and finds the log whole.
    (tmp_path / "archives").rename(tmp_path / "away")
    async with leading(server, Settings(spool=tmp_path / "spool")) as (master, client):
        assert master.state.seq > second.upto
        assert (await client.state()).settings.quiet_ms == 104
        with raises(LogRefused, "archive.missing", str(tmp_path / "archives")):
            await records_of(client.log)
        with raises(Refused, "rotation.no_archives"):
            await rotated(client)
        moved = with_history(await Connection.open(server.url, CLUSTER), str(tmp_path / "away"))
        assert (await records_of(moved.log))[: len(before)] == before
        await moved.close()


async def test_records_that_a_webhook_has_yet_to_deliver_are_kept(server: NatsServer, tmp_path: Path) -> None:
    settings = Settings(spool=tmp_path / "spool", place=str(tmp_path / "archives"))
    async with leading(server, settings) as (_, client):
        connection = await Connection.open(server.url, CLUSTER)
        late, never = (
            connection.places.reader(f"{WEBHOOK}{kind}", [fact_pattern(CLUSTER, kind)], after=0, most=64)
            for kind in ("PolicyChanged", "NodeLeft")
        )
        await late.open()
        await never.open()  # It waits for nothing, so it holds nothing.
        await busy(client, 20)
        assert await connection.places.needed_from(WEBHOOK) == 1
        with raises(Refused, "rotation.nothing_due"):
            await rotated(client)
        given = [one for _ in range(20) if (one := await late.next()) is not None]
        for one in [*given[:10], *given[11:]]:
            await one.done()
        assert await connection.places.needed_from(WEBHOOK) == given[9].record.seq + 1
        with raises(Refused, "rotation.nothing_due"):
            await rotated(client)
        await given[10].done()
        assert await connection.places.needed_from(WEBHOOK) is None
        (cut,) = await rotated(client)
        assert cut.upto > given[-1].record.seq
        await connection.close()


async def test_only_records_covered_by_a_cut_may_be_missing(server: NatsServer, tmp_path: Path) -> None:
    settings = Settings(spool=tmp_path / "spool", place=str(tmp_path / "archives"))
    async with leading(server, settings) as (_, client):
        await busy(client, 10)
        (cut,) = await rotated(client)
        await busy(client, 3)
    connection = await Connection.open(server.url, CLUSTER)
    stream = connection.stream
    await stream.check()
    assert await stream.start() == cut.upto
    with raises(LogRefused, "log.not_archived"):
        await stream.purge(cut.upto + 2)
    with raises(Archived, "log.archived"):
        await records_of(stream)
    await connection.close()

    owner = await nats.connect(server.url)
    await owner.jetstream().purge_stream(log_stream(CLUSTER), seq=cut.upto + 3)
    await owner.close()
    connection = await Connection.open(server.url, CLUSTER)
    with raises(LogDamaged, "log.records_removed"):
        await connection.stream.end()
    with raises(LogDamaged, "log.records_lost"):
        await connection.stream.check()
    await connection.close()


async def test_the_doctor_sees_what_failed_since_the_last_rotation(server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "archives").write_text("a file where the archives' folder should be")
    settings = Settings(spool=tmp_path / "spool", place=str(tmp_path / "archives"))
    async with leading(server, settings) as (_, client):
        connection = await Connection.open(server.url, CLUSTER)
        await busy(client, 20)
        assert await rotation_findings(connection) == []
        with raises(Refused, "archive.store.failed"):
            await rotated(client)
        with raises(Refused, "rotation.nothing_due"):  # Somebody keeps more, and asks in vain.
            [cut async for cut in rotate(client, keep_records=10**6)]
        (found,) = await rotation_findings(connection)
        assert (found.level, found.check) == ("wrong", "rotation")
        (tmp_path / "archives").unlink()
        await rotated(client)
        assert await rotation_findings(connection) == []
        await connection.close()
