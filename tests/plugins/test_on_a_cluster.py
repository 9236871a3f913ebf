"""A real master on a real NATS server survives everything that a plug-in policy does, and the log says what it did."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dorm.client.client import Client
from dorm.local.announced import plugins
from dorm.master.master import Master
from dorm.plugins import limits
from events import subjects
from events.codec import decode, encode
from events.kinds import PolicyChanged, PolicyFailed, Resized, Round
from events.nats.connection import Connection
from replay.audit.audit import verify
from tests.core.records import document, joined
from tests.e2e.commands import DORM, REPOSITORY, done, environment, refused
from tests.master.leading import running
from tests.plugins import acme

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]


class Lab:
    def __init__(self, home: Path, url: str, connection: Connection) -> None:
        self.home, self.url = home, url
        self.log, self.bus, self.cluster = connection.log, connection.bus, connection.cluster
        self.client = Client(connection.log, connection.bus, connection.cluster, user="ann", connection=connection)
        self.seen = 0

    def master(self, name: str) -> contextlib.AbstractAsyncContextManager[Master]:
        return running(Master(self.log, self.bus, self.cluster, name=name, clock=time.time_ns, plugins=plugins))

    async def next(self, kind: type[Any]) -> Any:
        """The next fact of this kind after the last requested one."""
        async with asyncio.timeout(60), contextlib.aclosing(self.log.read(after=self.seen, follow=True)) as batches:
            async for batch in batches:
                for record in batch:
                    event = decode(record)
                    for fact in event.events if isinstance(event, Round) else ():
                        if isinstance(fact, kind):
                            self.seen = record.seq
                            return fact
        raise AssertionError("a log that is followed does not end")

    async def dorm(self, *arguments: str) -> str:
        return await done(self.home, *arguments, "--url", self.url, "--cluster", self.cluster)


@pytest.fixture
async def lab(tmp_path: Path, nats_server: NatsServer) -> AsyncIterator[Lab]:
    connection = await Connection.open(nats_server.url, f"plugins-{tmp_path.name[-20:]}", create=True)
    made = Lab(tmp_path / "home", nats_server.url, connection)
    async with made.client:
        await made.log.append(subjects.fact(made.cluster, "NodeJoined", "n1"), encode(joined("n1")))
        yield made


FAILING = {
    "acme-raises": "policy.raised",
    "acme-nonsense": "policy.nonsense",
    "acme-types": "policy.nonsense",
    "acme-oversized": "policy.infeasible",
    "acme-loops": "policy.too_slow",
    "acme-exits": "policy.ended",
    "acme-dies": "policy.ended",
}


async def test_it_continues_with_each_of_them(lab: Lab, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_given", [2.0])
    async with lab.master("m"):
        await lab.client.change_policy(
            PolicyChanged(policy="static", params={"count": 1}, quiet_ms=0, node_grace_s=300.0, node_lease_s=600.0)
        )
        await lab.client.submit(document("first"))
        first = await lab.next(Resized)
        assert len(first.changes) == 1
        for number, (name, code) in enumerate(FAILING.items()):
            await lab.client.change_policy(PolicyChanged(policy=name))
            app = await lab.client.submit(document(f"later-{number}"))
            failed = await lab.next(PolicyFailed)
            assert (failed.policy, failed.policy_version, failed.code) == (name, 7, code)
            assert failed.plugin == "acme-dorm 1.2.0"
            assert failed.reason
            state = await lab.client.state()
            placed = {one.name: one.current.by_node() for one in state.live_apps() if one.current is not None}
            assert placed == {"first": {"n1": 1}}, "the round keeps the last allocation"
            if number == 0:
                shown = json.loads(await lab.dorm("policy", "show", "-o", "json"))
                assert (shown["plugin"], shown["fails"]["code"]) == ("acme-dorm 1.2.0", code)
                assert "every app keeps what it has" in await lab.dorm("policy", "show")
                assert f"gives no usable answer, so every app keeps what it has: {failed.reason}" in await lab.dorm(
                    "explain", "first"
                )
            await lab.client.cancel(app.id)
        await lab.client.change_policy(PolicyChanged(policy="acme-good"))
        await lab.client.submit(document("last"))
        good = await lab.next(Resized)
        while not good.changes:  # New reasons alone are a decision, too.
            good = await lab.next(Resized)
        assert (good.policy, good.policy_version, good.plugin) == ("acme-good", 7, "acme-dorm 1.2.0")
        assert {change.app[:4]: len(change.placement) for change in good.changes} == {"last": 2}
        assert (await lab.client.state()).policy_failure is None
    report = await verify(lab.log)
    assert report.good, report.divergence
    for name, code in FAILING.items():
        assert report.not_checked_because[f"policy '{name}' failed there ({code})"] >= 1
    acme.forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    elsewhere = await verify(lab.log)
    assert elsewhere.good, elsewhere.divergence
    assert elsewhere.digest == report.digest, "the fold does not depend on what is installed"
    why = "policy 'acme-good' of the plug-in acme-dorm 1.2.0 is not installed"
    assert elsewhere.not_checked_because[why] >= 1
    assert elsewhere.decisions_checked < report.decisions_checked


async def test_a_master_without_the_plug_in_keeps_everything(
    lab: Lab, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab.master("with"):
        await lab.client.change_policy(PolicyChanged(policy="acme-good", quiet_ms=0, idle_s=1))
        await lab.client.submit(document("app"))
        assert len((await lab.next(Resized)).changes[0].placement) == 2
    acme.forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    async with lab.master("without"):
        await lab.client.submit(document("other"))
        failed = await lab.next(PolicyFailed)
        assert (failed.policy, failed.code) == ("acme-good", "policy.not_installed")
        state = await lab.client.state()
        assert state.settings.policy == "acme-good"
        placed = {one.name: one.current.by_node() for one in state.live_apps() if one.current is not None}
        assert placed == {"app": {"n1": 2}}
        await lab.client.change_policy(PolicyChanged(policy="static", params={"count": 1}))
        assert (await lab.next(Resized)).policy == "static"


async def installed_dorm(home: Path, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command where Acme's policies are installed: a separate process, since a forked one has this program's path."""
    env = environment(home, PYTHONPATH=os.pathsep.join([str(folder), str(REPOSITORY)]))
    process = await asyncio.create_subprocess_exec(*DORM, *arguments, stdout=PIPE, stderr=PIPE, env=env)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.soak
async def test_the_command_sets_only_policies_of_the_master(lab: Lab, installed: Path) -> None:
    home, common = lab.home, ["--url", lab.url, "--cluster", lab.cluster]
    code, _, err = await installed_dorm(home, installed, "policy", "set", "policy=acme-good", *common)
    assert code == 2
    assert "[policy.not_at_master]" in err
    async with lab.master("m"):
        code, _, err = await installed_dorm(home, installed, "policy", "set", "policy=acme-nothing", *common)
        assert (code, "[policy.unknown]" in err) == (2, True)
        code, _, err = await installed_dorm(home, installed, "policy", "set", "policy=acme-good", "count=-3", *common)
        assert (code, "acme-good" in err) == (2, True), err
        code, out, err = await installed_dorm(home, installed, "policy", "set", "policy=acme-good", "count=3", *common)
        assert (code, err) == (0, "")
        assert "policy: dorm -> acme-good" in out
        assert (await lab.client.state()).settings.params == {"count": 3}
        code, out, err = await installed_dorm(home, installed, "policy", "list", "-o", "json")
        rows = {row["policy"]: row for row in json.loads(out)}
        assert (code, rows["acme-good"]["version"], rows["acme-good"]["plugin"]) == (0, 7, "acme-dorm 1.2.0")
        assert rows["acme-good"]["meaning"] == "Two containers for each app."
        assert json.loads(await lab.dorm("policy", "get", "count", "-o", "json"))["value"] == 3


@pytest.mark.soak
async def test_a_master_process_stops_at_once_while_a_plug_in_loops(lab: Lab, installed: Path) -> None:
    env = environment(lab.home, PYTHONPATH=os.pathsep.join([str(installed), str(REPOSITORY)]))
    options = ["--policy", "acme-loops", "--policy-limit", "600s", "--url", lab.url, "--cluster", lab.cluster]
    process = await asyncio.create_subprocess_exec(*DORM, "master", *options, stdout=DEVNULL, stderr=DEVNULL, env=env)
    try:
        async with asyncio.timeout(90):
            while (await lab.client.state()).settings.policy != "acme-loops":  # noqa: ASYNC110 - another process changes it
                await asyncio.sleep(0.2)
            await lab.client.submit(document("app"))
            while not _loops(process.pid):  # noqa: ASYNC110 - no process says that it loops
                await asyncio.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0, "it does not wait for the plug-in"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _loops(pid: int) -> bool:
    """Whether one of the master's plug-ins has been computing for longer than importing it takes."""
    hosts = [one for one in psutil.Process(pid).children() if "acme-loops" in one.cmdline()]
    return any(sum(one.cpu_times()[:2]) > 2.0 for one in hosts)


async def test_a_limit_that_is_not_a_time_is_refused(lab: Lab) -> None:
    reason = await refused(lab.home, "master", "--policy-limit", "soon", code=2)
    assert reason.endswith("[policy.limit.malformed]")
