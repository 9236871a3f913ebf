"""`dorm master` and `dorm agent` as separate processes, with your own NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from dorm.client.client import Client
from dorm.core.query.views import sizes
from dorm.elastic import ledger
from events.nats.connection import Connection
from tests.cli.cluster.service_manager import Manager
from tests.e2e.commands import Started, done, dorm, processes_of, refused, running, until_printed
from tests.e2e.live.test_library import SAMPLES, app, epochs
from tests.e2e.live.test_live import facts, members
from tests.e2e.local_up import leaving_nothing, named, talker, trainer, write_spec
from tests.e2e.story import check_log, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from dorm.core.state import App
    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]


class Lab:
    """A cluster of separate processes, whose master and agents come and go."""

    def __init__(self, folder: Path, url: str, name: str, client: Client) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.common = ["--url", url, "--cluster", name]
        self.client = client

    @contextlib.asynccontextmanager
    async def master(
        self, name: str, *more: str, says: str = "leading", env: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[Started, Path]]:
        log = self.folder / f"{name}.log"
        async with running(self.home, log, "master", *self.common, *more, env=env) as process:
            await until_printed(log, says, process)
            yield process, log

    @contextlib.asynccontextmanager
    async def agent(self, number: int, *, says: str = "joined") -> AsyncIterator[tuple[Started, Path]]:
        log = self.folder / f"agent-{number}-{len(list(self.folder.glob('agent-*.log')))}.log"
        ports = f"{21000 + 100 * number}-{21099 + 100 * number}"
        async with running(
            self.home, log, "agent", *self.common, "--name", f"node-{number}", "--runtime", "process",
            "--capacity", "cpu=1,memory=1GiB", "--address", "127.0.0.1", "--ports", ports,
            "--checkpoints", str(self.folder / "checkpoints"), "--data", str(self.folder / f"data-{number}"),
            "--report-every", "0.5", "--label", "rack=a",
        ) as process:  # fmt: skip
            await until_printed(log, says, process)
            yield process, log


@pytest.fixture
async def lab(tmp_path: Path, nats_server: NatsServer) -> AsyncIterator[Lab]:
    name = f"lab-{tmp_path.name[-30:]}"
    nobody = await refused(tmp_path / "home", "ps", "--url", nats_server.url, "--cluster", name, code=1)
    assert nobody.endswith(" [cluster.not_found]")
    assert f"'{name}' at {nats_server.url}" in nobody
    connection = await Connection.open(nats_server.url, name, create=True)
    client = Client(connection.log, connection.bus, name, user="tester", connection=connection)
    async with leaving_nothing(tmp_path), client:
        yield Lab(tmp_path, nats_server.url, name, client)


async def test_separate_processes_and_a_second_master(lab: Lab) -> None:
    client = lab.client
    async with lab.master("first") as (first, first_log), lab.agent(1), lab.agent(2):
        await done(lab.home, "submit", write_spec(lab.folder, trainer("app", 120, n_max=4)), *lab.common)
        state = await until(client, lambda s: named(s, "app").step >= 5, "it trains")
        assert sizes(named(state, "app")) == {"node-1": 2, "node-2": 2}
        assert "rack=a" in await done(lab.home, "nodes", "-o", "wide", *lab.common)
        manager, socket_of_manager = Manager(lab.folder / "notify"), {"NOTIFY_SOCKET": str(lab.folder / "notify")}
        second_master = lab.master("second", "--param", "theta1=0.4", says="following", env=socket_of_manager)
        async with manager, second_master as (second, second_log):
            assert "follows" in await manager.said("READY=1")
            shown = json.loads(await done(lab.home, "masters", "-o", "json", *lab.common))
            assert [one["condition"] for one in shown["masters"]] == ["leads", "follows"]
            assert shown["masters"][1]["lag"] is not None
            code, out, _ = await dorm(lab.home, "doctor", "-o", "json", *lab.common)
            found = json.loads(out)
            assert (code, [one for one in found["findings"] if one["level"] == "wrong"]) == (0, [])
            looked = {(one["check"], one["about"]) for one in found["findings"] if one["level"] == "ok"}
            assert {("lease", "node-1"), ("engine", "node-2"), ("masters", shown["leader"])} <= looked
            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), 10.0) == 0
            await until_printed(second_log, "leading", second)
            await until(client, lambda s: bool(named(s, "app").ended), "the second sees it to its end")
            state = await client.state()
            assert named(state, "app").ended == "completed"
            assert state.settings.params == {"theta1": 0.4}
            assert state.epoch >= 2
            await check_log(client)
            second.send_signal(signal.SIGTERM)
            await manager.said("STOPPING=1")
            assert await asyncio.wait_for(second.wait(), 10.0) == 0
            assert "Traceback" not in first_log.read_text() + second_log.read_text()


@pytest.mark.soak
async def test_a_node_is_in_maintenance_then_forgotten_and_returns(lab: Lab) -> None:
    """On real agents: what is refused as long as it may run something, and that a forgotten machine is a new node."""
    client = lab.client
    async with lab.master("first"), lab.agent(1):
        async with lab.agent(2) as (second, _):
            await done(lab.home, "submit", write_spec(lab.folder, trainer("app", 2000, n_max=2)), *lab.common)
            await until(client, lambda s: named(s, "app").step >= 5, "it trains")
            await done(lab.home, "policy", "set", "node_lease=6s", "node_grace=2s", "heartbeat=500ms", *lab.common)
            await done(lab.home, "nodes", "maintenance", "node-2", "--wait", "--reason", "new disk", *lab.common)
            state = await client.state()
            assert (state.nodes["node-2"].shown, sizes(named(state, "app"))) == ("maintenance", {"node-1": 2})
            refusal = await refused(lab.home, "nodes", "forget", "node-2", *lab.common, code=1)
            assert refusal.endswith("[node.may_run]")
            second.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(second.wait(), 20.0) == 0
        await until(client, lambda s: s.nodes["node-2"].gone, "its lease has ended")
        code, out, _ = await dorm(lab.home, "doctor", "-o", "json", *lab.common)
        findings = json.loads(out)["findings"]
        assert (code, [one for one in findings if one["level"] in ("wrong", "unknown")]) == (0, [])
        await done(lab.home, "nodes", "forget", "node-2", *lab.common)
        assert set((await client.state()).nodes) == {"node-1"}
        await done(lab.home, "pause", "--reason", "a new switch", *lab.common)
        await done(lab.home, "submit", write_spec(lab.folder, talker("late", 1, 0.0)), *lab.common)
        assert "scheduling is paused by" in await done(lab.home, "ps", *lab.common)
        assert "a new switch" in await done(lab.home, "explain", "late", *lab.common)
        async with lab.agent(2):
            state = await until(client, lambda s: s.nodes["node-2"].shown == "up", "it is a new node")
            assert named(state, "late").phase == "waiting"
            await done(lab.home, "resume", *lab.common)
            await until(client, lambda s: bool(named(s, "late").ended), "it runs")
            story = await done(lab.home, "story", "node-2", *lab.common)
            assert "put node-2 into maintenance: new disk" in story
            assert "had node-2 forgotten" in story
            await check_log(client)


@pytest.mark.soak
async def test_apps_run_on_without_a_master(lab: Lab) -> None:
    client = lab.client
    async with lab.agent(1, says="waits for its part"):
        async with lab.master("first") as (first, _):
            await done(lab.home, "submit", write_spec(lab.folder, trainer("app", 120, n_max=1)), *lab.common)
            await until(client, lambda s: named(s, "app").step >= 5, "it trains")
            first.kill()
            await first.wait()
        step = named(await client.state(), "app").step
        await until(client, lambda s: named(s, "app").step >= step + 10, "it trains on")
        late = write_spec(lab.folder, talker("late", 1, 0.0))
        assert "[master.no_answer]" in await refused(lab.home, "submit", late, *lab.common, code=1)
        async with lab.master("second"):
            state = await until(
                client, lambda s: bool(named(s, "app").ended and named(s, "late").ended), "both complete"
            )
            assert (named(state, "app").ended, named(state, "app").adjustments) == ("completed", 0)
            assert named(state, "late").ended == "completed"
            await check_log(client)


@pytest.mark.soak
async def test_a_killed_agent_is_followed_by_one_that_adopts(lab: Lab) -> None:
    client = lab.client
    async with lab.master("master"):
        async with lab.agent(1) as (agent, _):
            await done(lab.home, "submit", write_spec(lab.folder, trainer("app", 150)), *lab.common)
            await until(client, lambda s: named(s, "app").step >= 5, "it trains")
            agent.kill()
            await agent.wait()
        workers = {
            pid: psutil.Process(pid).create_time()
            for pid, command in processes_of(lab.folder).items()
            if "compose.apps" in command
        }
        assert workers
        step = named(await client.state(), "app").step
        async with lab.agent(1):
            await until(client, lambda s: named(s, "app").step > step, "its progress is told again")
            assert {pid: psutil.Process(pid).create_time() for pid in workers} == workers
            state = await until(client, lambda s: bool(named(s, "app").ended), "it completes")
            app = named(state, "app")
            assert (app.ended, app.adjustments, app.failures) == ("completed", 0, 0)
            await check_log(client)


@pytest.mark.soak
async def test_an_agent_that_is_killed_in_the_middle_of_a_live_change(lab: Lab) -> None:
    """Its members train on, the next agent takes them over, the change ends one way or the other, and no sample is lost."""
    client = lab.client
    half = {"demand": {"cpu": "500m"}}
    async with lab.master("master"), lab.agent(1):
        async with lab.agent(2) as (agent, _):
            others = [await client.submit({"name": f"other-{i}", "command": ["sleep", "600"], **half}) for i in (1, 2)]
            await until(client, lambda s: all(s.apps[one.id].phase == "running" for one in others), "both run")
            trained = await client.submit({**app(epochs=40), **half, "n_max": 4})
            await until(client, lambda s: s.apps[trained.id].step >= 5, "it trains beside them")
            for one in others:
                await client.cancel(one.id)
            await until(client, lambda s: changing(s.apps[trained.id]), "it begins to grow")
            agent.kill()
            await agent.wait()
        async with lab.agent(2):
            grown = await until(
                client,
                lambda s: bool(s.apps[trained.id].ended) or len(members(s.apps[trained.id])) == 4,
                "it has grown",
            )
            assert not grown.apps[trained.id].ended
            state = await until(client, lambda s: bool(s.apps[trained.id].ended), "it completes")
            assert (state.apps[trained.id].ended, state.apps[trained.id].lost_steps) == ("completed", 0)
            assert epochs(await facts(client)) == dict.fromkeys(range(40), (SAMPLES, ledger.expected(SAMPLES).digest))
            await check_log(client)


def changing(app: App) -> bool:
    """Whether newcomers may start, and are not members yet."""
    change = app.generations[app.generation].change
    return change is not None and bool(change.released_at) and bool(change.newcomers)
