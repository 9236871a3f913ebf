"""A live app whose agents fail: separate processes, as on machines, that are killed or fall silent."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from dorm.client.client import Client
from dorm.elastic import ledger
from events import kinds as k
from events.nats.connection import Connection
from tests.e2e.commands import Started, done, running, until_printed
from tests.e2e.live.test_library import SAMPLES, committed, epochs
from tests.e2e.live.test_live import facts, members
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from dorm.core.state import App, State
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_S = 90.0


class Lab:
    """A server, a master, and agents of nodes with room for one member each."""

    def __init__(self, folder: Path, common: list[str], client: Client, stack: contextlib.AsyncExitStack) -> None:
        self.folder = folder
        self.client = client
        self.common = common
        self._stack = stack

    async def agent(self, name: str) -> Started:
        """Start `dorm agent`, and wait until it has joined."""
        log = self.folder / f"{name}-{secrets.token_hex(2)}.log"
        started = await self._stack.enter_async_context(
            running(
                self.folder / "home",
                log,
                *["agent", *self.common, "--name", name, "--capacity", "cpu=1,memory=1GiB", "--runtime", "process"],
                *["--checkpoints", str(self.folder / "checkpoints"), "--data", str(self.folder / name)],
                *["--address", "127.0.0.1", "--report-every", "0.5"],
            )
        )
        await until_printed(log, "joined", started, timeout=PATIENCE_S)
        return started

    async def trained(self) -> App:
        """Submit an app that takes all there is, and wait until it trains."""
        program = [sys.executable, "-m", "compose.apps.elastic_mlp", "--epochs", "100000", "--pace", "0.03"]
        words = {"name": "digits", "engine": "elastic", "elastic": "live", "command": program, "demand": {"cpu": 1}}
        app = await self.client.submit({**words, "n_min": 1, "n_max": 2})
        return (await self.until(app.id, lambda one: one.step >= 5, "it trains")).apps[app.id]

    async def until(self, app: str, holds: Callable[[App], bool], what: str) -> State:
        return await until(self.client, lambda s: holds(s.apps[app]), what, timeout=PATIENCE_S)

    async def end(self, app: str) -> None:
        """No sample was lost or used twice, nothing was done again, and the log is right."""
        events = await facts(self.client)
        found = epochs(events)
        assert found
        assert found == dict.fromkeys(range(len(found)), (SAMPLES, ledger.expected(SAMPLES).digest))
        state = await self.client.state()
        assert (state.apps[app].generation, state.apps[app].lost_steps) == (1, 0)
        await check_log(self.client)
        await self.client.cancel(app)
        await self.until(app, lambda one: bool(one.ended), "it is cancelled")


@pytest.fixture
async def lab(nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Lab]:
    async with contextlib.AsyncExitStack() as stack:
        cluster = f"live-{secrets.token_hex(4)}"
        common = ["--url", nats_server.url, "--cluster", cluster]
        master = await stack.enter_async_context(running(tmp_path / "home", tmp_path / "master.log", "master", *common))
        await until_printed(tmp_path / "master.log", "leading", master, timeout=PATIENCE_S)
        connection = await Connection.open(nats_server.url, cluster, create=True)
        client = await stack.enter_async_context(
            Client(connection.log, connection.bus, cluster, user="ann", connection=connection)
        )
        try:
            yield Lab(tmp_path, common, client, stack)
        except BaseException:
            for log in sorted(tmp_path.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
            raise


async def test_an_agent_that_was_killed_announces_the_newcomer_when_it_is_back(lab: Lab) -> None:
    """Its member trains on meanwhile, and the newcomer on the other node waits to be received."""
    first = await lab.agent("n1")
    app = (await lab.trained()).id
    first.kill()
    await first.wait()
    reached = (await lab.client.state()).apps[app].step
    await lab.agent("n2")
    await until(lab.client, lambda s: any_started(s.apps[app]), "the newcomer runs", timeout=PATIENCE_S)
    await lab.agent("n1")
    state = await lab.until(app, lambda one: len(members(one)) == 2 and committed(one), "both train")
    joined = state.apps[app].step
    assert joined > reached
    await lab.until(app, lambda one: one.step > joined + 50, "they train on")
    changes = [fact.change for fact in await facts(lab.client) if isinstance(fact, k.MembershipChanged)]
    assert changes == ["start", "grow"]
    await lab.end(app)


@pytest.mark.soak
async def test_the_members_of_a_node_that_is_cut_off_are_removed_and_it_grows_again(lab: Lab) -> None:
    await done(lab.folder / "home", "policy", "set", "heartbeat=1s", "node_grace=3s", "node_lease=8s", *lab.common)
    await lab.agent("n1")
    second = await lab.agent("n2")
    app = (await lab.trained()).id
    await lab.until(app, lambda one: len(members(one)) == 2 and committed(one), "both train")
    second.send_signal(signal.SIGSTOP)
    try:
        state = await lab.until(app, lambda one: len(members(one)) == 1, "it goes on without the silent node")
        reached = state.apps[app].step
        await lab.until(app, lambda one: one.step > reached + 50, "it trains on")
    finally:
        second.send_signal(signal.SIGCONT)
    await lab.until(app, lambda one: len(members(one)) == 2 and committed(one), "it grows again")
    changes = [fact.change for fact in await facts(lab.client) if isinstance(fact, k.MembershipChanged)]
    assert "death" in changes
    assert changes[-1] == "grow"
    await lab.end(app)


def any_started(app: App) -> bool:
    change = app.generations[app.generation].change
    return change is not None and any(one.started_at for one in change.newcomers.values())
