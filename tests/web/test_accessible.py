"""Each page and each dialog once, with axe-core: nothing serious, one heading of the first level, no wider than a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.served import connected, filled, served
from tests.replay.busy import busy_log
from tests.web.browsing import holds, opened, violations, visit

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]
PHONE = (390, 844)
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"


async def complaints(tab: Page) -> list[str]:
    """What is wrong with what the tab shows."""
    wide = int(await tab.evaluate(TOO_WIDE))
    headings = await tab.locator("h1").count()
    return [
        *await violations(tab),
        *([f"{wide} pixels too wide"] if wide > 0 else []),
        *([f"{headings} headings of the first level"] if headings != 1 else []),
    ]


async def dialog(tab: Page, button: str) -> list[str]:
    """What is wrong with the dialog that a button opens."""
    await tab.get_by_role("button", name=button, exact=True).first.click()
    await tab.locator("dialog[open]").wait_for()
    await tab.wait_for_timeout(50)
    wrong = await complaints(tab)
    await tab.keyboard.press("Escape")
    await tab.locator("dialog[open]").wait_for(state="detached")
    return wrong


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.soak)])
async def test_pages_and_dialogs_exclude_nobody(nats_server: NatsServer, browser: Browser, theme: str) -> None:
    scheme = "dark" if theme == "dark" else "light"
    async with connected(nats_server.url) as connection:
        await filled(connection, busy_log(300, apps=9, nodes=5))
        async with served(connection) as api:
            apps = (await api.get("/v1/apps"))["items"]
            node = (await api.get("/v1/nodes"))["items"][0]["name"]
            app = next(one["id"] for one in apps if one["containers"])
            address = f"{api.server.url}/"
            async with opened(browser, address, theme=scheme, strict=False, size=PHONE) as tab:  # type: ignore[arg-type]
                wrong: dict[str, list[str]] = {}
                for place in ("", "#/apps", "#/history", "#/sweeps", "#/nodes", "#/log", "#/whatif", "#/compare?vs=90"):
                    await visit(tab, place)
                    wrong[place] = await complaints(tab)
                for button in ("Policy", "Submit"):
                    wrong[button] = await dialog(tab, button)
                await visit(tab, f"#/app/{app}")
                await holds(tab, "document.querySelectorAll('.pagehead button').length > 2")
                wrong["app"] = await complaints(tab)
                for button in ("Update", "Hold", "Restart", "Cancel"):
                    wrong[button] = await dialog(tab, button)
                await visit(tab, f"#/node/{node}")
                wrong["node"] = await complaints(tab)
                wrong["Drain"] = await dialog(tab, "Drain")
                await tab.keyboard.press("?")
                await tab.locator("dialog[open]").wait_for()
                wrong["keys"] = await complaints(tab)
            assert {place: found for place, found in wrong.items() if found} == {}
