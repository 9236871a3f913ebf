"""The events on the first page, through floods of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from events.kinds import AppProgressed, NodeDrainRequested
from replay.page import changes
from tests.api.served import connected, filled, say, served
from tests.replay.busy import busy_log
from tests.web.browsing import holds, opened

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]

RECORDS = busy_log(60, apps=4, nodes=2)
LISTED = "document.querySelector('[aria-labelledby=tail-title]').innerText.includes({text!r})"


@pytest.mark.parametrize(("most", "count"), [(3, 30), pytest.param(200, 900, marks=pytest.mark.soak)])
async def test_a_flood_of_reports_hides_no_decision(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, most: int, count: int, browser: Browser
) -> None:
    """Neither where a change leaves it out, nor once more reports have come than the page keeps of events."""
    monkeypatch.setattr(changes, "MOST_RECORDS", most)
    monkeypatch.setattr("dorm.api.streams._VIEW_PAUSE_S", 2.0)
    monkeypatch.setattr("dorm.api.streams._VIEW_LONGEST_S", 2.0)
    async with connected(nats_server.url) as connection:
        await filled(connection, RECORDS)
        log, cluster = connection.log, connection.cluster
        async with served(connection) as api, opened(browser, f"{api.server.url}/") as tab:
            await tab.locator(".status.live").wait_for()
            # After this one comes a pause, so what follows is one change.
            await say(log, cluster, NodeDrainRequested(node="gpu-02", reason="a loud fan"), "ann")
            await holds(tab, LISTED.format(text="a loud fan"))
            await say(log, cluster, NodeDrainRequested(node="gpu-01", reason="a worn fan"), "ann")
            for step in range(count):
                last = await say(log, cluster, AppProgressed(app="none", generation=1, step=step), "gpu-01")
            await holds(tab, f"Number(document.querySelector('.gridcanvas').dataset.position) >= {last}")
            await holds(tab, LISTED.format(text="a worn fan"))
