"""The remote client, in ordinary code and awaited, against a real server."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dorm.remote import AsyncClient, Changed, Client, NotFound, Refused, RemoteError, Unreachable, wire
from events.positions import parse
from tests.api.served import PATIENCE_S, connected, filled, led, served
from tests.core.records import document
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

ROOT = Path(__file__).resolve().parents[2]
RECORDS = busy_log(300, apps=6, nodes=3)


@pytest.mark.nats
async def test_the_verbs_do_what_they_promise(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a", "b"), served(connection) as api:
        url = api.server.url

        def ordinary() -> list[Any]:
            dorm = Client(url, user="ann")
            first = dorm.submit(document("one"), key="k")
            again = dorm.submit(document("one"), key="k")
            assert (first, first.user, first.answered) == (again, "ann", True)
            assert dorm.app("one", min_seq=first.position).id == first.id
            changed = dorm.update("one", weight=2)
            assert dorm.app(first.id, min_seq=changed.position).weight == 2
            with pytest.raises(NotFound) as missing:
                dorm.app("nobody")
            assert missing.value.code == "app.not_found"
            with pytest.raises(Refused) as refused:
                dorm.submit({"name": "x"})
            assert refused.value.code == "spec.command.missing"
            dorm.drain("a", reason="disk")
            dorm.drain("a", on=False)
            assert [node.name for node in dorm.nodes()] == ["a", "b"]
            assert dorm.plan(cancel="one")["changes"][0]["end"] == "cancelled"
            assert dorm.get("apps/one/story")["name"] == "one"
            _daily(dorm)
            dorm.cancel(first.id, "enough")
            assert dorm.wait(first.id).phase == "cancelled"
            return [app.id for app in dorm.apps(ended=True)]

        ids = await asyncio.to_thread(ordinary)
        dorm = AsyncClient(url, user="bob")
        second = await dorm.submit("name: two\ncommand: [work]\ndemand: {cpu: 1}\n")
        assert second.user == "bob"
        waiting = asyncio.create_task(dorm.wait(second.id))
        await dorm.kill(second.id, "it hangs")
        async with asyncio.timeout(PATIENCE_S):
            assert (await waiting).phase == "cancelled"
        assert [app.id async for app in dorm.apps(ended=True)] == [*ids, second.id]
        with pytest.raises(NotFound):
            await dorm.app("nobody")
        assert [node.name async for node in dorm.nodes()] == ["a", "b"]


def _daily(dorm: Client) -> None:
    """Edits, holds, sweeps and the past."""
    found = dorm.spec("one")
    edited = dorm.edit("one", patch={"weight": 3}, tag=found.tag)
    assert (edited.revision, edited.restarts) == (2, False)
    with pytest.raises(Changed):
        dorm.edit("one", found.spec, tag=found.tag)
    assert dorm.try_edit("one", patch={"weight": 4})["at_once"] == {"weight": {"before": 3.0, "after": 4.0}}
    with pytest.raises(ValueError, match="one of them"):
        dorm.edit("one")
    dorm.note("one", "a look")
    dorm.hold("one", "a look")
    with pytest.raises(Refused) as refused:
        dorm.hold("one")
    assert refused.value.code == "app.held"
    dorm.release("one")
    sweep = {**document("lr"), "sweep": {"rate": [0.1, 0.01]}, "hold": True}
    assert (dorm.submit_sweep(sweep).new, dorm.submit_sweep(sweep).before) == (2, 2)
    assert [one.name for one in dorm.sweeps()] == ["lr"]
    with pytest.raises(Refused) as waits:
        dorm.restart(dorm.sweep("lr").apps[0]["name"])
    assert waits.value.code == "restart.waits"
    dorm.cancel_sweep("lr", "enough")
    ended = dorm.wait_sweep("lr", by="loss")
    assert (ended.phases, [one["parameters"] for one in ended.apps]) == (
        {"cancelled": 2},
        [{"rate": 0.1}, {"rate": 0.01}],
    )
    assert {one.name for one in dorm.history(name=["lr"], state=["cancelled"])} == {"lr-0000", "lr-0001"}
    compared = dorm.compare("lr-0000", "lr-0001")
    assert [one["field"] for one in compared["spec"]][-1:] == ["group.parameters.rate"]
    with pytest.raises(NotFound):
        dorm.checkpoints("nobody")


@pytest.mark.nats
async def test_streams_continue_after_a_server_ends(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PAUSE_S", 0.05)
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:150])
        async with served(connection) as api:
            expected = [one["position"] for one in (await api.get("/v1/events?after=0&limit=500"))["items"]]
            dorm, same = AsyncClient(api.server.url), Client(api.server.url)
            stream = dorm.events(after="0")
            seen = [(await anext(stream)).position for _ in range(100)]
            ordinary = await asyncio.to_thread(lambda: [*itertools.islice(same.events(after="0"), len(expected))])
            assert [one.position for one in ordinary] == expected
        async with served(connection) as api:
            await filled(connection, RECORDS[150:])
            await api.reach(len(RECORDS))
            dorm._server = wire.server_of(api.server.url)  # It is back elsewhere, as behind a load balancer.
            async with asyncio.timeout(PATIENCE_S):
                while parse(seen[-1]).seq < len(RECORDS):
                    seen.append((await anext(stream)).position)
            await stream.aclose()  # type: ignore[attr-defined]
            expected = [one["position"] for one in (await api.get("/v1/events?after=0&limit=500"))["items"]]
            assert seen == expected[: len(seen)]


async def test_without_a_server_requests_are_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PAUSE_S", 0.01)
    with pytest.raises(RemoteError):
        Client("localhost:4280")
    with pytest.raises(Unreachable):
        await asyncio.to_thread(Client("http://127.0.0.1:9").app, "one")
    with pytest.raises(Unreachable):
        await AsyncClient("http://127.0.0.1:9").app("one")


def test_it_needs_the_standard_library_alone() -> None:
    program = (
        "import sys, dorm.remote\n"
        "known = sys.stdlib_module_names | {'dorm'}\n"
        "print(sorted({name.partition('.')[0] for name, module in sys.modules.items() "
        "if getattr(module, '__file__', None) and name.partition('.')[0] not in known and not name.startswith('_')}))\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_all_distributions_have_one_version() -> None:
    versions = [
        tomllib.loads((ROOT / p / "pyproject.toml").read_text())["project"]["version"] for p in (".", "dorm/remote")
    ]
    assert versions[0] == versions[1]
