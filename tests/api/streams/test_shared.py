"""Several streams over one connection: each part is what its route sends, and parts come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from events.kinds import NodeDrainRequested
from tests.api.served import JSON, Api, Sse, connected, filled, led, say, served
from tests.api.test_identity import bearer, closed
from tests.core.records import document
from tests.replay.busy import busy_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats

EVENTS, VIEW = "/v1/events/stream", "/v1/view/changes"


class Parts:
    """What the parts of an open stream have brought."""

    def __init__(self, api: Api, sse: Sse, headers: dict[str, str]) -> None:
        self.api = api
        self.name = ""
        self.came: dict[str, list[dict[str, str]]] = defaultdict(list)
        self._sse = sse
        self._headers = headers
        self._part = ""
        self._read: Counter[str] = Counter()

    async def until(self, name: str, event: str) -> dict[str, Any]:
        """Return the data of the next such event of this part; what other parts bring meanwhile is kept."""
        async with asyncio.timeout(20.0):
            while True:
                while self._read[name] < len(self.came[name]):
                    fields = self.came[name][self._read[name]]
                    self._read[name] += 1
                    if fields["event"] == event:
                        data: dict[str, Any] = json.loads(fields["data"])
                        return data
                await self._more()

    async def _more(self) -> None:
        fields = await self._sse.next()
        assert fields is not None, "the stream has ended"
        if fields["event"] == "part":
            self._part = json.loads(fields["data"])
            return
        if fields["event"] == "stream":
            self.name, self._part = json.loads(fields["data"])["stream"], ""
        self.came[self._part].append(fields)

    async def change(self, status: int = 200, **body: Any) -> Any:
        return await self.api.send("POST", f"/v1/streams/{self.name}", body, status, self._headers)


@contextlib.asynccontextmanager
async def following(
    api: Api, parts: dict[str, dict[str, str]], headers: dict[str, str] | None = None
) -> AsyncIterator[Parts]:
    given = {**JSON, **(headers or {})}
    patient = aiohttp.ClientTimeout(total=None)
    async with api.session.post("/v1/streams", json={"follow": parts}, headers=given, timeout=patient) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        stream = Parts(api, Sse(answer), headers or {})
        await stream.until("", "stream")
        yield stream


async def test_parts_come_and_go_and_resume(nats_server: NatsServer) -> None:
    async with connected(nats_server.url) as connection:
        await filled(connection, busy_log(60, apps=4, nodes=2))
        log, cluster = connection.log, connection.cluster
        async with served(connection) as api:
            parts = {
                "view": {"path": f"{VIEW}?after=60"},
                "drains": {"path": f"{EVENTS}?kind=NodeDrainRequested&after=60"},
                "resumed": {"path": f"{EVENTS}?after=1", "last": "58"},
                "wrong": {"path": "/v1/apps"},
                "unknown": {"path": "/v1/apps/none%2Fsuch/logs?follow=true"},
            }
            async with following(api, parts) as stream:
                assert (await stream.until("wrong", "problem"))["code"] == "api.stream.not_shareable"
                assert (await stream.until("unknown", "problem"))["code"] == "app.not_found"
                await say(log, cluster, NodeDrainRequested(node="gpu-01", reason="a hot fan"), "ann")
                for name, event in (("view", "change"), ("drains", "event"), ("resumed", "event")):
                    while "a hot fan" not in json.dumps(await stream.until(name, event)):
                        pass
                resumed = [event["id"].partition(".")[0] for event in stream.came["resumed"]]
                assert {"59", "60", "61"} <= set(resumed)
                assert "58" not in resumed

                # One begins and one ends while the others go on, over the same connection.
                changed = await stream.change(
                    follow={"late": {"path": f"{EVENTS}?kind=NodeDrainRequested&after=60"}}, end=["drains", "resumed"]
                )
                assert changed["parts"] == ["late", "view"]
                assert (await stream.until("late", "event"))["body"]["reason"] == "a hot fan"
                before = len(stream.came["drains"])
                await say(log, cluster, NodeDrainRequested(node="gpu-02", reason="second"), "ann")
                assert (await stream.until("late", "event"))["body"]["reason"] == "second"
                assert len(stream.came["drains"]) == before
                assert (await api.get("/v1/health"))["streams"] == 3, "each part counts, and the whole"
                many = {f"p{number}": {"path": VIEW} for number in range(64)}
                assert (await stream.change(422, follow=many))["code"] == "api.streams.too_many"
            async with asyncio.timeout(20.0):
                while (await api.get("/v1/health"))["streams"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await stream.change(404))["code"] == "api.stream.unknown"


async def test_a_stream_belongs_to_its_user(nats_server: NatsServer) -> None:
    """Its parts show what their user may read, and another user cannot change them."""
    async with connected(nats_server.url) as connection, led(connection, "a"):
        secrets = await closed(connection)
        async with served(connection) as api:
            await api.reach(await connection.log.end())
            taken = await api.send("POST", "/v1/apps", document("canary"), headers=bearer(secrets["ann"]))
            own = await api.send("POST", "/v1/apps", document("plain"), headers=bearer(secrets["mallory"]))
            await api.reach(max(int(taken["position"]), int(own["position"])))
            parts = {
                "all": {"path": f"{EVENTS}?after=0&kind=AppSubmitted"},
                "theirs": {"path": f"/v1/apps/{taken['id']}/logs"},
            }
            async with following(api, parts, bearer(secrets["mallory"])) as stream:
                assert (await stream.until("theirs", "problem"))["code"] == "app.not_found"
                while "plain" not in json.dumps(await stream.until("all", "event")):
                    pass
                assert "canary" not in json.dumps(stream.came["all"])
                there = f"/v1/streams/{stream.name}"
                refused = await api.send("POST", there, {"end": ["all"]}, 404, bearer(secrets["op"]))
                assert refused["code"] == "api.stream.unknown"
                assert (await api.send("POST", there, {"end": ["all"]}, 401))["status"] == 401
