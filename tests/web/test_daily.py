"""Holds, restarts and sweeps from the page, on a cluster that runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.story import until
from tests.web.browsing import holds, opened, rows, violations, visit
from tests.web.test_live import dashboard

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

    from dorm.core.state import App, State


pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak]

SPEC: dict[str, Any] = {
    "name": "first", "command": ["sleep", "1000"], "demand": {"cpu": "500m", "memory": "64MiB"}, "n_min": 1, "n_max": 1,
}  # fmt: skip
SWEEP = {**SPEC, "name": "lr", "sweep": {"rate": [0.1, 0.01], "seed": {"range": 3}}, "parallel": 1}


@pytest.mark.soak
async def test_held_released_restarted_and_swept(tmp_path: Path, browser: Browser) -> None:
    async with dashboard(tmp_path) as (cluster, address), opened(browser, address) as tab:
        client = cluster.client
        app = await client.submit(SPEC)

        def first(state: State) -> App:
            return state.apps[app.id]

        await until(client, lambda now: first(now).phase == "running", "it runs")
        await visit(tab, f"#/app/{app.id}")
        await tab.get_by_role("button", name="Hold").click()
        await tab.get_by_label("Reason (optional)").fill("a look")
        await tab.locator("dialog .preview", has_text="stop").wait_for()
        await tab.get_by_role("button", name="Hold the app").click()
        await until(client, lambda now: first(now).phase == "waiting", "it is held")
        await tab.locator(".banner.warn", has_text="a look").wait_for()
        await tab.get_by_role("button", name="Release").click()
        await tab.get_by_role("button", name="Release the app").click()
        await until(client, lambda now: first(now).phase == "running", "it runs again")

        before = (await client.app(app.id)).generation
        await tab.get_by_role("button", name="Restart").click()
        await tab.get_by_label("fresh").check()
        await tab.locator("dialog .preview", has_text="restart").wait_for()
        await tab.get_by_role("button", name="Restart the app").click()
        await until(client, lambda now: first(now).generation > before, "it restarts")

        await tab.get_by_role("button", name="Submit").first.click()
        await tab.get_by_label("Spec (YAML or JSON)").fill(json.dumps(SWEEP))
        await tab.locator("dialog .preview", has_text="lr-0000").wait_for()
        await tab.get_by_role("button", name="Submit the sweep").click()
        await tab.locator(".pagehead", has_text="at most 1 at once").wait_for()
        await tab.get_by_role("link", name="Sweeps").click()
        await holds(tab, "document.querySelector('main table tbody tr a')?.innerText.trim() === 'lr'")
        assert (await rows(tab))[0][2].split() == ["0", "of", "6"]
        await tab.locator("main table a", has_text="lr").click()
        await tab.locator(".pagehead", has_text="at most 1 at once").wait_for()
        shown = await rows(tab)
        assert [row[2:4] for row in shown] == [[rate, seed] for rate in ("0.1", "0.01") for seed in "012"]
        await tab.locator("main table a", has_text="lr-0004").click()
        await tab.locator(".banner", has_text="App 5 of 6 of the sweep lr: rate=0.01, seed=1").wait_for()
        await tab.locator(".banner a", has_text="lr").click()
        async with opened(browser, tab.url, strict=False) as other:
            await other.locator(".pagehead", has_text="lr").wait_for()
            assert await violations(other) == []
        await tab.get_by_role("button", name="Cancel the sweep").click()
        await tab.locator("dialog .preview", has_text="6 apps of lr cancelled").wait_for()
        await tab.get_by_role("button", name="Cancel all its apps").click()
        await until(
            client,
            lambda now: all(one.ended for one in now.apps.values() if one.spec.group is not None),
            "the sweep is cancelled",
        )
        await tab.locator(".tile", has_text="6 of 6").wait_for()
