"""`dorm serve`, and the one that `dorm up` starts, as processes of their own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
import pytest

from tests.e2e.commands import done, refused, running, until_said
from tests.e2e.local_up import leaving_nothing, talker, up

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]


async def answer_of(session: aiohttp.ClientSession, path: str) -> Any:
    """Ask until it listens."""
    async with asyncio.timeout(40.0):
        while True:
            try:
                async with session.get(path) as answer:
                    if answer.status == 200:
                        return await answer.json()
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.1)


async def test_up_serves_its_cluster_in_a_process_that_ends_with_it(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, "--api", "0", agents=1, api=True) as cluster:
        url = re.findall(r"dashboard +(http://127\.0\.0\.1:\d+)", await cluster.said("dashboard"))[0]
        async with aiohttp.ClientSession(base_url=url) as session:
            ready = await answer_of(session, "/v1/ready")
            assert (ready["cluster"], ready["status"]) == ("local", "ok")
            async with session.post("/v1/apps", json=talker("talks", lines=5)) as answer:
                assert answer.status == 202
                submitted = await answer.json()
            rows = json.loads(await done(cluster.home, "ps", "--all", "-o", "json"))
            assert [row["id"] for row in rows] == [submitted["id"]]
            async with asyncio.timeout(40.0):
                async with session.get("/v1/events/stream?after=0&kind=AppCompleted") as events:
                    await events.content.readuntil(b"AppCompleted")
                async with session.get(f"/v1/apps/{submitted['id']}/logs") as answer:
                    assert (await answer.text()).count("line") == 5
                stream = {"Accept": "text/event-stream"}
                async with session.get(f"/v1/apps/{submitted['id']}/logs?follow=true", headers=stream) as answer:
                    text = await answer.text()
                    assert text.count("event: line\ndata: ") == 6
                    assert text.endswith("event: end\ndata: {}\n\n")
                async with session.get(f"/v1/apps/{submitted['id']}/logs?slot=7") as answer:
                    assert (answer.status, (await answer.json())["code"]) == (404, "slot.not_found")
            first = serving(cluster.process.pid)
            first.kill()
            await asyncio.to_thread(first.wait, 10)
            assert (await answer_of(session, "/v1/ready"))["status"] == "ok"
        second = serving(cluster.process.pid)
        cluster.process.kill()
        await cluster.process.wait()
        await asyncio.to_thread(second.wait, 20)
        assert not second.is_running()


def serving(parent: int) -> psutil.Process:
    (found,) = [one for one in psutil.Process(parent).children() if "serve" in one.cmdline()]
    return found


async def test_serve_says_what_it_means_to_listen_for_others(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, agents=1) as cluster:
        log = folder / "serve.log"
        async with running(cluster.home, log, "serve", "--listen", "0.0.0.0:0") as process:
            said = await until_said(log, "warning", process)
            assert "beyond this machine" in said
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        assert "in use" in await refused(cluster.home, "serve", "--listen", f"127.0.0.1:{port}", code=1)
        await refused(cluster.home, "serve", "--listen", "127.0.0.1:http", code=2)
        taken.close()
