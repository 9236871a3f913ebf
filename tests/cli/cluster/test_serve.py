"""`dorm serve`, and the API that `dorm up` starts, as separate processes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import stat
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from yarl import URL

from dorm.remote.aio import AsyncClient
from tests.api.test_encryption import Files, serial
from tests.cli.cluster.service_manager import Manager
from tests.e2e.commands import done, dorm, refused, running, until_printed
from tests.e2e.local_up import leaving_nothing, talker, up

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
            async with session.get("/v1/health") as answer:
                assert answer.status == 200, "its address is printed once it answers"
            ready = await answer_of(session, "/v1/ready")
            assert (ready["cluster"], ready["status"]) == ("local", "ok")
            async with asyncio.timeout(40.0):
                while True:  # They are asked every few seconds.
                    masters = (await answer_of(session, "/v1/masters"))["leader"]["masters"]
                    if masters:
                        break
                    await asyncio.sleep(0.2)
            assert [one["condition"] for one in masters] == ["leads"]
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
                timed = f"/v1/apps/{submitted['id']}/logs?timestamps=true&since=-1h"
                async with session.get(f"{timed}&tail=2") as answer:
                    lines = (await answer.text()).splitlines()
                    assert [re.fullmatch(r"20\S{21}Z line (\d)", line)[1] for line in lines] == ["3", "4"]  # type: ignore[index]
                async with session.get(timed, headers=stream) as answer:
                    said = [json.loads(one[6:]) for one in (await answer.text()).splitlines() if "line " in one]
                    assert [one["text"] for one in said] == [f"line {number}" for number in range(5)]
                    assert all(len(one["time"]) == 24 for one in said)
                async with session.get(f"/v1/apps/{submitted['id']}/logs?since=soon") as answer:
                    assert (await answer.json())["code"] == "moment.malformed"
                found = AsyncClient(url).logs("talks", timestamps=True, tail=1)
                assert b"".join([one async for one in found]).decode() == lines[-1] + "\n"
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


async def test_the_dashboard_opens_for_the_user_who_started_the_cluster_and_for_no_other(tmp_path: Path) -> None:
    """Without a secret in any address or process list: the browser is given a file."""
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/address\n')
    program.chmod(0o755)
    async with leaving_nothing(tmp_path) as folder, up(folder, "--api", "0", agents=1, api=True, known=True) as cluster:
        url = cluster.running.dashboard
        said = await done(cluster.home, "dashboard", env={"BROWSER": f"{program} %s"})
        assert said == f"the dashboard at {url} opens in your browser\n"
        file = Path((tmp_path / "address").read_text().strip().removeprefix("file://"))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        (code,) = re.findall(rf"url={url}/sign-in#code=([\w-]+)", file.read_text())
        printed = await done(cluster.home, "dashboard", "--no-browser")
        assert f"{url}/sign-in#code=" in printed
        jar = aiohttp.CookieJar(unsafe=True)  # It takes cookies of addresses, too, as browsers do.
        async with aiohttp.ClientSession(base_url=url, cookie_jar=jar) as session:
            async with session.get("/v1/apps") as answer:
                assert answer.status == 401
            async with session.post("/v1/session", json={"code": code}) as answer:
                assert answer.status == 204
            async with session.get("/v1/state") as answer:
                assert answer.status == 200
            async with session.post("/v1/apps", json=talker("talks", lines=1), headers={"Origin": url}) as answer:
                assert answer.status == 202
        rows = json.loads(await done(cluster.home, "token", "list", "-o", "json"))
        assert len(rows) == 2
        cookie = jar.filter_cookies(URL(url)).popitem()[1].value
        assert "dorm_" not in cookie, "it holds no token's secret"
        everything = "".join(one.read_text() for one in (cluster.log, cluster.home / "local" / "api.log"))
        assert cookie not in everything
        assert code not in everything


def serving(parent: int) -> psutil.Process:
    (found,) = [one for one in psutil.Process(parent).children() if "serve" in one.cmdline()]
    return found


async def test_serve_reports_readiness_and_warns_about_a_public_address(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder, agents=1) as cluster:
        log = folder / "serve.log"
        manager, env = Manager(folder / "notify"), {"NOTIFY_SOCKET": str(folder / "notify")}
        files = Files(folder)
        tls = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
        serve = running(cluster.home, log, "serve", "--listen", "0.0.0.0:0", *tls, env=env)
        async with manager, serve as process:
            said = await until_printed(log, "warning", process)
            assert "beyond this machine" in said
            assert "STATUS=up to record" in await manager.said("READY=1")
            port = int(re.findall(r"https://0\.0\.0\.0:(\d+)", said)[0])
            renewed = files.renew(*files.made())
            process.send_signal(signal.SIGHUP)  # It reads the renewed certificate, and ends nothing.
            async with asyncio.timeout(40.0):
                while await serial(port) != renewed:  # noqa: ASYNC110  (no event reports it)
                    await asyncio.sleep(0.05)
            found = json.loads((await dorm(cluster.home, "doctor", "-o", "json"))[1])["findings"]
            ends = [one["about"] for one in found if one["check"] == "certificate" and one["level"] == "ok"]
            assert str(files.certificate) in ends
            process.send_signal(signal.SIGINT)
            await manager.said("STOPPING=1")
            assert await process.wait() == 0
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        assert "in use" in await refused(cluster.home, "serve", "--listen", f"127.0.0.1:{port}", code=1)
        await refused(cluster.home, "serve", "--listen", "127.0.0.1:http", code=2)
        taken.close()
