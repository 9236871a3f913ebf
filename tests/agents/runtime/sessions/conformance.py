"""What every runtime keeps of commands that people run in containers, and of ports there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import Command, End, Key, Refused, Terminal
from tests.agents.harness import PATIENCE_S, POLITE, Harness, processes, running, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agents.runtime.interface import Execution, Runtime

LISTEN = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens at", listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""
_KILLED = """
import asyncio, sys
from pathlib import Path
from agents.runtime.docker.runtime import DockerRuntime
from agents.runtime.process.runtime import ProcessRuntime
from agents.runtime.interface import Command
from agents.runtime.interface import Key

async def main():
    runtime = eval(sys.argv[1])
    await runtime.open()
    execution = await runtime.execute(Key("app", int(sys.argv[2]), 0), Command(("sh", "-c", sys.argv[3]), "killed"))
    print((await execution.read())[1].decode(), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def output(execution: Execution, *, until: bytes = b"") -> dict[int, bytes]:
    """What it writes by stream, to its end or until standard output holds this."""
    found = {1: b"", 2: b""}
    async with asyncio.timeout(PATIENCE_S):
        while (piece := await execution.read()) is not None:
            found[piece[0]] += piece[1]
            if until and until in found[1]:
                break
    return found


async def none_left(word: str) -> None:
    """Wait until no process has this argument."""
    async with asyncio.timeout(PATIENCE_S):
        while processes(word):  # noqa: ASYNC110  (no event reports it)
            await asyncio.sleep(0.05)


class ExecutionConformance:
    """The suite; subclasses have the fixture `harness`."""

    @pytest.fixture
    async def runtime(self, harness: Harness) -> AsyncIterator[Runtime]:
        async with harness.opened() as runtime:
            yield runtime

    @contextlib.asynccontextmanager
    async def executed(
        self, runtime: Runtime, key: Key, *words: str, terminal: Terminal | None = None
    ) -> AsyncIterator[Execution]:
        execution = await runtime.execute(key, Command(words, f"s{id(words):x}", terminal))
        try:
            yield execution
        finally:
            await execution.close()

    @pytest.fixture
    async def key(self, harness: Harness, runtime: Runtime) -> Key:
        """A container that runs."""
        spec = harness.shell("pwd; " + POLITE, env={"COLOR": "blue"})
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        return spec.key

    async def test_a_command_has_the_containers_surroundings_and_its_own_streams(
        self, runtime: Runtime, key: Key
    ) -> None:
        script = 'cat; echo "$COLOR $(id -u)"; pwd; dirname "$DORM_PROGRESS"; echo trouble >&2; exit 3'
        async with self.executed(runtime, key, "sh", "-c", script) as execution:
            await execution.write(b"first\n" * 10_000)
            await execution.write(b"last\n")
            await execution.end_input()
            said = await output(execution)
            assert (await execution.ended()) == End(3, with_container=False)
            assert await execution.read() is None
        lines = said[1].splitlines()
        assert lines[:10_001] == [b"first"] * 10_000 + [b"last"]
        user = runtime.run_dir(key).stat().st_uid
        written = await logged(runtime, key)
        assert lines[10_001:] == [f"blue {user}".encode(), written.split()[0], runtime.run_mount(key).encode()]
        assert said[2] == b"trouble\n"
        assert b"last" not in written, "it is not the container's output"

    async def test_a_terminal_has_a_size_that_changes_and_an_end_of_input(self, runtime: Runtime, key: Key) -> None:
        script = 'test -t 0 && test -t 1 && test -t 2 && echo "on $TERM"; read x; stty size; read x; stty size; cat; echo over'
        async with self.executed(runtime, key, "sh", "-c", script, terminal=Terminal(91, 17, "vt100")) as execution:
            await output(execution, until=b"on vt100")
            await execution.write(b"go\n")
            await output(execution, until=b"17 91")
            await execution.resize(120, 40)
            await execution.write(b"go on\n")
            await output(execution, until=b"40 120")
            await execution.write(b"typed\n")
            await execution.end_input()
            rest = (await output(execution))[1]
            assert rest.split().count(b"typed") == 2, "once by the terminal's echo"
            assert b"over" in rest
            assert (await execution.ended()).exit_code == 0

    async def test_a_program_that_is_not_there_is_refused(self, runtime: Runtime, key: Key) -> None:
        """At once, or by engines before 28 in the end."""
        try:
            async with self.executed(runtime, key, "no-such-program") as execution:
                assert await output(execution) == {1: b"", 2: b""}
                refused = (await execution.ended()).refused
        except Refused as error:
            refused = f"{error.cause} {error.code} {error}"
        assert "no-such-program" in refused

    async def test_a_signal_reaches_its_whole_group(self, runtime: Runtime, key: Key) -> None:
        script = 'trap "echo interrupted; exit 9" INT; echo ready; while :; do sleep 0.05; done'
        async with self.executed(runtime, key, "sh", "-c", script) as execution:
            await output(execution, until=b"ready")
            await execution.signal(signal.SIGINT)
            assert (await output(execution))[1].endswith(b"interrupted\n")
            assert (await execution.ended()).exit_code == 9
        assert await runtime.runs(key)

    async def test_all_that_it_started_ends_with_it(self, runtime: Runtime, key: Key, unused_number: str) -> None:
        sleep = f"sleep {unused_number}"
        async with self.executed(
            runtime, key, "sh", "-c", f"setsid {sleep} & {sleep} & echo ready; {sleep}"
        ) as execution:
            await output(execution, until=b"ready")
            async with asyncio.timeout(PATIENCE_S):
                while len(processes(unused_number)) < 3:  # noqa: ASYNC110  (no event reports it)
                    await asyncio.sleep(0.05)
        await none_left(unused_number)
        async with self.executed(
            runtime, key, "sh", "-c", f"trap '' HUP; {sleep} > /dev/null 2>&1 & echo done"
        ) as execution:
            assert (await output(execution))[1] == b"done\n", "what is left behind does not keep it"
            assert (await execution.ended()).exit_code == 0
        await none_left(unused_number)
        assert await runtime.runs(key)

    async def test_it_ends_with_its_container(self, runtime: Runtime, key: Key, unused_number: str) -> None:
        async with self.executed(runtime, key, "sh", "-c", f"echo ready; exec sleep {unused_number}") as execution:
            await output(execution, until=b"ready")
            await runtime.stop(key, 0)
            assert (await output(execution))[1] == b""
            assert await execution.ended() == End(137, with_container=True)
        await none_left(unused_number)
        assert not await runtime.runs(key)
        with pytest.raises(KeyError):
            await runtime.execute(key, Command(("true",), "late"))
        with pytest.raises(KeyError):
            await runtime.listener(key, 80)
        assert not await runtime.runs(Key("nobody", 1, 0))

    async def test_it_ends_with_the_agent_and_the_container_does_not(
        self, harness: Harness, unused_number: str
    ) -> None:
        spec = harness.shell(POLITE)
        async with harness.opened() as before:
            await before.ensure(spec)
        script = f"trap '' HUP TERM; sleep {unused_number} & echo ready; sleep {unused_number}"
        agent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _KILLED, harness.expression, str(spec.key.generation), script),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[4],
        )
        assert agent.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (line := await agent.stdout.readline()) != b"ready\n":
                    assert line, "it ended by itself"
            await running(unused_number)
        finally:
            agent.kill()
            await agent.wait()
        await none_left(unused_number)
        async with harness.opened() as after:
            assert await after.runs(spec.key)

    async def test_unread_output_waits(self, runtime: Runtime, key: Key) -> None:
        script = "i=0; while :; do printf %01000d $i; i=$((i + 1)); done"
        async with self.executed(runtime, key, "sh", "-c", script) as execution:
            first = await execution.read()
            assert first is not None
            waiting = asyncio.create_task(execution.read())
            await asyncio.wait({waiting})
            await execution.close()  # and a second time at the end
            async with asyncio.timeout(PATIENCE_S):
                assert len((await output(execution))[1]) < 1 << 20

    async def test_a_port_is_the_containers_only_if_a_process_of_it_listens(
        self, harness: Harness, runtime: Runtime
    ) -> None:
        spec = harness.spec("python3", "-c", LISTEN, "0")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"listens at ")
        written = await logged(runtime, spec.key)
        found = await runtime.listener(spec.key, int(written.split()[2]))
        assert found is not None
        reader, writer = await asyncio.open_connection(found.address, int(written.split()[2]))
        writer.write(b"hello")
        assert await reader.read() == b"HELLO"
        writer.close()
        other = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        async with other:
            assert await runtime.listener(spec.key, other.sockets[0].getsockname()[1]) is None
        async with self.executed(runtime, spec.key, "python3", "-c", LISTEN, "0") as execution:
            port = int((await output(execution, until=b"\n"))[1].split()[2])
            assert (await runtime.listener(spec.key, port)) is not None, "a session's process is the container's too"


async def logged(runtime: Runtime, key: Key) -> bytes:
    """What the container itself has written."""
    return b"".join([chunk async for chunk in runtime.logs(key, follow=False, tail=None)])
