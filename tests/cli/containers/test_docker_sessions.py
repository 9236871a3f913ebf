"""`dorm exec`, `shell` and `port-forward` into containers of a Docker engine."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.containers.test_sessions import LISTEN
from tests.cli.terminals import Terminal
from tests.e2e.commands import DORM, done, dorm, refused, running, until_printed
from tests.e2e.local_up import leaving_nothing, named, up, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.docker, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(300)]

APP = {
    "name": "train",
    "command": ["python3", "-c", LISTEN],
    "demand": {"cpu": "250m", "memory": "64MiB"},
    "n_min": 2,
    "n_max": 2,
}


async def test_containers_of_an_engine_are_entered(tmp_path: Path, docker_host: str, docker_image: str) -> None:
    async with (
        leaving_nothing(tmp_path) as folder,
        up(folder, "--runtime", "docker", "--docker", docker_host, known=True) as one,
    ):
        home = one.home
        await done(home, "submit", write_spec(folder, {**APP, "image": docker_image}))
        async with one.client() as client:
            await until(client, lambda state: named(state, "train").phase == "running", "it runs")
        script = "cat; echo $DORM_RANK >&2; exit 7"
        assert await dorm(home, "exec", "train/1", "--", "sh", "-c", script, stdin="given") == (7, "given", "1\n")
        assert "[container.command.not_found]" in await refused(home, "exec", "train", "no-such-program", code=127)
        assert "[session.timed_out]" in await refused(
            home, "exec", "--timeout", "1s", "train", "sleep", "600", code=124
        )
        log = tmp_path / "interrupted"
        trap = 'trap "echo got it; exit 5" INT; echo ready; while :; do sleep 0.05; done'
        async with running(home, log, "exec", "train", "--", "sh", "-c", trap) as process:
            await until_printed(log, "ready", process)
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 20) == 5
        terminal = Terminal(*DORM, "shell", "train/1", home=home, columns="")
        try:
            await asyncio.to_thread(terminal.until, "Ctrl-D leaves it")
            await asyncio.to_thread(terminal.press, "echo rank $DORM_RANK, $(stty size); exit 3\n")
            await asyncio.to_thread(terminal.until, "rank 1, 24 80")
            assert (await asyncio.to_thread(terminal.ended))[0] == 3
        finally:
            terminal.close()
        port = (await done(home, "logs", "train")).split()[0]
        forwarded = tmp_path / "forwarded"
        async with running(home, forwarded, "port-forward", "train", f"0:{port}") as forwarding:
            local = (await until_printed(forwarded, " -> ", forwarding)).split(" ")[0].rpartition(":")[2]
            reader, writer = await asyncio.open_connection("127.0.0.1", int(local))
            writer.write(b"hello")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 20) == b"HELLO"
            writer.close()
            async with running(home, tmp_path / "other", "port-forward", "train/1", f"0:{port}") as other:
                local = (await until_printed(tmp_path / "other", " -> ", other)).split(" ")[0].rpartition(":")[2]
                reader, _ = await asyncio.open_connection("127.0.0.1", int(local))
                assert await asyncio.wait_for(reader.read(), 20) == b"", "rank 0 listens there, and not rank 1"
                await until_printed(tmp_path / "other", "session.port.not_listening", other)
        async with running(home, log, "exec", "train", "--", "sh", "-c", "echo inside; sleep 600") as process:
            await until_printed(log, "inside", process)
            await done(home, "cancel", "train", "--wait")
            assert await asyncio.wait_for(process.wait(), 20) == 1
        assert "[session.container.ended]" in log.read_text()
