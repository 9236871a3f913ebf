"""The page over a server that can be killed, and what only a server gives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from dorm.api.clusters import ArchivedCluster
from dorm.api.options import Options
from dorm.api.serving import serving
from replay.simulator.simulation import Simulation
from tests.api.served import connected, filled
from tests.e2e.commands import done, running, until_printed
from tests.lab.machines.ports import free_port
from tests.replay.busy import busy_log
from tests.replay.made_log import log_of
from tests.simulator.histories import busy, seq_at, written
from tests.tries import tries
from tests.web.browsing import drawn, holds, opened, rows, violations, visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from events.log.records import Record
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.slow


async def apps_shown(tab: Page) -> dict[str, tuple[str, int]]:
    """Phase and containers of each app in the table of apps."""
    return {row[0]: (row[2], int(row[3].split()[0])) for row in await rows(tab) if row[0]}


@pytest.mark.nats
async def test_the_slider_agrees_with_dorm_state_and_the_page_outlives_its_server(
    nats_server: NatsServer, tmp_path: Path, browser: Browser
) -> None:
    records, chance, port = busy_log(500, apps=9, nodes=5), Random(5), free_port()
    async with connected(nats_server.url) as connection:
        where = ("--url", nats_server.url, "--cluster", connection.cluster)
        serve = ("serve", "--listen", f"127.0.0.1:{port}", *where)

        async def said(seq: int) -> dict[str, tuple[str, int]]:
            found = json.loads(await done(tmp_path, "state", "--at", str(seq), "-o", "json", *where))
            return {app["name"]: (app["phase"], app["containers"]) for app in found["apps"]}

        await filled(connection, records[:400])
        async with contextlib.AsyncExitStack() as page:
            async with running(tmp_path, tmp_path / "first.log", *serve) as process:
                await until_printed(tmp_path / "first.log", "is at", process)
                address = f"http://127.0.0.1:{port}/"
                tab = await page.enter_async_context(opened(browser, address, strict=False))
                for seq in [*(chance.randint(1, 400) for _ in range(tries(3, 50))), 400]:
                    await visit(tab, f"#/apps?at={seq}")
                    await holds(tab, f"document.querySelector('.exact input').value === '{seq}'")
                    expected = await said(seq)
                    if expected:
                        assert expected.items() <= (await apps_shown(tab)).items()
                await visit(tab, "#/apps")
                await tab.locator(".status.live").wait_for()
                process.kill()
                await process.wait()
            await tab.locator(".status.reconnecting").wait_for()
            await tab.get_by_role("alert").get_by_text("Disconnected since").wait_for()
            assert await tab.evaluate("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
            assert await violations(tab) == []

            # What happened without a server is there once there is one again, on the same page.
            await filled(connection, records[400:])
            await tab.evaluate("window.samePage = true")
            async with running(tmp_path, tmp_path / "second.log", *serve) as process:
                await until_printed(tmp_path / "second.log", "is at", process)
                await holds(tab, "document.querySelector('.exact input').value === '500'")
                await tab.locator(".status.live").wait_for()
                assert await tab.locator(".lost, main.stale").count() == 0
                assert (await said(500)).items() <= (await apps_shown(tab)).items()
                assert await tab.evaluate("window.samePage")


@contextlib.asynccontextmanager
async def archive() -> AsyncIterator[tuple[str, int]]:
    """The page of a simulated log, and a sequence in its middle."""
    records = written(Simulation(busy()))
    async with archived(records) as address:
        yield address, seq_at(records, 231.0)


@contextlib.asynccontextmanager
async def archived(records: list[Record]) -> AsyncIterator[str]:
    """The page of the archive of a log."""
    options = Options(port=0, archive="busy")
    async with serving(ArchivedCluster(log_of(records)), options) as server:
        following = asyncio.create_task(server.run())
        try:
            await server.services.follower.reach(len(records), 20.0)
            yield f"{server.url}/"
        finally:
            following.cancel()
            await asyncio.wait({following})


async def test_a_fork_is_shown_next_to_the_real_course_and_its_address_restores_it(browser: Browser) -> None:
    async with archive() as (address, seq):
        async with opened(browser, f"{address}#/whatif?at={seq}") as tab:
            await tab.get_by_label("Policy").select_option("static")
            await tab.get_by_label("count", exact=False).first.fill("2")
            assert await tab.get_by_role("button", name="Play it on").is_enabled()
            await tab.get_by_label("count", exact=False).first.fill("1")
            await tab.get_by_role("button", name="Play it on").click()
            await tab.locator("#changed-title", has_text="count = 1").wait_for()
            verdict = await tab.locator(".banner").first.inner_text()
            assert "on average" in verdict
            assert "Backtest" in verdict
            assert await tab.locator("#happened-title").inner_text() == "What happened"
            lanes = tab.locator(".lanenames")
            assert await lanes.count() == 2
            async with asyncio.timeout(20):  # What follows a moment is drawn as it is read.
                while await lanes.nth(0).inner_text() != await lanes.nth(1).inner_text():
                    await tab.wait_for_timeout(50)
            assert {row[0] for row in await rows(tab)} >= {"Apps completed", "Mean completion"}
            there = tab.url
        assert "change=" in there
        async with opened(browser, there, theme="dark", strict=False) as tab:
            await tab.locator("#changed-title").wait_for()
            assert await tab.locator(".banner").first.inner_text() == verdict
            await drawn(tab)
            assert await violations(tab) == []


async def test_a_fork_with_other_nodes_apps_and_times_follows_the_form(browser: Browser) -> None:
    """All that the form offers goes to the simulator, and its address fills the form again."""
    async with archive() as (address, seq):
        async with opened(browser, f"{address}#/whatif?at={seq}") as tab:
            play = tab.get_by_role("button", name="Play it on")
            await tab.get_by_label("theta2").wait_for()
            assert await play.is_disabled()
            for group in ("Times and", "Nodes", "Apps"):
                await tab.locator("summary", has_text=group).click()
            await tab.get_by_label("quiet_limit (ms)").fill("700")
            await tab.get_by_label("Nodes that join").fill("2")
            await tab.get_by_role("alert").get_by_text("choose a node").wait_for()
            await tab.get_by_label("Copies of").fill("n0")
            await tab.get_by_label("Their resources").fill("cpu=1")
            await tab.get_by_label("Nodes that are drained").fill("n1")
            await tab.get_by_label("An app to submit").fill("name: eighth\ncommand: [work]\ndemand: {cpu: 1}\n")
            await tab.get_by_label("How long to simulate").fill("half a day")
            await tab.get_by_role("alert").get_by_text("is not a duration").wait_for()
            assert await play.is_disabled()
            await tab.get_by_label("How long to simulate").fill("6h")
            await play.click()
            title = tab.locator("#changed-title")
            await title.wait_for()
            said = await title.inner_text()
            for part in ("quiet_limit = 700ms", "2 more nodes of 1 core", "n1", "eighth"):
                assert part in said
            there = tab.url
        async with opened(browser, there, theme="dark", strict=False) as tab:
            await title_of(tab, said)
            assert await violations(tab) == []
            assert await tab.get_by_label("Copies of").input_value() == "n0"
            assert await tab.get_by_label("quiet_limit (ms)").input_value() == "700"
            assert await tab.get_by_label("How long to simulate").input_value() == "21600s"


@pytest.mark.parametrize(
    "also",
    [
        '{"nodes": 5, "update": 5, "cancel": 5}',
        pytest.param('{"nodes": [{"like": 5, "capacity": 5}]}', marks=pytest.mark.soak),
    ],
)
async def test_an_invented_address_leaves_the_form_usable(also: str, browser: Browser) -> None:
    async with archive() as (address, seq), contextlib.AsyncExitStack() as stack:
        there = f"{address}#/whatif?at={seq}&also={quote(also)}"
        tab = await stack.enter_async_context(opened(browser, there, strict=False))
        await tab.get_by_label("theta2").wait_for()
        await tab.get_by_label("theta2").fill("0.5")
        await tab.get_by_label("How long to simulate").fill("6h")


async def title_of(tab: Page, said: str) -> None:
    await tab.locator("#changed-title", has_text=said).wait_for()
