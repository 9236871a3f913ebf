"""A deployment of three machines, from its settings file to the restore of a backup, as docs/operations describes it.

It is one test, since its parts are one cluster's life, and starting one takes most of a minute.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from typing import TYPE_CHECKING

import psutil
import pytest

from agents.outputs.folders import MARKER
from events.codec import decode
from events.kinds import Resized, Round
from events.log.records import until_answered
from replay.audit.audit import verify
from tests.deploy.loopback import MACHINES, READY_S, UNITS, Site
from tests.e2e.commands import dorm, processes_of, until_printed
from tests.e2e.story import spec, until
from tests.lab.chaos.replicas import compare
from tests.webhooks.receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.client.client import Client
    from events.log.records import Record

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]
STEPS = 1_000_000
"""More than the test lasts."""


async def records_of(client: Client) -> list[Record]:
    end = await client.log.end()
    found: list[Record] = []
    async for batch in client.log.read():
        found += batch
        if found[-1].seq >= end:
            return found[:end]
    return found


async def resizes(client: Client) -> int:
    """How many decisions on the log resize an app."""
    count = 0
    for record in await records_of(client):
        event = decode(record)
        if isinstance(event, Round):
            count += sum(isinstance(fact, Resized) and bool(fact.changes) for fact in event.events)
    return count


async def test_a_deployment_lives(tmp_path: Path) -> None:
    site = Site(tmp_path)
    try:
        await founded(site)
        async with site.connected() as client:
            app = await trains(site, client)
            async with Receiver() as receiver:
                await site.dorm("webhooks", "add", "pager", receiver.url, "--event", "node.lost")
                await a_webhook_arrives(site, receiver)
                await everything_is_restarted(site, client, app)
                await a_webhook_arrives(site, receiver)
            await what_would_destroy_is_refused(site, client)
            await the_shared_folder_goes_and_comes_back(site, client, app)
            await two_servers_are_killed(site, client, app)
            await a_node_is_replaced(site, client, app)
        await wiped_and_restored(site, app)
    except BaseException:
        print(site.said())
        raise
    finally:
        await site.end()
        for pid in processes_of(tmp_path):
            with pytest.MonkeyPatch.context():
                psutil.Process(pid).kill()


async def founded(site: Site) -> None:
    """Keys, files, servers, first records, masters, nodes."""
    await site.install()
    await site.start("nats")
    await site.healthy()
    await site.start("master")  # Masters and the API wait until their cluster is made.
    await site.start("api")
    await site.start("webhooks")
    for unit in (*site.of("master"), *site.of("api"), *site.of("webhooks")):
        assert unit.process is not None
        await until_printed(unit.log, "waiting for the log", unit.process, timeout=READY_S)
    said = await site.dorm("deploy", "found", str(site.settings), "--keys", str(site.lab))
    assert "root is its admin" in said
    await site.dorm("deploy", "found", str(site.settings), "--keys", str(site.lab))  # Once more changes nothing.
    await site.dorm("context", "use", "lab")
    for name in MACHINES:
        await site.join(name)
    await site.start("agent")


async def trains(site: Site, client: Client) -> str:
    """An app on all nodes."""
    await until(client, lambda s: len([n for n in s.nodes.values() if n.identity]) == 3, "three nodes", timeout=READY_S)
    app = (await client.submit({**spec("long", "logistic", STEPS, n_max=6), "retries": {"limit": 20}})).id
    await until(client, lambda s: s.apps[app].step >= 20, "it trains", timeout=READY_S)
    await site.healthy()
    return app


async def further(client: Client, app: str, what: str) -> None:
    """Servers are healthy a moment before their streams have elected their leaders."""
    async with asyncio.timeout(READY_S):
        reached = (await until_answered(client.state, what)).apps[app].step
    await until(client, lambda s: s.apps[app].step >= reached + 20, what, timeout=READY_S)


async def everything_is_restarted(site: Site, client: Client, app: str) -> None:
    """One machine after the other: server, master, API, agent.  No app is resized, and each trains on."""
    before = await resizes(client)
    generation = (await client.state()).apps[app].generation
    for name in MACHINES:
        for unit in UNITS:
            if (name, unit) in site.units:
                await site.units[name, unit].restart()
                await site.healthy()
        await further(client, app, f"it trains on after {name} was restarted")
    assert await resizes(client) == before
    assert (await client.state()).apps[app].generation == generation
    assert (await verify(client.log)).divergence is None


async def a_webhook_arrives(site: Site, receiver: Receiver) -> None:
    """Signed with a secret that the admin's machine knows as well."""
    before = len(receiver.requests)
    await site.dorm("webhooks", "test", "pager")
    secret = str(json.loads(await site.dorm("webhooks", "secret", "pager", "-o", "json"))["secret"])
    assert receiver.requests[before].verified(secret)["type"] == "io.dorm.webhook.test_requested.v1"


async def what_would_destroy_is_refused(site: Site, client: Client) -> None:
    """A lease within which no agent can be heard would end every container."""
    before = (await client.state()).settings
    code, _, err = await dorm(site.home, "policy", "set", "node_lease=1s", timeout=READY_S)
    assert code == 2, err
    assert "[settings.node_lease.below_grace]" in err
    assert (await client.state()).settings == before


async def the_shared_folder_goes_and_comes_back(site: Site, client: Client, app: str) -> None:
    """As a file server does that is down for a while: no node gets containers, and no app is resized, whichever agent notices
    first that the folder is back."""
    before, marker = await resizes(client), site.shared / MARKER
    content = marker.read_bytes()
    marker.unlink()
    await until(client, lambda s: all(node.foreign for node in s.nodes.values()), "no folder", timeout=READY_S)
    marker.write_bytes(content)
    await until(client, lambda s: not any(node.foreign for node in s.nodes.values()), "the folder", timeout=READY_S)
    await further(client, app, "it trains on after the folder was away")
    assert await resizes(client) == before


async def two_servers_are_killed(site: Site, client: Client, app: str) -> None:
    """At once and with -9, while records come; afterwards each server's own copy is the log, record by record."""
    await asyncio.gather(site.units["n1", "nats"].kill(), site.units["n3", "nats"].kill())
    for name in ("n1", "n3"):
        await site.units[name, "nats"].start()
    await site.healthy()
    await further(client, app, "it trains on after two servers were killed")
    assert await compare(site.stores(), await records_of(client)) == []


async def a_node_is_replaced(site: Site, client: Client, app: str) -> None:
    """A machine dies permanently; another one takes its name, with a new key."""
    await site.dorm("policy", "set", "heartbeat=1s", "node_grace=3s", "node_lease=10s")
    await until(client, lambda s: s.nodes["n3"].lease_s <= 10, "its agent follows the shorter lease", timeout=READY_S)
    agent = site.units["n3", "agent"]
    await agent.kill()
    data = site.folder / "n3/var/lib/dorm/node"
    for pid in processes_of(data):
        psutil.Process(pid).kill()
    old = (await client.state()).nodes["n3"].identity
    shutil.rmtree(data)
    data.mkdir()
    await site.join("n3")
    await agent.start()
    await until(
        client,
        lambda s: s.nodes["n3"].identity not in ("", old) and s.nodes["n3"].refused is None,
        "another machine is n3",
        timeout=READY_S,
    )
    await further(client, app, "it trains on after a node was replaced")


async def wiped_and_restored(site: Site, app: str) -> None:
    """All servers lose their disks.  The backup gives the same state, and the app continues."""
    first = await site.back_up()
    assert "read back" in first
    await site.stop("master")
    await site.stop("agent")
    await site.stop("api")
    await site.stop("webhooks")
    last = await site.back_up()
    digest = re.findall(r"digest (\w+)", last)[-1]
    await site.back_up()
    copies = sorted(site.backups.glob("lab-*.dorm"))
    assert len(copies) == 2, "two are kept"
    await asyncio.gather(*(one.kill() for one in site.of("nats")))
    site.wipe()
    await site.start("nats")
    await site.healthy()
    await site.start("master")  # Masters and the API wait until their cluster is made.
    await site.start("api")
    await site.start("webhooks")
    for unit in (*site.of("master"), *site.of("api"), *site.of("webhooks")):
        assert unit.process is not None
        await until_printed(unit.log, "waiting for the log", unit.process, timeout=READY_S)
    said = await site.dorm("deploy", "restore", str(site.settings), str(copies[-1]), "--keys", str(site.lab))
    assert f"digest {digest}" in said
    assert "restorer" not in (site.lab / "security/accounts.conf").read_text()
    await site.start("master")
    await site.start("agent")
    async with site.connected() as client:
        await further(client, app, "it trains on after the restore")
        assert (await verify(client.log)).divergence is None
        await client.cancel(app)
        await until(client, lambda s: bool(s.apps[app].ended), "it is cancelled", timeout=READY_S)
