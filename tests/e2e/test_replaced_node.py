"""A machine is replaced by another under the same name, as an operator does it, while the first may still run containers."""

from __future__ import annotations

import contextlib
import secrets
import signal
from typing import TYPE_CHECKING, Any

import pytest

from compose.apps.worker.presence import VARIABLE
from dorm.client.client import Client
from events.nats.connection import Connection
from replay.audit.audit import verify
from tests.e2e.commands import done, running, until_printed
from tests.e2e.story import spec, until
from tests.lab.chaos.record import doubled, stays

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]
PATIENCE_S = 90.0
STEPS = 100_000
"""More than the test lasts."""


class Lab:
    """A server, a master, and what it takes to start agents."""

    def __init__(self, folder: Path, common: list[str], client: Client) -> None:
        self.folder = folder
        self.client = client
        self.common = common

    def agent(self, data: str) -> AbstractAsyncContextManager[Any]:
        """`dorm agent --name n3`, with its own folder; its output goes to `data`.log."""
        return running(
            self.folder / "home",
            self.log(data),
            *["agent", *self.common, "--name", "n3", "--capacity", "cpu=1,memory=1GiB", "--runtime", "process"],
            *["--checkpoints", str(self.folder / "checkpoints"), "--data", str(self.folder / data)],
            *["--address", "127.0.0.1", "--report-every", "0.5"],
        )

    def log(self, data: str) -> Path:
        return self.folder / f"{data}.log"

    async def train(self) -> str:
        """An app whose processes write down when they are there."""
        document = {**spec("long", "logistic", STEPS, n_max=1), "env": {VARIABLE: "0.02"}}
        app = (await self.client.submit(document)).id
        await until(self.client, lambda s: s.apps[app].step >= 5, "it trains", timeout=PATIENCE_S)
        return app

    def ran_at_once(self, app: str) -> list[str]:
        """By the containers' own records."""
        return doubled(stays(self.folder / "checkpoints" / app))

    async def end(self, app: str) -> None:
        await self.client.cancel(app)
        await until(self.client, lambda s: bool(s.apps[app].ended), "it is cancelled", timeout=PATIENCE_S)
        assert (await verify(self.client.log)).divergence is None


@pytest.fixture
async def lab(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Lab]:
    async with contextlib.AsyncExitStack() as stack:
        cluster = f"replaced-{secrets.token_hex(4)}"
        common = ["--url", nats_server.url, "--cluster", cluster]
        master = await stack.enter_async_context(running(tmp_path / "home", tmp_path / "master.log", "master", *common))
        await until_printed(tmp_path / "master.log", "leading", master, timeout=PATIENCE_S)
        connection = await Connection.open(nats_server.url, cluster, create=True)
        client = await stack.enter_async_context(
            Client(connection.log, connection.bus, cluster, user="ann", connection=connection)
        )
        await done(tmp_path / "home", "policy", "set", "heartbeat=1s", "node_grace=3s", "node_lease=8s", *common)
        try:
            yield Lab(tmp_path, common, client)
        except BaseException:
            for log in sorted(tmp_path.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
            raise


@pytest.mark.timeout(400)
@pytest.mark.soak
async def test_the_newcomer_of_a_machine_that_was_stopped_waits_and_takes_over(lab: Lab) -> None:
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(lab.agent("old"))
        await until_printed(lab.log("old"), "joined", old, timeout=PATIENCE_S)
        app = await lab.train()
        old.send_signal(signal.SIGSTOP)
        stack.callback(lambda: old.returncode is None and old.send_signal(signal.SIGCONT))

        new = await stack.enter_async_context(lab.agent("new"))
        said = await until_printed(lab.log("new"), "holds the name n3", new, timeout=PATIENCE_S)
        assert "another --name" in said
        assert "waits" in await done(lab.folder / "home", "nodes", *lab.common)
        state = await lab.client.state()
        assert state.apps[app].generation == 1
        reached = state.apps[app].step
        state = await until(
            lab.client,
            lambda s: s.apps[app].generation > 1 and s.apps[app].step > reached,
            "it goes on at the newcomer",
        )
        assert state.nodes["n3"].refused is None

        old.send_signal(signal.SIGCONT)
        await until_printed(lab.log("old"), "holds the name n3", old, timeout=PATIENCE_S)
        reached = state.apps[app].step
        state = await until(
            lab.client, lambda s: s.apps[app].step > reached + 20, "the newcomer's app trains on", timeout=PATIENCE_S
        )
        assert state.apps[app].generation == 2
        assert state.apps[app].failures == 0
        await lab.end(app)
        assert lab.ran_at_once(app) == []


@pytest.mark.timeout(400)
async def test_two_live_machines_do_not_break_each_others_apps(lab: Lab) -> None:
    async with lab.agent("old") as old:
        await until_printed(lab.log("old"), "joined", old, timeout=PATIENCE_S)
        app = await lab.train()
        async with lab.agent("new") as new:
            await until_printed(lab.log("new"), "stop the other agent", new, timeout=PATIENCE_S)
            state = await lab.client.state()
            longer_than_the_lease = state.time + 12 * 10**9
            state = await until(
                lab.client, lambda s: s.time > longer_than_the_lease, "it trains on", timeout=PATIENCE_S
            )
            assert state.apps[app].generation == 1
            assert (state.nodes["n3"].condition, state.nodes["n3"].lease_ended) == ("up", False)
        await lab.end(app)
        assert lab.ran_at_once(app) == []
