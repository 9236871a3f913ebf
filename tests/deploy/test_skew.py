"""Masters, agents and clients of neighboring releases work together: an upgrade and a rollback while apps train."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from typing import TYPE_CHECKING

import psutil
import pytest

from dorm.client.client import Client
from events.log.records import LogRefused
from events.nats.connection import Connection
from replay.audit.audit import verify
from tests.deploy.releases import COMMITS, Program, dorm_of, sources
from tests.deploy.test_deployment import resizes
from tests.e2e.commands import REPOSITORY, processes_of
from tests.e2e.story import spec, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]
PATIENCE_S = 90.0
STEPS = 1_000_000
"""More than the test lasts."""


class Lab:
    """A server, a master, two agents and an app that trains on both, all of an earlier release."""

    def __init__(self, folder: Path, url: str, old: Path) -> None:
        self.folder = folder
        self.old, self.new = old, REPOSITORY
        self.url, self.cluster = url, f"skew-{secrets.token_hex(4)}"
        self.common = ("--url", url, "--cluster", self.cluster)
        self.master = Program(folder, "master", "master", *self.common, "--key", str(folder / "master.nk"))
        self.second = Program(folder, "second", "master", *self.common, "--key", str(folder / "second.nk"))
        self.agents = [Program(folder, f"n{number}", *self._agent(number)) for number in (1, 2)]
        self.client: Client
        self.app = ""

    def _agent(self, number: int) -> tuple[str, ...]:
        return (
            *("agent", *self.common, "--name", f"n{number}", "--runtime", "process", "--capacity", "cpu=1,memory=1GiB"),
            *("--checkpoints", str(self.folder / "checkpoints"), "--data", str(self.folder / f"n{number}-data")),
            *("--address", "127.0.0.1", "--ports", f"2{number}000-2{number}999", "--report-every", "1"),
        )

    @property
    def programs(self) -> list[Program]:
        return [self.master, self.second, *self.agents]

    async def trains_on(self, what: str) -> None:
        reached = (await self.client.state()).apps[self.app].step
        await until(self.client, lambda s: s.apps[self.app].step >= reached + 30, what, timeout=PATIENCE_S)

    def said(self) -> str:
        return "\n".join(
            f"--- {one.log.name}\n{one.log.read_text(errors='replace')[-4000:]}"
            for one in self.programs
            if one.log.exists()
        )


async def connected(made: Lab) -> Connection:
    """Connect once the old master has made the log: one that this release makes is not what the old one asks of a log."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await Connection.open(made.url, made.cluster, patient=True)
            except LogRefused:
                await asyncio.sleep(0.1)


@pytest.fixture(params=COMMITS)
async def lab(request: pytest.FixtureRequest, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path, nats_server.url, sources(request.param, tmp_path / request.param))
    (tmp_path / "checkpoints").mkdir()
    try:
        await made.master.start(made.old)
        for agent in made.agents:
            await agent.start(made.old)
        connection = await connected(made)
        async with Client(connection.log, connection.bus, made.cluster, user="ann", connection=connection) as client:
            made.client = client
            await until(client, lambda s: len(s.nodes) == 2, "two nodes", timeout=PATIENCE_S)
            made.app = (await client.submit(spec("long", "logistic", STEPS, n_max=4))).id
            await until(client, lambda s: s.apps[made.app].step >= 20, "it trains", timeout=PATIENCE_S)
            yield made
    except BaseException:
        print(made.said())
        raise
    finally:
        for program in made.programs:
            await program.end()
        for pid in processes_of(tmp_path):
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()


async def test_an_upgrade_and_a_rollback_resize_nothing(lab: Lab) -> None:
    before, generation = await resizes(lab.client), (await lab.client.state()).apps[lab.app].generation

    async def unharmed(what: str) -> None:
        await lab.trains_on(what)
        state = await lab.client.state()
        assert await resizes(lab.client) == before, what
        assert state.apps[lab.app].generation == generation, what
        assert {node.condition for node in state.nodes.values()} == {"up"}, what

    # Up: masters first, one of them always there; then agents, one after the other.
    await lab.second.start(lab.new)
    await lab.master.becomes(lab.new)
    await unharmed("new masters, old agents")
    home = lab.folder / "home"
    for release in (lab.old, lab.new):
        (row,) = json.loads(await dorm_of(release, home, "ps", "-o", "json", *lab.common))
        assert (row["name"], row["phase"]) == ("long", "running"), "clients of both releases see the same"
    for agent in lab.agents:
        await agent.becomes(lab.new)
        await unharmed("new masters, an agent more")

    assert (await verify(lab.client.log)).divergence is None

    # And back: agents first, then masters.
    for agent in lab.agents:
        await agent.becomes(lab.old)
        await unharmed("back: an agent less")
    await lab.second.becomes(lab.old)
    await lab.master.becomes(lab.old)
    await unharmed("back: all of the earlier release")
    await lab.second.stop()

    # All of the earlier release still does its work: the app is resized for another one, and both end.
    document = json.dumps({**spec("other", "logistic", 30, n_max=2)})
    (lab.folder / "other.yaml").write_text(document)
    await dorm_of(lab.old, home, "submit", str(lab.folder / "other.yaml"), *lab.common)
    await until(
        lab.client,
        lambda s: any(app.name == "other" and app.phase == "completed" for app in s.apps.values()),
        "another app completes",
        timeout=PATIENCE_S,
    )
    await lab.client.cancel(lab.app)
    await until(lab.client, lambda s: bool(s.apps[lab.app].ended), "it is cancelled", timeout=PATIENCE_S)
