"""The embedded NATS server: it starts on its data or says in one line why not."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import aclosing
from typing import TYPE_CHECKING

import psutil
import pytest
from structlog.testing import capture_logs

from dorm.local.nats_server import EmbeddedError, EmbeddedServer, free_port, in_use
from events.log.records import LogUnavailable
from events.nats.connection import Connection
from tests.e2e.commands import dorm, processes_of
from tests.errors import raises
from tests.lab.machines.small_disk import small_disk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nats


async def test_stored_records_survive_a_restart(tmp_path: Path) -> None:
    for expected in (0, 1):
        server = EmbeddedServer(tmp_path)
        await server.start()
        try:
            assert await _append(server) == expected + 1
        finally:
            await server.stop()
    assert processes_of(tmp_path) == {}


async def _append(server: EmbeddedServer) -> int:
    """Its sequence."""
    connection = await Connection.open(server.url, "local", create=True)
    try:
        return (await connection.log.append("dorm.local.NoSuchKind.tester", b"{}")).seq
    finally:
        await connection.close()


async def test_it_listens_on_ipv6(tmp_path: Path) -> None:
    try:
        port = free_port("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    server = EmbeddedServer(tmp_path, host="::1", port=port)
    assert not in_use("::1", port)
    await server.start()
    try:
        assert in_use("::1", port)
        assert server.url == f"nats://[::1]:{port}"
        assert await _append(server) == 1
    finally:
        await server.stop()


async def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with raises(EmbeddedError, "port.in_use", str(port)):
            await EmbeddedServer(tmp_path, port=port).start()
    server = EmbeddedServer(tmp_path, port=port)
    await server.start()
    assert server.url == f"nats://127.0.0.1:{port}"
    await server.stop()


async def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with raises(EmbeddedError, "data.not_writable"):
        await EmbeddedServer(tmp_path / "file" / "nats").start()
    code, out, err = await dorm(tmp_path, "up", "--runtime", "process", "--port", "0", "--data", str(tmp_path / "file"))
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.endswith(" [data.not_writable]\n")


async def test_the_servers_own_complaint(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("in the way")
    with raises(EmbeddedError, "server.ended"):
        await EmbeddedServer(tmp_path).start()
    assert processes_of(tmp_path) == {}


async def test_one_folder_has_one_server(tmp_path: Path) -> None:
    first, second = EmbeddedServer(tmp_path / "nats"), EmbeddedServer(tmp_path / "nats")
    await first.start()
    try:
        with raises(EmbeddedError, "data.in_use"):
            await second.start()
        await _append(first)
    finally:
        await first.stop()
    await second.start()
    await second.stop()


@pytest.mark.parametrize("stopped", [False, True], ids=["runs", "takes no signals"])
async def test_a_server_that_was_left_behind_is_ended(tmp_path: Path, stopped: bool) -> None:
    left = EmbeddedServer(tmp_path / "nats")
    await left.start()
    pid = int((tmp_path / "nats" / "nats.pid").read_text())
    created = psutil.Process(pid).create_time()
    # As the kernel does when a process is killed: the lock is free, the server runs on.
    assert left._lock is not None
    os.close(left._lock)
    left._lock = None
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    following = EmbeddedServer(tmp_path / "nats")
    await following.start()
    try:
        assert psutil.Process(int((tmp_path / "nats" / "nats.pid").read_text())).create_time() != created
        await _append(following)
    finally:
        await following.stop()
        await left.stop()
    assert processes_of(tmp_path) == {}


async def test_a_process_that_only_has_the_pid_of_an_old_server_is_left_alone(tmp_path: Path) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "60")
    (tmp_path / "nats.pid").write_text(str(other.pid))
    server = EmbeddedServer(tmp_path)
    await server.start()
    await server.stop()
    assert other.returncode is None
    other.kill()
    await other.wait()


def kill(folder: Path) -> int:
    """`kill -9` of the server of this folder; its pid."""
    pid = int((folder / "nats.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    return pid


async def until_another(folder: Path, pid: int) -> None:
    """Until a later server than this one is there."""
    async with asyncio.timeout(30.0):
        while (folder / "nats.pid").read_text() in ("", str(pid)):  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(0.01)


async def test_a_killed_server_is_restarted_a_limited_number_of_times(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    connection = await Connection.open(server.url, "local", create=True)
    with capture_logs() as said:
        keeping = asyncio.create_task(server.keep_running())
        try:
            for expected in range(1, 7):
                assert await _append(server) == expected
                pid = kill(tmp_path)
                if expected < 6:
                    await until_another(tmp_path, pid)
                    async with asyncio.timeout(30.0), aclosing(connection.log.read(follow=True)) as batches:
                        assert [record.seq for record in await anext(batches)] == list(range(1, expected + 1))
            async with asyncio.timeout(20.0):
                with raises(EmbeddedError, "server.keeps_ending", "SIGKILL", "nats.log"):
                    await keeping
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            await connection.close()
            await server.stop()
    assert [line["event"] for line in said if line["log_level"] == "warning"] == [
        "the NATS server ended (SIGKILL); it is started again on the same data"
    ] * 5
    assert processes_of(tmp_path) == {}


async def test_a_stop_that_is_cancelled_kills(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    os.kill(int((tmp_path / "nats.pid").read_text()), signal.SIGSTOP)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert processes_of(tmp_path) == {}
    assert not (tmp_path / "nats.pid").exists()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    starting = asyncio.create_task(server.start())
    while not (tmp_path / "nats.pid").exists():  # noqa: ASYNC110  # nothing else tells
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert processes_of(tmp_path) == {}
    assert not (tmp_path / "nats.pid").exists()


async def test_a_server_whose_disk_was_full_is_restarted_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would continue to store nothing. Acknowledged records are kept, and clients continue by themselves."""
    monkeypatch.setattr("dorm.local.nats_server._LOOK_S", 0.1)
    monkeypatch.setattr("dorm.local.nats_server._LOW", 2 * 2**20)
    with small_disk(tmp_path / "small") as enlarge:
        server = EmbeddedServer(tmp_path / "small" / "nats")
        await server.start()
        running = asyncio.create_task(server.keep_running())
        connection = await Connection.open(server.url, "local", create=True)
        stored = 0
        while await stores(connection, os.urandom(1_000_000)):
            stored += 1
        pid = int((tmp_path / "small" / "nats" / "nats.pid").read_text())
        enlarge()
        await until_another(tmp_path / "small" / "nats", pid)
        async with asyncio.timeout(30):
            while not await stores(connection, b"", msg_id="after"):  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(0.1)
        assert await connection.log.end() == stored + 1
        running.cancel()
        await asyncio.wait({running})
        await connection.close()
        await server.stop()


async def stores(connection: Connection, body: bytes, msg_id: str = "") -> bool:
    try:
        await connection.log.append("dorm.local.NoSuchKind.tester", body, msg_id=msg_id, timeout=1.0)
    except LogUnavailable:
        return False
    return True
