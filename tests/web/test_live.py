"""The dashboard of a cluster that runs: real server, real master, real agents and containers, a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from dorm.api.options import Options
from dorm.api.serving import serving
from dorm.local.cluster import LocalCluster, LocalOptions
from events.codec import decode
from events.kinds import ContainerExited, ContainerStarted, Resized, Round
from events.nats.connection import Connection
from tests.e2e.ports import own_ports
from tests.e2e.story import until
from tests.web.browsing import drawn, holds, opened, rows, violations, visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from playwright.async_api import Browser, Page

    from dorm.core.state import State

pytestmark = [pytest.mark.nats, pytest.mark.slow]
PATIENCE_S = 30.0
FRAMES = 8
"""Frames, of 16 ms of the page's own time, within which it draws what it has received."""
HANDLED = """
window.handled = [];
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (kind, handler) {
  listen.call(this, kind, (event) => {
    handler(event);
    if (kind === "change") window.handled.push(parseInt(event.lastEventId));
  });
};
"""
"""Notes the position of each change, once the page has taken it."""
TOO_WIDE = """[...document.querySelectorAll("dialog *")]
    .filter((one) => one.getBoundingClientRect().right > window.innerWidth).map((one) => one.outerHTML.slice(0, 80))"""
SPEC = """name: {name}
command: [sleep, "1000"]
demand: {{cpu: 500m, memory: 64MiB}}
n_min: 1
n_max: 4
"""


@contextlib.asynccontextmanager
async def dashboard(folder: Path, agents: int = 2) -> AsyncIterator[tuple[LocalCluster, str]]:
    """A cluster on this machine, and the address of its dashboard."""
    options = LocalOptions(
        data=folder / "data", cluster=f"web{abs(hash(str(folder))) % 10**8}", agents=agents,
        capacity={"cpu": 1000, "memory": 2**30}, ports=own_ports(), runtime="process", report_interval_s=0.5,
        progress_interval_s=0.2,
    )  # fmt: skip
    async with LocalCluster(options) as cluster:
        connection = await Connection.open(cluster.server.url, options.cluster, name="dorm-api")
        try:
            async with serving(connection, Options(port=0, user="tester")) as server:
                following = asyncio.create_task(server.run())
                try:
                    await server.services.follower.reach(1, PATIENCE_S)
                    yield cluster, f"{server.url}/"
                finally:
                    following.cancel()
                    await asyncio.wait({following})
        finally:
            await connection.close()
            await cluster.stop_now()


async def picture(tab: Page, name: str) -> str:
    """A fingerprint of what a canvas shows."""
    drawn_: str = await tab.evaluate("name => document.querySelector(name).toDataURL()", name)
    return hashlib.sha256(drawn_.encode()).hexdigest()


async def read_by_keyboard(tab: Page, nodes: int) -> str:
    """What the grid says of each node as the arrows go over it."""
    await tab.locator(".gridcanvas").first.focus()
    said = []
    await tab.keyboard.press("Home")
    for _ in range(nodes):
        said.append(await tab.locator(".grid [role=status]").first.inner_text())
        await tab.keyboard.press("ArrowRight")
    return "\n".join(said)


async def moves(cluster: LocalCluster, after: int) -> list[int]:
    """The sequences of all events after one that change the picture: resizes, and containers that start or end."""
    found, end = [], await cluster.client.log.end()
    async for batch in cluster.client.log.read(after=after):
        for record in batch:
            event = decode(record)
            decided = isinstance(event, Round) and any(isinstance(fact, Resized) for fact in event.events)
            if decided or isinstance(event, ContainerStarted | ContainerExited):
                found.append(record.seq)
        if batch[-1].seq >= end:
            break
    return found


async def drawn_upto(tab: Page) -> int:
    """The sequence of the moment that the grid shows."""
    return int(await tab.evaluate("parseInt(document.querySelector('.gridcanvas').dataset.position)"))


async def submit(tab: Page, text: str) -> None:
    """Through the page's editor, once the plan is there."""
    await tab.get_by_role("button", name="Submit").first.click()
    preview = tab.locator(".preview")
    await tab.get_by_label("Spec (YAML or JSON)").fill(text)
    await preview.locator("table, .note").first.wait_for()
    assert "start" in await preview.inner_text()
    await tab.get_by_role("button", name="Submit the app").click()


async def focus_on(tab: Page, name: str) -> None:
    """Tab along until the element with this name has the focus."""
    for _ in range(80):
        await tab.keyboard.press("Tab")
        if await tab.evaluate("document.activeElement.innerText?.trim()") == name:
            return
    raise AssertionError(f"the keyboard does not reach {name!r}")


async def test_submitted_resized_and_cancelled_from_the_page(tmp_path: Path, browser: Browser) -> None:
    async with dashboard(tmp_path) as (cluster, address), opened(browser, address) as tab:
        await tab.locator(".status.live").wait_for()
        await submit(tab, SPEC.format(name="first"))
        await holds(tab, "location.hash.startsWith('#/app/first-')")
        await tab.locator(".pagehead .chip", has_text="running").wait_for()
        await visit(tab, "#/cluster")
        await tab.locator(".lanenames", has_text="first").wait_for()
        assert "4 of first" in (await read_by_keyboard(tab, 2)).replace("2 of first", "4 of first")

        # A second app makes the first shrink: grid and lanes show it without being asked.
        before = await picture(tab, ".gridcanvas"), await picture(tab, ".lanecanvas")
        state = await cluster.client.state()
        begun = await cluster.client.log.end()
        await cluster.client.submit(_document("second"))
        state = await until(cluster.client, _shrunk, "the first shrinks for the second")
        await tab.locator(".changes", has_text="second").wait_for()
        moved = await moves(cluster, begun)
        assert len(moved) >= 3
        await holds(tab, f"parseInt(document.querySelector('.gridcanvas').dataset.position) >= {moved[-1]}")
        assert "second" in await read_by_keyboard(tab, 2)
        await tab.wait_for_timeout(600)
        assert (await picture(tab, ".gridcanvas"), await picture(tab, ".lanecanvas")) != before
        await visit(tab, "#/apps")
        shown = {row[0]: row[3].split()[0] for row in await rows(tab)}
        assert shown == {app.name: str(len(app.current.planned)) for app in state.live_apps() if app.current}

        # What its agent reports of a node is beside what is reserved.
        await visit(tab, "#/node/node-1")
        await tab.locator("main [role=status]", has_text="Reported").wait_for()
        await tab.locator(".tile", has_text="memory").locator("text=used").wait_for()
        await visit(tab, "#/apps")

        # By keyboard alone.
        await tab.keyboard.press("/")
        await tab.keyboard.type("second")
        await tab.keyboard.press("Enter")
        await holds(tab, "location.hash.startsWith('#/app/second-')")
        await drawn(tab)
        await focus_on(tab, "Cancel")
        await tab.keyboard.press("Enter")
        await tab.locator("dialog .preview", has_text="cancelled").wait_for()
        await focus_on(tab, "Cancel the app")
        await tab.keyboard.press("Enter")
        await until(cluster.client, _second_ended, "the second is cancelled")
        await tab.locator(".pagehead .chip", has_text="cancelled").wait_for()

        # What follows is only asked, with the dialog in the page.
        await visit(tab, "#/cluster")
        async with opened(browser, address, strict=False, size=(390, 844)) as other:
            await other.get_by_role("button", name="Policy").click()
            await other.locator("dialog .params").first.wait_for()
            assert await other.evaluate(TOO_WIDE) == []
            assert await violations(other) == []
            await other.keyboard.press("Escape")
            await other.get_by_role("button", name="Submit").first.click()
            await other.get_by_label("Spec (YAML or JSON)").fill("name: third\nn_max: -1")
            await other.locator("dialog .note.bad").first.wait_for()
            assert await other.get_by_role("button", name="Submit the app").is_disabled(), "it would be refused"


async def test_a_resize_is_drawn_within_frames_of_its_event(tmp_path: Path, browser: Browser) -> None:
    """In the page's own time, which stands still until the event is there: on any machine, the same.  How long an event takes
    to the page is a matter of the API (`tests.api.streams.test_view_in_time`)."""
    async with (
        dashboard(tmp_path) as (cluster, address),
        opened(browser, address, script=HANDLED) as tab,
    ):
        await tab.locator(".status.live").wait_for()
        first = await cluster.client.submit(_document("first"))
        await until(cluster.client, lambda now: now.apps[first.id].phase == "running", "it runs")
        await tab.locator(".lanenames", has_text="first").wait_for()
        await tab.clock.install()
        await tab.clock.pause_at(await tab.evaluate("Date.now()") + 5000)
        begun = await cluster.client.log.end()
        await cluster.client.submit(_document("second"))
        await until(cluster.client, _shrunk, "the first shrinks for the second")
        moved = await moves(cluster, begun)
        assert len(moved) >= 3
        await holds(tab, f"window.handled.some((seq) => seq >= {moved[-1]})")
        before = await picture(tab, ".gridcanvas"), await picture(tab, ".lanecanvas")
        assert await drawn_upto(tab) < moved[0], "nothing is drawn while the page's time stands still"
        await tab.clock.run_for(FRAMES * 16)
        assert await drawn_upto(tab) >= moved[-1]
        assert await picture(tab, ".gridcanvas") != before[0]
        assert await picture(tab, ".lanecanvas") != before[1]


@pytest.mark.soak
@pytest.mark.soak
async def test_drain_update_and_policy(tmp_path: Path, browser: Browser) -> None:
    async with dashboard(tmp_path) as (cluster, address), opened(browser, address) as tab:
        app = await cluster.client.submit(_document("first"))
        await until(cluster.client, lambda now: now.apps[app.id].phase == "running", "it runs")
        await visit(tab, "#/node/node-1")
        await tab.get_by_role("button", name="Drain").click()
        await tab.locator("dialog .preview table").wait_for()
        async with opened(browser, address) as watching:
            begun = await cluster.client.log.end()
            await tab.get_by_role("button", name="Drain the node").click()
            await until(cluster.client, lambda now: bool(now.nodes["node-1"].draining), "it is drained")
            await until(cluster.client, lambda now: not _held_by(now, "node-1"), "it is empty")
            moved = await moves(cluster, begun)
            assert moved
            await holds(watching, f"parseInt(document.querySelector('.gridcanvas').dataset.position) >= {moved[-1]}")
        await tab.locator(".pagehead .chip", has_text="draining").wait_for()
        await tab.get_by_role("button", name="End the drain").click()
        await tab.locator("dialog .preview table, dialog .preview .note").first.wait_for()
        assert "drain of node-1 ended" in await tab.locator("dialog .preview").inner_text()
        await tab.locator("dialog").get_by_role("button", name="End the drain").click()
        await until(cluster.client, lambda now: not now.nodes["node-1"].draining, "its drain has ended")

        await visit(tab, f"#/app/{app.id}")
        await tab.get_by_role("button", name="Update").click()
        await tab.get_by_label("Most containers (n_max)").fill("1")
        await tab.locator("dialog .preview table, dialog .preview .note").first.wait_for()
        await tab.get_by_role("button", name="Update the app").click()
        await until(cluster.client, lambda now: now.apps[app.id].n_max == 1, "it is updated")

        await tab.get_by_role("button", name="Policy").click()
        await tab.get_by_label("theta2").fill("0.5")
        await tab.locator("dialog summary", has_text="Times").click()
        await tab.get_by_label("idle (s)").fill("45")
        await tab.locator(".preview", has_text="idle = 45s").wait_for()
        await tab.get_by_role("button", name="Change the policy").click()
        await until(cluster.client, lambda now: now.settings.params.get("theta2") == 0.5, "the policy is changed")
        assert (await cluster.client.state()).settings.idle_s == 45

        await tab.get_by_role("button", name="Policy").click()
        dialog = tab.locator("dialog")
        await dialog.get_by_label("Policy").select_option("static")
        await dialog.get_by_label("count").first.fill("3")
        await dialog.locator(".preview", has_text="policy static").wait_for()
        await tab.get_by_role("button", name="Change the policy").click()
        await until(cluster.client, lambda now: now.settings.policy == "static", "another policy")
        assert (await cluster.client.state()).settings.params == {"count": 3}


def _held_by(state: State, node: str) -> bool:
    apps = (app.current for app in state.live_apps())
    return any(
        one.node == node for current in apps if current for one in current.all_containers() if one.state != "exited"
    )


def _document(name: str) -> Any:
    return {
        "name": name, "command": ["sleep", "1000"], "demand": {"cpu": "500m", "memory": "64MiB"}, "n_min": 1, "n_max": 4,
    }  # fmt: skip


def _second_ended(state: State) -> bool:
    second = state.find_app("second")
    return second is not None and second.ended == "cancelled"


def _shrunk(state: State) -> bool:
    first, second = state.find_app("first"), state.find_app("second")
    return bool(first and second and first.phase == second.phase == "running" and first.adjustments)
