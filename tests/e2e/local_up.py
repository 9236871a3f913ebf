"""`dorm up` as people run it in one terminal, for tests that then use it from another."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.client.opening import open_client
from dorm.local.home import Running
from events.nats.access import read_credentials
from tests.e2e.commands import Started, processes_of, running, until_gone, until_printed
from tests.e2e.story import spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.client.client import Client
    from dorm.core.state import App, State

_UP = ["up", "--runtime", "process", "--port", "0", "--capacity", "cpu=1,memory=1GiB"]
_NO_API = ["--no-api"]
"""Most tests need no API, and its process would cost each of them two seconds."""
TALKER = """\
import os, sys, time
print("I am", os.environ["DORM_APP"], os.environ["DORM_SLOT"], "of", os.environ["DORM_WORLD_SIZE"], flush=True)
for line in range(int(sys.argv[1])):
    print("line", line, flush=True)
    time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""


class Up:
    """A cluster that runs as a separate process."""

    def __init__(self, folder: Path, process: Started, log: Path) -> None:
        self.home = folder / "home"
        self.process = process
        self.log = log

    @property
    def running(self) -> Running:
        found = msgspec.json.decode((self.home / "running.json").read_bytes(), type=Running)
        return found

    @property
    def url(self) -> str:
        return self.running.url

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """The user who started it; on an open cluster `tester`."""
        running = self.running
        mine = read_credentials(Path(running.credentials)) if running.credentials else None
        async with await open_client(
            running.url, running.cluster, credentials=mine, user=None if mine else "tester"
        ) as client:
            yield client

    async def said(self, words: str, *, timeout: float = 30.0) -> str:
        return await until_printed(self.log, words, self.process, timeout=timeout)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)


@contextlib.asynccontextmanager
async def up(
    folder: Path, *more: str, agents: int = 2, ready: bool = True, api: bool = False, known: bool = False
) -> AsyncIterator[Up]:
    """Start it on the data in a folder; it is stopped in the end, in good order.  `known`: it knows its users, as usual; most
    tests are about something else, and save the time."""
    log = folder / f"up-{len(list(folder.glob('up-*.log')))}.log"
    async with running(
        folder / "home",
        log,
        *_UP,
        *([] if known else ["--open"]),
        *([] if api else _NO_API),
        "--agents",
        str(agents),
        *more,
    ) as process:
        cluster = Up(folder, process, log)
        try:
            if ready:
                await cluster.said("Ctrl-C stops", timeout=60.0 if api else 30.0)
            yield cluster
        except BaseException:
            print(f"--- {log.name}\n{log.read_text(errors='replace')}")
            raise


@contextlib.asynccontextmanager
async def leaving_nothing(folder: Path) -> AsyncIterator[Path]:
    """Of what has to do with a folder nothing runs after it; what a failed test left must not disturb the next one."""
    try:
        yield folder
    finally:
        for pid in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await until_gone(folder)


def talker(name: str, lines: int = 10_000, pause: float = 0.05, code: int = 0, **more: Any) -> dict[str, Any]:
    """An app that prints lines, one after the other, and ends with a code."""
    return {
        "name": name,
        "command": ["python3", "-c", TALKER, str(lines), str(pause), str(code)],
        "demand": {"cpu": "250m", "memory": "64MiB"},
        "retries": {"limit": 0},
        **more,
    }


def trainer(name: str, steps: int, **more: Any) -> dict[str, Any]:
    """A sample app that checkpoints when it is asked to stop."""
    return {**spec(name, "logistic", steps, n_max=2), **more}


def write_spec(folder: Path, document: dict[str, Any]) -> str:
    """JSON is YAML too."""
    path = folder / f"{document['name']}.yaml"
    path.write_text(json.dumps(document))
    return str(path)


def named(state: State, name: str) -> App:
    """The app of this name, which has been accepted."""
    app = state.find_app(name)
    assert app is not None, f"there is no {name}"
    return app
