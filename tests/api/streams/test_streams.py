"""Streams: each event once and in order, through ends of readers, of the API and of the log's server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from yarl import URL

from dorm.client.tail import Filter, Tail
from events.codec import encode
from events.kinds import AppProgressed, AppSubmitted
from events.positions import parse
from events.subjects import progress
from replay.page.changes import MOST_RECORDS
from replay.page.view import view
from replay.travel import state_at
from tests.api.served import PATIENCE_S, Api, connected, filled, say, served, streaming
from tests.api.test_reads import pages
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from dorm.core.state import State
    from events.log.interface import ReadableLog
    from events.nats.connection import Connection
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

RECORDS = busy_log(900, apps=10, nodes=4)
EVERYTHING = Filter()


async def positions(log: ReadableLog, cluster: str, wanted: Filter = EVERYTHING) -> list[str]:
    return [str(one.position) async for one in Tail(log, cluster, wanted).events()]


async def read_in_pieces(api: Api, path: str, until: str, chance: Random) -> list[str]:
    """Read a stream from its start; break off now and then, and resume."""
    seen: list[str] = []
    last = "0"
    async with asyncio.timeout(PATIENCE_S):
        while last != until:
            async with streaming(api, path, last) as stream:
                seen += [one["id"] for one in await stream.take(chance.randint(1, 400), until)]
                last = seen[-1]
    return seen


@pytest.mark.parametrize("query", ["", "?kind=Resized&kind=AppCompleted", "?node=gpu-02", "?user=ann&user=bob"])
async def test_a_reader_that_disconnects_anywhere_sees_each_event_once(nats_server: NatsServer, query: str) -> None:
    filters = {
        "": Filter(), "?kind": Filter(kinds=("Resized", "AppCompleted")), "?node": Filter(nodes=("gpu-02",)),
        "?user": Filter(users=("ann", "bob")),
    }  # fmt: skip
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:500])
        async with served(connection) as api:
            await filled(connection, RECORDS[500:])
            expected = await positions(connection.log, connection.cluster, filters[query.partition("=")[0]])
            assert expected
            assert await read_in_pieces(api, f"/v1/events/stream{query}", expected[-1], Random(query)) == expected


async def test_readers_of_a_growing_log_see_each_event_once(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:100])
        async with served(connection) as api:
            last = f"{RECORDS[-1].seq}"

            async def read(after: str) -> list[str]:
                found = []
                async with streaming(api, "/v1/events/stream", after) as stream:
                    while (one := await stream.next()) is not None:
                        found.append(one["id"])
                        if parse(one["id"]).seq == int(last) and found[-1] == expected_end:
                            return found
                return found

            from events.positions import logged

            expected_end = str([*logged(RECORDS[-1])][-1].position)
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read(str(start))) for start in (0, 50, 99, 100)]
                tasks.create_task(filled(connection, RECORDS[100:]))
            expected = await positions(connection.log, connection.cluster)
            for start, reader in zip((0, 50, 99, 100), readers, strict=True):
                assert reader.result() == [one for one in expected if parse(one).seq > start]


async def test_another_process_and_a_restarted_server_lose_and_repeat_nothing(server: NatsServer) -> None:
    """The API is killed under its readers, and then the log's server; what they read is the log."""
    seen: list[str] = []
    async with connected(server.url, "local") as connection:
        await filled(connection, RECORDS[:200])
        async with served(connection) as api, streaming(api, "/v1/events/stream", "0") as stream:
            seen += [one["id"] for one in await stream.take(150)]
        async with served(connection) as api, streaming(api, "/v1/events/stream", seen[-1]) as stream:
            seen += [one["id"] for one in await stream.take(20)]
            await server.restart()
            async with asyncio.timeout(PATIENCE_S):
                await connection.connected()
                await filled(connection, RECORDS[200:260])
            expected = await positions(connection.log, "local")
            seen += [one["id"] for one in await stream.take(len(expected) - len(seen))]
    assert seen == expected


async def test_a_reader_that_does_not_keep_up_is_ended_and_resumes(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:10])
        async with served(connection, waiting=20_000) as api:
            reader, writer = await raw_stream(api, "/v1/events/stream")
            others = api.server.services.events
            await filled(connection, RECORDS[10:])
            await api.reach(len(RECORDS))
            # It reads nothing: what waits for it fills the system's buffers, then its own.
            large = AppSubmitted(spec={"name": "x" * 100_000})
            async with asyncio.timeout(PATIENCE_S):
                while any(len(channel.readers) for channel in others._channels.values()):
                    await say(connection.log, connection.cluster, large, "ann")
            got = b""
            with contextlib.suppress(ConnectionError):
                while piece := await asyncio.wait_for(reader.read(1 << 20), PATIENCE_S):
                    got += piece
            writer.close()
            ids = [line[4:].decode() for line in got.split(b"\n") if line.startswith(b"id: ")]
            whole = ids[:-1]
            expected = [one for one in await positions(connection.log, connection.cluster) if parse(one).seq > 10]
            assert whole == expected[: len(whole)]
            rest = await read_on(api, whole[-1] if whole else "10", expected[-1])
            assert whole + rest == expected


async def read_on(api: Api, after: str, until: str) -> list[str]:
    """Read to an event, and resume as often as the stream ends before."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while not found or found[-1] != until:
            async with streaming(api, "/v1/events/stream", found[-1] if found else after) as stream:
                found += [one["id"] for one in await stream.take(100_000, until)]
    return found


async def raw_stream(api: Api, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream of which only the head is read.  The system keeps little of what follows for it."""
    url = URL(api.server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (url.host, url.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await reader.readuntil(b"retry: 1000\n\n")
    return reader, writer


async def test_quiet_streams_send_keepalives(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dorm.api.streams._CHECK_S", 0.05)
    async with connected(nats_server.url) as connection, served(connection, heartbeat_s=0.1) as api:
        reader, writer = await raw_stream(api, "/v1/events/stream")
        assert b"still here" in await asyncio.wait_for(reader.readuntil(b"here"), PATIENCE_S)
        writer.close()


async def test_streams_are_counted_by_address(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, served(connection, streams_per_address=3) as api:
        open_ones = [await raw_stream(api, "/v1/events/stream") for _ in range(2)]
        open_ones.append(await raw_stream(api, "/v1/view/changes"))
        problem = await api.get("/v1/events/stream", 429)
        assert problem["code"] == "api.streams.too_many"
        assert (await api.get("/v1/health"))["streams"] == 3
        for _, writer in open_ones:
            writer.close()
            await writer.wait_closed()


async def test_a_position_beyond_the_log_is_a_problem(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection, served(connection) as api:
        problem = await api.get("/v1/events/stream?after=1000", 404)
        assert problem["code"] == "moment.after_end"


class Model:
    """A view to which changes are applied, as the page does it."""

    def __init__(self, document: dict[str, object]) -> None:
        self.position = int(str(document["position"]))
        apps = document["apps"]
        assert isinstance(apps, list)
        self.apps = {app["id"]: app for app in apps}
        self.nodes = {
            node["id"]: {**node, "containers": [[apps[held[0]]["id"], *held[1:]] for held in node["containers"]]}
            for node in document["nodes"]  # type: ignore[attr-defined]
        }
        self.cluster = document["cluster"]
        self.records: list[str] = []
        self.left_out = 0

    def apply(self, change: dict[str, object]) -> None:
        position = int(str(change["position"]))
        assert position > self.position
        self.position = position
        self.cluster = change.get("cluster", self.cluster)
        self.apps |= {app["id"]: app for app in change.get("apps", [])}  # type: ignore[attr-defined]
        self.nodes |= {node["id"]: node for node in change.get("nodes", [])}  # type: ignore[attr-defined]
        for gone in change.get("gone_apps", []):  # type: ignore[attr-defined]
            del self.apps[gone]
        for gone in change.get("gone_nodes", []):  # type: ignore[attr-defined]
            del self.nodes[gone]
        self.records += [record["position"] for record in change.get("records", [])]  # type: ignore[attr-defined]
        self.left_out += int(str(change.get("more_records", 0)))


async def test_changes_lead_from_any_view_to_the_next(nats_server: NatsServer) -> None:
    """A page that applies them has the view of their position, and has seen each record once, through broken streams.  Of
    more than a change lists, which is possible if this test is slow, it knows how many there were."""
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:100])
        async with served(connection) as api:
            model = Model(await api.get("/v1/view"))
            first = model.position
            for upto in (160, 400, 640):
                adding = asyncio.create_task(filled(connection, RECORDS[model.position : upto]))
                while model.position < upto:
                    async with streaming(api, "/v1/view/changes", str(model.position)) as stream:
                        for one in await stream.take(2, str(upto)):
                            assert one["event"] == "change"
                            model.apply(msgspec.json.decode(one["data"]))
                await adding
                there = Model(await api.get(f"/v1/view?min_seq={upto}"))
                assert (model.position, model.apps, model.nodes, model.cluster) == (
                    there.position, there.apps, there.nodes, there.cluster,
                )  # fmt: skip
            expected = await positions(connection.log, connection.cluster)
            since = [one for one in expected if first < parse(one).seq <= 640]
            assert len(model.records) + model.left_out == len(since)
            assert [one for one in since if one in set(model.records)] == model.records
            past: State = await state_at(connection.log)
            assert {app.id for app in view(past).apps} == set(model.apps)


async def test_omitted_events_of_a_change_are_counted_for_each_reader(nats_server: NatsServer) -> None:
    """A change lists the latest of many records.  A reader that has seen some of those misses none."""
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:100])
        async with served(connection) as api:
            await api.get("/v1/view")
            await filled(connection, RECORDS[100:400])
            await api.reach(400)
            expected = [one for one in await positions(connection.log, connection.cluster) if parse(one).seq > 100]
            for after, left_out in ((100, len(expected) - MOST_RECORDS), (390, 0)):
                async with streaming(api, "/v1/view/changes", str(after)) as stream:
                    (one,) = await stream.take(1)
                change = msgspec.json.decode(one["data"])
                assert change.get("more_records", 0) == left_out > -1
                listed = [record["position"] for record in change["records"]]
                assert listed == [one for one in expected[-MOST_RECORDS:] if parse(one).seq > after]


async def test_a_view_that_is_too_old_is_fetched_again(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS[:50])
        async with served(connection) as api, streaming(api, "/v1/view/changes", "3") as stream:
            (one,) = await stream.take(1)
            assert (one["event"], one["id"]) == ("reset", "50")
            await filled(connection, RECORDS[50:60])
            (one,) = await stream.take(1)
            assert one["event"] == "change"


def shown_positions(events: list[dict[str, str]]) -> list[str]:
    return [msgspec.json.decode(one["data"])["position"] for one in events]


async def test_progress_beside_the_log_comes_between_its_records_once(nats_server: NatsServer) -> None:
    """Whatever reader breaks off, and whether it reads what was there or what comes."""
    app = "made-abcdef"

    async def reported(connection: Connection, steps: range) -> None:
        for step in steps:
            said = AppProgressed(id=f"n1.{app}-1-0.AppProgressed.{step}", app=app, generation=1, step=step)
            await connection.log.progress.put(progress(connection.cluster, "n1", app), encode(said), msg_id=said.id)

    async with connected(nats_server.url) as connection:
        for first in range(0, 60, 10):
            await filled(connection, RECORDS[first : first + 10])
            await reported(connection, range(first, first + 5))
        async with served(connection) as api:
            async with asyncio.timeout(PATIENCE_S), streaming(api, "/v1/events/stream", None) as live:
                await filled(connection, RECORDS[60:70])
                await reported(connection, range(60, 65))
                came = await live.take(1)
                while not came[-1]["id"].endswith("~35"):
                    came += await live.take(1)
            expected = [one async for one in Tail(connection.log, connection.cluster, EVERYTHING).events()]
            chance, found, last = Random(1), list[dict[str, str]](), "0"
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < len(expected):
                    async with streaming(api, "/v1/events/stream", last) as stream:
                        found += await stream.take(min(chance.randint(1, 60), len(expected) - len(found)))
                        last = found[-1]["id"]
            # What arrives at once from the two may come in either order; each event has its own position all the same.
            everywhere = sorted(str(one.position) for one in expected)
            assert sorted(shown_positions(found)) == everywhere
            assert (
                sum(isinstance(one.event, AppProgressed) and one.position.beside is not None for one in expected) == 35
            )
            assert len({one["id"] for one in came}) == len(came)
            reports = [one for one in shown_positions(came) if "~" in one]
            assert len(reports) >= 5
            assert set(shown_positions(came)) <= set(everywhere)
            for query in ("", "&kind=AppProgressed", f"&app={app}"):
                for way in ("after", "before"):
                    listed = await pages(api, f"/v1/events?limit=7{query}", way, "&after=0" if way == "after" else "")
                    shown = [one["position"] for page in listed for one in page]
                    assert {one for one in shown if "~" in one} == {one for one in everywhere if "~" in one}
