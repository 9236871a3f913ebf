"""Many tabs of one browser: one connection for all that they follow, and none for what nobody looks at."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from dorm.api.serving import Server, serving
from events.kinds import NodeDrainRequested
from tests.api.served import Api, connected, filled, say, served
from tests.e2e.story import until
from tests.replay.busy import busy_log
from tests.web.browsing import TIMEOUT_MS, drawn, holds, visit
from tests.web.test_live import dashboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from playwright.async_api import Browser, BrowserContext, Page

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]

SPEC: dict[str, Any] = {
    "name": "talks", "command": ["sh", "-c", "i=0; while sleep 0.2; do i=$((i+1)); echo line $i; done"],
    "demand": {"cpu": "100m", "memory": "32MiB"}, "n_min": 1, "n_max": 1,
}  # fmt: skip
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@contextlib.asynccontextmanager
async def shared_browser(browser: Browser) -> AsyncIterator[BrowserContext]:
    """What several tabs share: cookies, connections and workers."""
    context = await browser.new_context(timezone_id="UTC")
    context.set_default_timeout(TIMEOUT_MS)
    try:
        yield context
    finally:
        await context.close()


async def opened_tab(context: BrowserContext, address: str) -> Page:
    tab = await context.new_page()
    await tab.goto(address)
    await drawn(tab)
    return tab


async def spoken(tab: Page) -> list[int]:
    """The numbers of the lines of output that a tab shows."""
    text: str = await tab.locator(".output pre").inner_text()
    return [int(number) for number in re.findall(r"line (\d+)", text)]


def in_progress(server: Server) -> list[str]:
    """Paths of the requests that connections wait for."""
    assert server._runner is not None
    manager = server._runner.server
    assert manager is not None
    requests = [connection._current_request for connection in manager.connections]
    return [request.path for request in requests if request is not None]


async def becomes(happens: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while not happens():  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.03)


async def streams(api: Api, count: int) -> None:
    """Wait until the server has this many streams, parts included."""
    await becomes(lambda: api.server.services.addresses.streams == count)


async def test_seven_tabs_are_live_over_one_connection_and_actions_answer(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[Server] = []

    @contextlib.asynccontextmanager
    async def noted(*arguments: Any, **options: Any) -> AsyncIterator[Server]:
        async with serving(*arguments, **options) as server:
            servers.append(server)
            yield server

    monkeypatch.setattr("tests.web.test_live.serving", noted)
    async with dashboard(tmp_path, agents=1) as (cluster, address), shared_browser(browser) as context:
        app = await cluster.client.submit(SPEC)
        await until(cluster.client, lambda now: now.apps[app.id].phase == "running", "it runs")
        talking = [await opened_tab(context, f"{address}#/app/{app.id}") for _ in range(2)]
        for tab in talking:
            await tab.get_by_role("button", name="output", exact=True).click()
        others = [await opened_tab(context, f"{address}#/cluster") for _ in range(5)]
        for tab in (*talking, *others):
            await tab.locator(".status.live").wait_for()
        for tab in talking:
            await holds(tab, "/line [0-9]+/.test(document.querySelector('.output pre')?.textContent ?? '')")
        await becomes(lambda: in_progress(servers[0]) == ["/v1/streams"])

        # A connection that breaks is replaced by another one, without gaps and repeats.
        last = (await spoken(talking[0]))[-1]
        for shared in list(servers[0].services.shared.values()):
            shared.stream.end()
        for tab in talking:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                while (numbers := await spoken(tab))[-1] <= last + 3:  # noqa: ASYNC110 - containers
                    await asyncio.sleep(0.1)
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            await tab.locator(".status.live").wait_for()

        # Each tab draws what happens, and what one of them asks is answered.
        await talking[1].get_by_role("button", name="Cancel").click()
        await talking[1].locator("dialog .preview", has_text="cancelled").wait_for()
        await talking[1].get_by_role("button", name="Cancel the app").click()
        await until(cluster.client, lambda now: bool(now.apps[app.id].ended), "it is cancelled")
        end = await cluster.client.log.end()
        for tab in others:
            await holds(tab, f"parseInt(document.querySelector('.gridcanvas').dataset.position) >= {end - 1}")
        for tab in talking:
            await tab.locator(".pagehead .chip", has_text="cancelled").wait_for()
        await becomes(lambda: len(in_progress(servers[0])) <= 2)


async def test_tabs_that_are_hidden_or_in_the_past_follow_nothing(nats_server: NatsServer, browser: Browser) -> None:
    async with connected(nats_server.url) as connection, shared_browser(browser) as context:
        await filled(connection, busy_log(60, apps=4, nodes=2))
        log, cluster = connection.log, connection.cluster
        async with served(connection) as api:
            address = f"{api.server.url}/"
            first = await opened_tab(context, address)
            second = await context.new_page()
            await second.clock.install()
            await second.goto(f"{address}#/log")
            await second.locator(".status.live").wait_for()
            await streams(api, 3)  # One connection with the view for both, and the log of one.
            assert len(api.server.services.shared) == 1
            for tab in (first, second):
                await tab.evaluate("window.samePage = true")

            await visit(first, "#/cluster?at=30")
            await first.locator(".status.past").wait_for()
            await second.evaluate(HIDE, True)
            await second.clock.fast_forward(5000)
            assert api.server.services.addresses.streams == 3, "a short look elsewhere ends nothing"
            await second.clock.fast_forward(6000)
            await streams(api, 0)

            drained = [
                await say(log, cluster, NodeDrainRequested(node="gpu-01", reason=f"look {n}"), "a") for n in "ab"
            ]
            await visit(first, "#/cluster")
            await second.evaluate(HIDE, False)
            await holds(first, f"parseInt(document.querySelector('.gridcanvas').dataset.position) >= {drained[-1]}")
            await holds(second, "document.querySelector('.events').innerText.split('look a').length === 2")
            await holds(second, "document.querySelector('.events').innerText.includes('look b')")
            await streams(api, 3)

            # The worker is gone: each tab notices that it is silent, and goes on.
            session = await browser.new_browser_cdp_session()
            targets = (await session.send("Target.getTargets"))["targetInfos"]
            (worker,) = [
                target for target in targets if target["type"] == "shared_worker" and target["url"].startswith(address)
            ]
            await session.send("Target.closeTarget", {"targetId": worker["targetId"]})
            await first.close()
            await streams(api, 0)
            await say(log, cluster, NodeDrainRequested(node="gpu-01", reason="look c"), "a")
            await second.clock.run_for(60_000)
            await holds(second, "document.querySelector('.events').innerText.includes('look c')")
            assert await second.evaluate("window.samePage")
            await second.close()
            await streams(api, 0)


async def test_a_browser_without_shared_workers_is_live(nats_server: NatsServer, browser: Browser) -> None:
    async with connected(nats_server.url) as connection, shared_browser(browser) as context:
        await filled(connection, busy_log(60, apps=4, nodes=2))
        await context.add_init_script("delete window.SharedWorker;")
        async with served(connection) as api:
            tab = await opened_tab(context, f"{api.server.url}/#/log")
            await tab.locator(".status.live").wait_for()
            await streams(api, 3)
            last = await say(connection.log, connection.cluster, NodeDrainRequested(node="gpu-01", reason="heat"), "a")
            await holds(tab, "document.querySelector('.events').innerText.includes('heat')")
            await visit(tab, "#/cluster")
            await holds(tab, f"parseInt(document.querySelector('.gridcanvas').dataset.position) >= {last}")
