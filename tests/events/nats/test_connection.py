"""Connecting to missing or unsuitable servers: the right error, one clear line, quickly."""
# ruff: noqa: ASYNC110 - only the server knows when it is ready

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest

from events import subjects
from events.log.records import LogError, LogRefused, LogTooOld, LogUnavailable
from events.nats.connection import Connection
from tests.errors import raises
from tests.events.log.readable_conformance import CLUSTER
from tests.lab.machines.nats_server import NatsServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.nats


async def refusal(url: str, cluster: str = CLUSTER, timeout: float = 1.0, *, create: bool = True) -> LogError:
    """Why no connection was made.  The time limit is for a connection that hangs."""
    async with asyncio.timeout(timeout + 9):
        with pytest.raises(LogError) as error:
            await Connection.open(url, cluster, timeout=timeout, create=create)
    assert "\n" not in str(error.value)
    return error.value


@asynccontextmanager
async def listening(greeting: bytes, *, hang_up: bool = False) -> AsyncIterator[str]:
    """A server that greets with these bytes, and answers a PING as NATS does."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        while not hang_up and (line := await reader.readline()):
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.close()


async def test_a_closed_port_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    # The timeout is far longer than this test may take: only an immediate error passes.
    async with asyncio.timeout(20):
        with raises(LogUnavailable, "log.no_server", f"nats://127.0.0.1:{port}"):
            await Connection.open(f"nats://127.0.0.1:{port}", CLUSTER, timeout=1000.0)


@pytest.mark.parametrize("secret", ["ann:hunter2", "T0KEN", "ann:hun/ter2", "ann:hun@ter2"])
async def test_no_error_repeats_a_password(secret: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for address in (f"nats://{secret}@127.0.0.1:{port}", f"http://{secret}@127.0.0.1", f"{secret}@127.0.0.1:{port}"):
        said = str(await refusal(address))
        assert "127.0.0.1" in said
        assert not [part for part in ("hun", "ter2", "T0KEN") if part in said], said


async def test_any_of_several_servers_works(nats_server: NatsServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    async with listening(b"") as silent:
        several = f"{closed}, {silent},{nats_server.url}"
        connection = await Connection.open(several, "several", timeout=9.0, create=True)
        assert connection.url == several.replace(" ", "")
        assert (await connection.log.append("dorm.several.A.x", b"")).seq == 1
        await connection.close()


async def test_all_closed_ports_are_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        url = ",".join(f"nats://127.0.0.1:{listener.getsockname()[1]}" for listener in (one, two))
    async with asyncio.timeout(20):
        with raises(LogUnavailable, "log.no_server", url):
            await Connection.open(url, CLUSTER, timeout=1000.0)


async def test_one_server_holds_no_three_replicas(nats_server: NatsServer) -> None:
    for replicas, why in ((3, "log.replicas.too_few_servers"), (2, "log.replicas.not_a_choice")):
        with raises(LogRefused, why):
            await Connection.open(nats_server.url, "replicated", create=True, replicas=replicas)


async def test_an_unknown_host() -> None:
    assert isinstance(await refusal("nats://nowhere.invalid:4222"), LogUnavailable)


async def test_a_silent_server() -> None:
    async with listening(b"") as url:
        error = await refusal(url)
    assert isinstance(error, LogUnavailable)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH\r\n", b"INFO {\r\n"])
async def test_a_server_of_another_kind(greeting: bytes) -> None:
    async with listening(greeting) as url:
        assert isinstance(await refusal(url), LogUnavailable)


async def test_a_server_that_hangs_up() -> None:
    async with listening(b"", hang_up=True) as url:
        assert isinstance(await refusal(url), LogUnavailable)


async def test_a_server_too_old() -> None:
    info = b'INFO {"version": "2.9.10", "max_payload": 1048576, "headers": true, "jetstream": true}\r\n'
    async with listening(info) as url:
        error = await refusal(url)
    assert isinstance(error, LogTooOld)
    assert "is 2.9.10; Dorm needs 2.12 or later" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "nats://127.0.0.1:port",
        "nats://127.0.0.1:4222,",
        "nats://a b,nats://c",
        "http://127.0.0.1:1",
        "nats://127.0.0.1:99999",
        "nats://[::1",
        "",
        "nats://",
        "a b",
    ],
)
async def test_an_address_of_no_server_is_refused(url: str) -> None:
    assert isinstance(await refusal(url), LogRefused)


@pytest.mark.parametrize("cluster", ["", "a.b", "a b", "a*", ">", "a\n", "a" * 65])
async def test_a_bad_cluster_name(cluster: str) -> None:
    error = await refusal("nats://127.0.0.1:1", cluster)
    assert isinstance(error, LogRefused)
    assert "use 1 to 64 letters, digits, '-' and '_'" in str(error)


@asynccontextmanager
async def plain_server(tmp_path: Path, *options: str) -> AsyncIterator[str]:
    """A NATS server without JetStream."""
    binary = Path(sys.executable).with_name("nats-server")
    ports = tmp_path / "ports"
    ports.mkdir()
    process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
        [binary, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", ports, *options], stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while not (found := list(ports.glob("*.ports"))) or not (text := found[0].read_text()).endswith("}"):
                await asyncio.sleep(0.01)
        yield "nats://" + text.split("nats://", 1)[1].split('"', 1)[0]
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def test_jetstream_is_off(tmp_path: Path) -> None:
    async with plain_server(tmp_path) as url:
        error = await refusal(url)
    assert isinstance(error, LogRefused)
    assert "JetStream is off" in str(error)


async def test_a_server_that_requires_a_password_refuses(tmp_path: Path) -> None:
    async with plain_server(tmp_path, "--user", "dorm", "--pass", "secret") as url:
        error = await refusal(url, timeout=5.0)
    assert isinstance(error, LogRefused)
    assert "does not let us in" in str(error)


async def test_several_open_the_same_new_log_at_once(nats_server: NatsServer) -> None:
    connections = await asyncio.gather(*(Connection.open(nats_server.url, "together", create=True) for _ in range(5)))
    assert sorted([(await c.log.append("dorm.together.A.x", b"")).seq for c in connections]) == [1, 2, 3, 4, 5]
    await asyncio.gather(*(connection.close() for connection in connections))


async def test_a_reader_creates_no_cluster(tmp_path: Path) -> None:
    """Neither by asking for one that is not there, nor with its name being the beginning of another's."""
    server = NatsServer(tmp_path)
    await server.start()
    try:
        alone = str(await refusal(server.url, "lab", create=False))
        assert alone.startswith(f"there is no cluster 'lab' at {server.url}, and no other; ")
        assert "`dorm up` or `dorm master`" in alone
        for cluster in ("lab-reports", "farm"):
            await (await Connection.open(server.url, cluster, create=True)).close()
        among = str(await refusal(server.url, "lab", create=False))
        assert f"there is no cluster 'lab' at {server.url}, only farm, lab-reports; name one with --cluster" in among
        assert str(await refusal(server.url, "lab", create=False)) == among
        await (await Connection.open(server.url, "farm")).close()
        assert "there is no cluster 'farm-reports'" in str(await refusal(server.url, "farm-reports", create=False))
    finally:
        await server.stop()


@pytest.mark.parametrize("other", ["named-reports", "named-snapshots", "reports-named", "snapshots-named"])
async def test_clusters_of_any_name_coexist(nats_server: NatsServer, other: str) -> None:
    for cluster in ("named", other):
        connection = await Connection.open(nats_server.url, cluster, create=True)
        assert (await connection.log.append(f"dorm.{cluster}.AppSubmitted.ann", b"first")).seq == 1
        await connection.bus.publish_report(subjects.report(cluster, "n1"), cluster.encode())
        report = await connection.bus.last_report(subjects.report(cluster, "n1"))
        assert report is not None
        assert report.body == cluster.encode()
        await connection.close()
    await delete_all(nats_server.url)


async def test_heartbeats_of_a_cluster_made_before_they_had_their_own_stream(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(name="DORM-older-reports", subjects=[subjects.reports("older")])
    for _ in range(2):
        connection = await Connection.open(nats_server.url, "older", create=True)
        await connection.bus.publish_report(subjects.report("older", "n1"), b"here")
        assert await connection.bus.last_report(subjects.report("older", "n1")) is not None
        await connection.close()
    with raises(LogRefused, "cluster.exists", "DORM-older-reports"):
        await Connection.open(nats_server.url, "older-reports", create=True)
    await client.close()
    await delete_all(nats_server.url)


async def delete_all(url: str) -> None:
    client = await nats.connect(url)
    names: list[str] = []
    while page := await client.jetstream().streams_info(len(names)):
        names += [str(stream.config.name) for stream in page]
    for name in names:
        if "named" in name or "older" in name:
            await client.jetstream().delete_stream(name)
    await client.close()


async def test_a_log_may_have_more_readers_than_a_server_allows_by_itself(nats_server: NatsServer) -> None:
    """Also one that was made before it said so: the server's thousand would leave out the agents beyond."""
    client = await nats.connect(nats_server.url)
    try:
        stream = client.jetstream()
        await stream.add_stream(name="DORM-crowd", subjects=[subjects.log_subjects("crowd")])
        for cluster in ("crowd", "crowd-new"):
            connection = await Connection.open(nats_server.url, cluster, create=True)
            await connection.close()
            assert (await stream.stream_info(f"DORM-{cluster}")).config.max_consumers == 25_000
    finally:
        await client.close()


async def test_only_expendable_records_are_acknowledged_before_they_are_on_disk(nats_server: NatsServer) -> None:
    """A server that syncs each write stores some hundred a second, and a thousand nodes report more than that."""
    connection = await Connection.open(nats_server.url, "fast", create=True)
    await connection.close()
    client = await nats.connect(nats_server.url)
    try:
        stream = client.jetstream()
        modes = {
            name: (await stream.stream_info(name)).config.persist_mode for name in ("DORM-fast", "DORM_reports-fast")
        }
    finally:
        await client.close()
    assert modes == {"DORM-fast": None, "DORM_reports-fast": "async"}


async def test_a_removed_identity_learns_it_while_another_task_appends(server: NatsServer) -> None:
    """Appends that are tried again must not make those who wait for the connection wait for ever."""
    connection = await Connection.open(server.url, "shut", create=True)
    link = connection._link
    await server.stop()
    async with asyncio.timeout(10):
        while not link.client.is_reconnecting:
            await asyncio.sleep(0.01)
    for _ in range(3):  # What a server that refuses this identity answers to each attempt to come back.
        await link._on_error(nats.errors.Error("nats: 'Authorization Violation'"))
    with raises(LogRefused, "log.no_permission"):
        await connection.log.append(subjects.fact("shut", "AppSubmitted", "me"), b"{}")
    with raises(LogRefused, "log.no_permission"):
        await link.connected(timeout=1)
    await connection.close()


async def test_a_flush_that_is_cancelled_does_not_end_the_connection(nats_server: NatsServer) -> None:
    connection = await Connection.open(nats_server.url, "flushed", create=True)
    lost: list[bool] = []
    connection._link.on_outage = lost.append
    for _ in range(20):
        flush = asyncio.create_task(connection._link.client.flush(timeout=10))
        await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait([flush])
    await connection._link.client.flush(timeout=5)
    assert await connection.log.end() == 0
    assert lost == []
    await connection.close()
