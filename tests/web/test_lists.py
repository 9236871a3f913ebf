"""Lists of apps and their history, the command bar, time zones, and what the page gives to others: links, files, frames."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from dorm.core.evolve import evolve
from dorm.core.state import State
from events.kinds import AppCancelRequested, NodeLost
from tests.api.served import connected, filled, served
from tests.replay.made_log import Story
from tests.replay.past.test_past import long_story
from tests.web.browsing import drawn, holds, opened, rows, violations, visit
from tests.web.test_offline import offline
from tests.web.test_serving import archive, archived

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.slow


async def clock(tab: Page) -> str:
    """What the slider says of the moment that is shown, with the name of the time zone."""
    return f"{await tab.locator('.clock').inner_text()} {await tab.locator('.zone').inner_text()}"


async def typed(tab: Page, text: str) -> None:
    """Type a moment into the slider's field."""
    await tab.locator(".exact input").fill(text)
    await tab.locator(".exact input").press("Enter")
    await tab.wait_for_timeout(100)
    await drawn(tab)


async def headings(tab: Page) -> list[str]:
    found: list[str] = await tab.evaluate("[...document.querySelectorAll('main thead th')].map((one) => one.innerText)")
    return [text.rstrip(" ↑↓") for text in found]


async def names(tab: Page) -> list[str]:
    return [row[0] for row in await rows(tab) if row[0]]


async def test_one_zone_for_what_is_shown_and_typed(browser: Browser) -> None:
    """The log is of 14 November 2023, from 22:13:20 UTC on."""
    async with archive() as (address, _), opened(browser, f"{address}#/apps?at=180", zone="Asia/Kolkata") as tab:
        assert await clock(tab) == "15 Nov 2023 03:49:14 UTC+05:30"
        assert "15 Nov 2023 03:49:14 UTC+05:30" in await tab.locator(".pastbar").inner_text()
        await typed(tab, "2023-11-15 03:49:14")
        assert await clock(tab) == "15 Nov 2023 03:49:14 UTC+05:30"
        await tab.locator(".zone").click()
        await holds(tab, "document.querySelector('.zone').innerText === 'UTC'")
        assert await clock(tab) == "14 Nov 2023 22:19:14 UTC"
        # What is shown can be typed, and the choice is remembered.
        await typed(tab, "14 Nov 2023 22:16:40")
        assert (await clock(tab)).startswith("14 Nov 2023 22:16:")
        await visit(tab, "#/history?since=all")
        assert (await rows(tab))[-1][3].startswith("14 Nov 2023 22:1")
        await tab.reload()
        await drawn(tab)
        assert (await clock(tab)).endswith(" UTC")

        # Positions as they are printed anywhere.
        await typed(tab, "99.0")
        await holds(tab, "document.querySelector('.exact input').value === '99'")
        await visit(tab, "#/apps?at=0")
        assert await clock(tab) == "before the first record UTC"


async def test_a_moment_that_the_log_does_not_have_is_no_other_one(browser: Browser) -> None:
    async with archive() as (address, _), opened(browser, f"{address}#/apps?at=99", strict=False) as tab:
        await tab.evaluate("location.hash = '#/apps?at=99999'")
        await tab.locator(".banner.bad").wait_for()
        assert (await clock(tab)).startswith("no such moment")
        assert "There is no moment 99999" in await tab.locator(".pastbar").inner_text()
        assert await tab.locator("main table").count() == 0
        await tab.get_by_role("button", name="To the end").click()
        await tab.locator("main table").wait_for()


async def test_columns_order_and_filters_are_in_the_address(browser: Browser) -> None:
    async with archived(long_story(3600.0).records) as address:
        async with opened(browser, f"{address}#/apps") as tab:
            assert (await headings(tab))[:8] == [
                "App",
                "User",
                "Phase",
                "Containers",
                "Step",
                "Loss",
                "Samples/s",
                "Time to go",
            ]
            # Failed ones come first, until somebody sorts.
            assert [row[2] for row in await rows(tab)][:4] == ["failed", "failed", "failed", "completed"]
            await tab.locator(".chooser summary").click()
            await tab.locator(".chooser").get_by_label("team").check()
            await tab.locator(".chooser").get_by_label("Samples/s").uncheck()
            await tab.keyboard.press("Escape")
            await tab.get_by_role("button", name="Loss").click()
            await tab.get_by_role("button", name="Loss").click()
            await tab.get_by_label("Phase").select_option("completed")
            assert (await names(tab))[:2] == ["app-00", "app-01"]
            columns = await headings(tab)
            assert "team" in columns
            assert "Samples/s" not in columns
            table, there = await rows(tab), tab.url
            # Labels and reasons are searched too.
            await tab.get_by_label("Find", exact=True).fill("team=VISION")
            await visit(tab, "#/apps?find=vision")
            assert await names(tab) == ["app-07"]
        async with opened(browser, there, strict=False) as other:
            assert await rows(other) == table
            await other.locator(".chooser summary").click()
            assert await violations(other) == []


async def test_ended_apps_are_found_at_any_age(tmp_path: Path, browser: Browser) -> None:
    async with archive() as (address, _), opened(browser, f"{address}#/apps") as tab:
        assert await tab.locator(".leftout").inner_text() == "3 apps that ended earlier are not in this table: History"
        await tab.locator(".leftout a").click()
        await holds(tab, "document.querySelectorAll('main tbody tr:not(.gap)').length === 7")
        assert await names(tab) == ["seventh", "sixth", "fifth", "fourth", "third", "second", "first"]
        await tab.get_by_label("Find", exact=True).fill("IR")
        await holds(tab, "document.querySelectorAll('main tbody tr:not(.gap)').length === 2")
        assert sorted(await names(tab)) == ["first", "third"]
        # The command bar has them too, and each leads to its app.
        await tab.keyboard.press("Control+k")
        await tab.keyboard.type("second")
        await tab.locator("#found li", has_text="completed 14 Nov").click()
        await tab.locator("h1", has_text="second").wait_for()
        async with opened(browser, f"{address}#/history?since=all", strict=False, size=(390, 844)) as other:
            assert await violations(other) == []
            assert await other.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

    # A log that keeps none of them for long, in a page without a server: it has them as well.
    async with opened(
        browser, f"{await offline(long_story().records, tmp_path)}#/history?since=all&state=failed"
    ) as tab:
        assert sorted(await names(tab)) == ["app-03", "app-07", "app-11"]
        assert {row[2] for row in await rows(tab)} == {"failed"}


async def test_pages_of_a_long_history_go_on_where_one_ended(browser: Browser) -> None:
    story = Story()
    for number in range(230):
        story.submit(f"a{number}", n_max=1)
    story.settle()
    for number in range(230):
        story.say(AppCancelRequested(app=f"a{number}"))
    story.settle()
    async with (
        archived(story.records) as address,
        opened(browser, f"{address}#/history?since=all&sort=submitted") as tab,
    ):
        await holds(tab, "/200 apps so far/.test(document.querySelector('#history-title').parentElement.innerText)")
        await tab.get_by_role("button", name="More").click()
        await holds(tab, "/230 apps$/.test(document.querySelector('#history-title').parentElement.innerText.trim())")
        assert await tab.get_by_role("button", name="More").count() == 0


async def test_the_first_page_says_what_is_wrong_and_what_needs_someone(tmp_path: Path, browser: Browser) -> None:
    story = long_story(3600.0)
    node = next(iter(story.state.nodes))
    story.round([NodeLost(node=node, last_heard=story.now)])
    state = State()
    for record in story.records:
        evolve(state, record)
    async with archived(story.records) as address, opened(browser, address) as tab:
        await tab.locator("[aria-labelledby=needs-title] li", has_text="app-11").wait_for()
        assert "3" in await tab.locator("[aria-labelledby=needs-title] .chip").first.inner_text()
        if state.nodes[node].shown == "lost":
            await tab.locator("[aria-labelledby=well-title] li", has_text=node).first.wait_for()
        await tab.locator(".usecharts canvas").first.wait_for()
        # The cluster has forgotten an app that failed long ago, and its log has not.
        for name in await tab.locator("[aria-labelledby=needs-title] .applink").all_inner_texts():
            await tab.locator("[aria-labelledby=needs-title] .applink", has_text=name).first.click()
            await tab.locator(".pagehead h1", has_text=name).wait_for()
            await tab.go_back()
        await tab.locator("[aria-labelledby=needs-title] .applink", has_text="app-11").wait_for()
        # Pictures as files.
        async with tab.expect_download() as download:
            await tab.get_by_role("button", name="Save as PNG: Partitions over time").click()
        file = tmp_path / "lanes.png"
        await (await download.value).save_as(file)
        assert (await download.value).suggested_filename == "partitions-over-time.png"
        with Image.open(file) as drawn_:
            assert drawn_.format == "PNG"
            assert len(drawn_.convert("RGB").getcolors(1 << 24) or []) > 20


async def test_commands_keys_and_frames(browser: Browser) -> None:
    async with archive() as (address, _):
        async with opened(browser, address, strict=False) as tab:
            await tab.keyboard.press("?")
            await tab.locator("dialog .keys").wait_for()
            assert await violations(tab) == []
            await tab.keyboard.press("Escape")
            await tab.locator("dialog").wait_for(state="detached")
            for text, expected in (
                ("hist", r"#.history$"), ("log", r"#.log$"), ("99.0", r"at=99$"), ("2023-11-14 22:19:14", r"at=180$"),
                ("now", r"#.log$"), ("n1", r"#.node.n1"),
            ):  # fmt: skip
                await tab.keyboard.press("/")
                await tab.keyboard.type(text)
                await tab.keyboard.press("Enter")
                await holds(tab, f"/{expected}/.test(location.hash)")
            await drawn(tab)
            # An archive has nothing to do.
            await tab.keyboard.press("/")
            await tab.keyboard.type("drain n1")
            assert await tab.locator("#found li", has_text="drain this node").count() == 0
            await tab.keyboard.press("Escape")
            await tab.locator("nav[aria-label=Pages] a", has_text="Nodes").click()
            await tab.keyboard.press("Space")
            await tab.get_by_role("button", name="Pause").click()
        async with opened(browser, f"{address}?embed=cluster", strict=False) as tab:
            await tab.locator(".gridcanvas").wait_for()
            assert await tab.locator("header.top, .slider, nav[aria-label=Pages]").count() == 0
            link = tab.locator(".columns a").first
            assert await link.get_attribute("target") == "_blank"
            assert "embed" not in (await link.get_attribute("href") or "")
            await tab.keyboard.press("a")
            assert not re.search("#/apps", tab.url)
        async with opened(browser, f"{address}?embed=nodes", strict=False) as tab:
            await tab.locator("#nodes-title", has_text="Nodes").wait_for()


NOTIFICATIONS = """
window.notified = [];
window.Notification = class {
  static permission = "default";
  static async requestPermission() { return (Notification.permission = "granted"); }
  constructor(title, options) { window.notified.push([title, options.tag]); }
  close() {}
};
"""


@pytest.mark.nats
async def test_actions_from_the_bar_and_notifications(nats_server: NatsServer, browser: Browser) -> None:
    records = long_story(3600.0).records
    last = max(index for index, record in enumerate(records) if b"AppFailed" in record.body)
    async with connected(nats_server.url) as connection:
        await filled(connection, records[:last])
        # The browser reports that the preview of the cancel is refused: app-11 is about to end.
        async with (
            served(connection) as api,
            opened(browser, f"{api.server.url}/#/apps", script=NOTIFICATIONS, strict=False) as tab,
        ):
            await tab.locator(".status.live").wait_for()
            await tab.get_by_role("button", name="Notify me").click()
            await tab.locator("[aria-pressed=true]", has_text="Notify me").wait_for()
            await tab.keyboard.press("/")
            await tab.keyboard.type("cancel app-11")
            await tab.locator("#found li", has_text="cancel this app").wait_for()
            await tab.keyboard.press("Enter")
            await tab.locator("dialog h2", has_text="Cancel app-11").wait_for()
            # A selection that ends beside the dialog is no click there.
            box = await tab.get_by_label("Reason").bounding_box()
            assert box is not None
            await tab.mouse.move(box["x"] + 20, box["y"] + 10)
            await tab.mouse.down()
            await tab.mouse.move(5, 5)
            await tab.mouse.up()
            await tab.wait_for_timeout(100)
            await tab.locator("dialog h2", has_text="Cancel app-11").wait_for()
            await tab.mouse.click(5, 5)
            await tab.locator("dialog").wait_for(state="detached")
            # It is told in the past too.
            await visit(tab, "#/apps?at=5")
            other = await tab.evaluate(
                "fetch('v1/view').then((answer) => answer.json())"
                ".then((view) => view.apps.find((app) => app.name !== 'app-11').id)"
            )
            async with (
                opened(browser, f"{api.server.url}/?embed=apps", strict=False) as frame,
                opened(browser, f"{api.server.url}/#/app/{other}") as page,
            ):
                await frame.locator("#apps-title").wait_for()
                assert await frame.get_by_role("button", name="Submit").count() == 0
                await page.locator(".lanenames li").wait_for()
                await filled(connection, records[last:])
                await holds(tab, "window.notified.length === 1")
                assert (await tab.evaluate("window.notified[0][0]")) == "app-11 failed"
                for _ in range(20):
                    assert await page.locator(".lanenames li").count() == 1
                    await page.wait_for_timeout(50)
