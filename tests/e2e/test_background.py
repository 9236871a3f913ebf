"""Programs that a shell starts in the background: it has them ignore SIGINT, so that Ctrl-C stops only the foreground."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from dorm.client.client import Client
from tests.e2e.commands import REPOSITORY, done, environment, running, until_printed
from tests.e2e.local_up import leaving_nothing, named, trainer, write_spec
from tests.e2e.story import until

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_UP = ("up", "--runtime", "process", "--port", "0", "--capacity", "cpu=1,memory=1GiB", "--open")


def in_the_background(command: Iterable[str]) -> list[str]:
    """A command that ignores SIGINT from its start, as in `sh -c 'command &'`."""
    return ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]


@pytest.mark.nats
@pytest.mark.slow
async def test_a_cluster_in_the_background_ignores_ctrl_c_and_stops_on_sigterm(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder:
        home, log = folder / "home", folder / "up.log"
        async with running(home, log, *_UP, enter=in_the_background) as process:
            await until_printed(log, f"kill {process.pid} stops everything gracefully", process)
            process.send_signal(signal.SIGINT)
            await done(home, "submit", write_spec(folder, trainer("kept", 400)))
            url = json.loads((home / "running.json").read_text())["url"]
            async with await Client.open(url, user="tester") as client:
                await until(client, lambda s: named(s, "kept").step >= 5, "it trains")
            assert psutil.pid_exists(process.pid)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30.0) == 0
            text = log.read_text()
            assert f"stopping: 1 app checkpoints first; kill {process.pid} again stops at once" in text
            assert "stopped; the next `dorm up` resumes from here" in text


@pytest.mark.slow
@pytest.mark.soak
async def test_the_ctrl_c_tests_pass_in_the_background(tmp_path: Path) -> None:
    """`make test &` in a script: what the tests start hears Ctrl-C all the same."""
    test = "tests/replay/test_replay_commands.py::test_ctrl_c_leaves_no_file"
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'own'}",
        test,
    ]
    process = await asyncio.create_subprocess_exec(
        *in_the_background(words), cwd=REPOSITORY, env=environment(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 100.0)
    assert process.returncode == 0, out.decode()
    assert b"1 passed" in out
