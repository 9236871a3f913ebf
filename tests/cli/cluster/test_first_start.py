"""Masters and agents that start before their servers, errors that end them at once, and a closed terminal."""
# ruff: noqa: ASYNC110 - only the log knows who leads

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from events.log.records import LogError
from events.nats.connection import Connection
from events.nats.streams import log_stream
from tests.e2e.commands import DORM, dorm, environment, running, until_printed
from tests.lab.machines.nats_server import NatsCluster, NatsServer
from tests.lab.machines.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(120)]


async def leads(url: str, cluster: str) -> str:
    """The holder of the lease, once there is one."""
    while True:
        with contextlib.suppress(LogError):
            connection = await Connection.open(url, cluster)
            try:
                held = await connection.leadership.look()
                if held is not None and held.holder:
                    return held.holder
            finally:
                await connection.close()
        await asyncio.sleep(0.1)


@pytest.mark.soak
async def test_two_masters_and_an_agent_that_start_first_wait_for_three_fresh_servers(tmp_path: Path) -> None:
    servers = NatsCluster(tmp_path / "nats")
    await servers.start()  # So that their addresses are known.
    await servers.stop()
    for server in servers.servers:
        shutil.rmtree(server.home / "data")
    common = ["--url", servers.url, "--cluster", "lab"]
    logs = [tmp_path / f"log-{number}" for number in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        commands = [
            ["master", *common, "--name", "a", "--key", str(tmp_path / "a.nk")],
            ["master", *common, "--name", "b", "--key", str(tmp_path / "b.nk")],
            ["agent", *common, "--name", "n1", "--runtime", "process", "--data", str(tmp_path / "agent")],
        ]
        processes = [
            await stack.enter_async_context(running(tmp_path / "home", log, *command))
            for log, command in zip(logs, commands, strict=True)
        ]
        for log, process in zip(logs, processes, strict=True):
            assert servers.url in await until_printed(log, "waiting for the log", process)
        stack.push_async_callback(servers.stop)
        await asyncio.gather(*(server.start() for server in servers.servers))
        async with asyncio.timeout(60):
            assert (await leads(servers.url, "lab"))[0] in "ab"
        await until_printed(logs[2], "joined", processes[2])
        assert [process.returncode for process in processes] == [None] * 3
        async with servers.owner() as jetstream:
            assert (await jetstream.stream_info(log_stream("lab"))).config.num_replicas == 3
        for process in processes:
            process.terminate()
        assert [await process.wait() for process in processes] == [0] * 3


@contextlib.asynccontextmanager
async def guarded(home: Path) -> AsyncIterator[int]:
    """The port of a server at which `app` may not use JetStream."""
    port = free_port()
    users = [{"user": "app", "password": "secret", "permissions": {"publish": {"deny": ["$JS.>"]}}}]
    config = {"port": port, "jetstream": {"store_dir": str(home / "data")}, "authorization": {"users": users}}
    home.mkdir()
    (home / "conf").write_text(json.dumps(config))
    command = ["-c", str(home / "conf"), "-l", str(home / "log")]
    process = await asyncio.create_subprocess_exec(os.path.join(os.path.dirname(DORM[0]), "nats-server"), *command)
    try:
        yield port
    finally:
        process.kill()
        await process.wait()


async def test_a_wrong_configuration_ends_them_at_once_with_one_line_of_json(tmp_path: Path) -> None:
    async with guarded(tmp_path / "nats") as port:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.05)
        no_key = ["--key", str(tmp_path / "m.nk"), "--log-json"]
        cases = {
            "does not let us in": ["master", "--url", f"nats://127.0.0.1:{port}", *no_key],
            "forbids a connection without credentials to publish": [
                *("agent", "--url", f"nats://app:secret@127.0.0.1:{port}", "--runtime", "process", "--log-json"),
            ],
            "is not the address of a NATS server": ["master", "--url", "nats://no host", *no_key],
            "--name: use 1 to 64": ["master", "--name", "no name", "--log-json"],
            "such option": ["agent", "--log-json", "--no-such"],
            "is in use": ["up", "--port", str(port), "--log-json", "--data", str(tmp_path / "up")],
        }
        for words, command in cases.items():
            code, out, err = await dorm(tmp_path / "home", *command)
            assert (code in (1, 2), out) == (True, ""), (command, out, err)
            ends = [one for one in map(json.loads, err.splitlines()) if one["level"] == "critical"]
            assert len(ends) == 1, err
            assert words in ends[0]["event"].lower() or words in ends[0]["event"], err


async def test_a_hangup_ends_a_master_gracefully_and_nohup_keeps_it(tmp_path: Path, nats_server: NatsServer) -> None:
    cluster = f"hangup-{tmp_path.name[-30:]}"
    command = ["master", "--url", nats_server.url, "--cluster", cluster, "--key", str(tmp_path / "m.nk"), "--name"]
    log = tmp_path / "log"
    given = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # These tests may run under nohup themselves.
    try:
        async with running(tmp_path / "home", log, *command, "plain", enter=list) as process:
            await until_printed(log, '"leading"', process)
            process.send_signal(signal.SIGHUP)
            assert await asyncio.wait_for(process.wait(), 60.0) == 0
    finally:
        signal.signal(signal.SIGHUP, given)
    connection = await Connection.open(nats_server.url, cluster)
    held = await connection.leadership.look()
    assert held is not None
    assert held.holder == "", "the lease was not given back"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As nohup does, which is inherited.
    try:
        async with running(tmp_path / "home", log, *command, "nohup", enter=list) as process:
            await until_printed(log, '"leading"', process)
            process.send_signal(signal.SIGHUP)
            revision = (await connection.leadership.look() or held).revision
            async with asyncio.timeout(20):
                while (await connection.leadership.look() or held).revision < revision + 3:
                    await asyncio.sleep(0.1)
            assert process.returncode is None
    finally:
        signal.signal(signal.SIGHUP, before)
    await connection.close()


@pytest.mark.parametrize("what", ["master", "up"])
async def test_closing_the_terminal_ends_a_command_gracefully(
    tmp_path: Path, nats_server: NatsServer, what: str
) -> None:
    """What it still writes to its terminal fails from then on."""
    cluster = f"terminal-{what}-{tmp_path.name[-20:]}"
    url = ["--url", nats_server.url, "--key", str(tmp_path / "m.nk")]
    own = ["--port", "0", "--runtime", "process", "--data", str(tmp_path / "data")]
    command = [*DORM, what, *(url if what == "master" else own), "--cluster", cluster, "-v"]
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Under `nohup` it would stay ignored, as it should.
        os.execve(command[0], command, environment(tmp_path / "home"))
    told = b""
    until = time.monotonic() + 40
    words = b"leading" if what == "master" else b"Ctrl-C stops everything"
    while words not in told:
        assert time.monotonic() < until, told
        told += await asyncio.to_thread(os.read, terminal, 65536)
    os.close(terminal)
    try:
        async with asyncio.timeout(40):
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)  # The thread would wait for it for ever, and the whole run for the thread.
        raise
    assert os.waitstatus_to_exitcode(status) == 0, told
    if what == "master":
        connection = await Connection.open(nats_server.url, cluster)
        held = await connection.leadership.look()
        await connection.close()
        assert held is not None
        assert held.holder == "", "the lease was not given back"
