"""`dorm exec`, `shell` and `port-forward` on a cluster of processes that knows its users."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import termios
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.cli.terminals import Terminal
from tests.e2e.commands import DORM, done, dorm, refused, running, until_printed
from tests.e2e.local_up import Up, leaving_nothing, named, talker, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

LISTEN = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data.upper())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """With an app of the admin's that runs in two containers, on a node that trusts all apps."""
    folder = tmp_path_factory.mktemp("sessions")
    async with leaving_nothing(folder), up(folder, "--trust-apps", known=True) as running_cluster:
        await done(running_cluster.home, "submit", write_spec(folder, talker("train", n_min=2, n_max=2, pause=1.0)))
        async with running_cluster.client() as client:
            await until(client, lambda state: named(state, "train").phase == "running", "it runs")
        yield running_cluster


async def test_exec_passes_on_streams_and_exit_code(cluster: Up) -> None:
    home, data = cluster.home, bytes(range(256)) * 1000
    script = "cat; echo $DORM_RANK $DORM_WORLD_SIZE >&2; exit 7"
    code, out, err = await dorm(home, "exec", "train/1", "--", "sh", "-c", script, stdin="given")
    assert (code, out, err) == (7, "given", "1 2\n")
    code, out, _ = await dorm(home, "exec", "train", "--", "md5sum", stdin=data)
    assert (code, out.split()[0]) == (0, hashlib.md5(data).hexdigest())
    assert await done(home, "exec", "-n", "train", "cat", stdin="not this") == ""
    assert "[container.command.not_found]" in await refused(home, "exec", "train", "no-such-program", code=127)
    assert "[session.timed_out]" in await refused(home, "exec", "--timeout", "300ms", "train", "sleep", "600", code=124)


async def test_a_container_that_cannot_be_entered_is_reported_in_one_line(cluster: Up) -> None:
    home = cluster.home
    for arguments, exit_code, code in (
        (("exec", "train/7", "true"), 1, "rank.not_found"),
        (("exec", "nothing", "true"), 1, "app.not_found"),
        (("exec", "train/x", "true"), 2, "usage.container.malformed"),
        (("exec", "train", ""), 2, "usage.nothing_to_do"),
        (("exec", "-t", "train", "sh"), 2, "usage.no_terminal"),
        (("shell", "train"), 2, "usage.no_terminal"),
        (("port-forward", "train", "x"), 2, "usage.port.malformed"),
        (("port-forward", "train", "70000"), 2, "usage.port.malformed"),
    ):
        assert f"[{code}]" in await refused(home, *arguments, code=exit_code)
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        assert "[session.local_port.taken]" in await refused(home, "port-forward", "train", f"{port}:6006", code=1)


async def test_signals_reach_the_command(cluster: Up, tmp_path: Path) -> None:
    script = 'trap "echo got it; exit 5" INT; echo ready; while :; do sleep 0.05; done'
    async with running(cluster.home, tmp_path / "log", "exec", "train", "--", "sh", "-c", script) as process:
        await until_printed(tmp_path / "log", "ready", process)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 20) == 5
    assert (tmp_path / "log").read_text() == "ready\ngot it\n"


async def test_a_shell_has_a_terminal_that_is_restored_afterwards(cluster: Up) -> None:
    terminal = Terminal(*DORM, "shell", "train/1", "--shell", "sh", home=cluster.home, columns="")
    try:
        await asyncio.to_thread(terminal.until, "Ctrl-D leaves it")
        await asyncio.to_thread(terminal.press, "echo rank $DORM_RANK, $(stty size); exit 3\n")
        await asyncio.to_thread(terminal.until, "rank 1, 24 80")
        assert (await asyncio.to_thread(terminal.ended))[0] == 3
        assert termios.tcgetattr(terminal.inside) == terminal.before
    finally:
        terminal.close()
    killed = Terminal(*DORM, "shell", "train", "--shell", "sh", home=cluster.home)
    try:
        await asyncio.to_thread(killed.press, "echo $((6 * 7)) is it\n")
        await asyncio.to_thread(killed.until, "42 is it")
        assert termios.tcgetattr(killed.inside) != killed.before
        killed.program.send_signal(signal.SIGTERM)
        assert (await asyncio.to_thread(killed.ended))[0] == 128 + signal.SIGTERM
        assert termios.tcgetattr(killed.inside) == killed.before
    finally:
        killed.close()


async def test_many_connections_reach_a_port_of_the_container(cluster: Up, tmp_path: Path) -> None:
    home, server, log = cluster.home, tmp_path / "server", tmp_path / "log"
    (tmp_path / "listen.py").write_text(LISTEN)
    async with running(home, server, "exec", "-n", "train", "--", "python3", str(tmp_path / "listen.py")) as listening:
        port = (await until_printed(server, "\n", listening)).strip()
        async with running(home, log, "port-forward", "train", f"0:{port}") as forwarding:
            said = await until_printed(log, " -> ", forwarding)
            local = int(said.split(" ")[0].rpartition(":")[2])

            async def echoed(number: int) -> bytes:
                reader, writer = await asyncio.open_connection("127.0.0.1", local)
                writer.write(b"%04d" % number + b"x" * 200_000)
                writer.write_eof()
                return await reader.read()

            found = await asyncio.wait_for(asyncio.gather(*(echoed(number) for number in range(12))), 30)
            assert found == [b"%04d" % number + b"X" * 200_000 for number in range(12)]
            forwarding.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(forwarding.wait(), 20) == 0


async def test_a_stranger_enters_nothing_and_the_log_names_who_did(cluster: Up, tmp_path: Path) -> None:
    home = cluster.home
    for name, role in (("mallory", "user"), ("rita", "reader"), ("olga", "operator")):
        await done(home, "user", "add", name, "--role", role, "--to", str(tmp_path / f"{name}.json"))
    who = {name: ("--credentials", str(tmp_path / f"{name}.json")) for name in ("mallory", "rita", "olga")}
    assert "[session.forbidden]" in await refused(home, "exec", *who["rita"], "train", "id", code=1)
    async with cluster.client() as client:
        app = named(await client.state(), "train")
    for name in ("train", app.id):
        assert "[app.not_found]" in await refused(home, "exec", *who["mallory"], name, "id", code=1)
    assert await done(home, "exec", *who["olga"], "train", "--", "echo", "--token", "abc1234") == "--token abc1234\n"
    mine = {**talker("hers", pause=1.0), "demand": {"cpu": "100m", "memory": "16MiB"}}
    await done(home, "submit", *who["mallory"], write_spec(tmp_path, mine))
    async with cluster.client() as client:
        await until(client, lambda state: named(state, "hers").phase == "running", "it runs")
    assert (await done(home, "exec", *who["mallory"], "hers", "--", "printenv", "DORM_SLOT")) == "0\n"
    found = [
        json.loads(line) for line in (await done(home, "events", "--kind", "SessionStarted", "-o", "json")).splitlines()
    ]
    told = {(one["user"], one.get("command")) for one in found}
    assert {("olga", "echo --token [hidden]"), ("mallory", "printenv DORM_SLOT")} <= told
    story = await done(home, "story", "train")
    assert "olga ran a command in slot 0" in story
    assert "the command ended with exit code 0" in story
    seen = await done(home, "events", *who["mallory"], "--kind", "SessionStarted", "-o", "json")
    assert [json.loads(line)["user"] for line in seen.splitlines()] == ["mallory"]


async def test_the_end_of_a_container_ends_its_sessions(cluster: Up, tmp_path: Path) -> None:
    home, log = cluster.home, tmp_path / "log"
    short = {**talker("short", pause=1.0), "demand": {"cpu": "100m", "memory": "16MiB"}}
    await done(home, "submit", write_spec(tmp_path, short))
    async with cluster.client() as client:
        await until(client, lambda state: named(state, "short").phase == "running", "it runs")
    async with running(home, log, "exec", "short", "--", "sh", "-c", "echo ready; sleep 600") as process:
        await until_printed(log, "ready", process)
        await done(home, "cancel", "short", "--wait")
        assert await asyncio.wait_for(process.wait(), 20) == 1
    assert "[session.container.ended]" in log.read_text()
    assert "[session.container.not_running]" in await refused(home, "exec", "short", "true", code=1)


async def test_completion_knows_ranks(cluster: Up) -> None:
    words = {"_DORM_COMPLETE": "complete_bash", "COMP_WORDS": "dorm exec train/", "COMP_CWORD": "2"}
    assert (await done(cluster.home, env=words)).split() == ["train/0", "train/1"]
