"""The dashboard in Debian's Chromium, as people use it; every complaint of the browser fails the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from playwright.async_api import async_playwright

from tests.lab.machines.chromium import chromium
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

TIMEOUT_MS = 20_000
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


@contextlib.asynccontextmanager
async def chrome() -> AsyncIterator[Browser]:
    """A browser without a window."""
    program = chromium()
    if program is None:
        unavailable("there is no chromium")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def opened(
    browser: Browser,
    address: str,
    *,
    theme: Literal["light", "dark"] = "light",
    size: tuple[int, int] = (1400, 1000),
    strict: bool = True,
    script: str = "",
    zone: str = "UTC",
) -> AsyncIterator[Page]:
    """A tab on which the cluster is drawn, and in which `script` ran before the page's own.  With `strict` it must have
    nothing to complain about, and ask no one but the address for anything.  Scripts of the test itself (axe) are not subject
    to the page's policy."""
    context = await browser.new_context(
        color_scheme=theme, viewport={"width": size[0], "height": size[1]}, timezone_id=zone, bypass_csp=not strict
    )
    context.set_default_timeout(TIMEOUT_MS)
    tab = await context.new_page()
    if script:
        await tab.add_init_script(script)
    errors: list[str] = []
    asked: list[str] = []
    tab.on(
        "console",
        lambda said: (
            errors.append(f"{said.text} ({said.location['url']})") if said.type in ("error", "warning") else None
        ),
    )
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    try:
        await tab.goto(address)
        await drawn(tab)
        yield tab
        if strict:
            assert errors == []
            origin = address.split("#")[0].rstrip("/")
            assert [url for url in asked if not url.startswith((origin, "data:", "blob:"))] == []
    except Exception as error:
        error.add_note(f"at {tab.url}, the console says: {errors}")
        raise
    finally:
        await context.close()


async def drawn(tab: Page) -> None:
    """Wait until the moment of the address is shown."""
    await tab.wait_for_selector("main:not([aria-busy=true]) > :not(.boot, h1.sr)")


async def visit(tab: Page, hash_: str) -> None:
    await tab.evaluate("hash => { location.hash = hash; }", hash_)
    await tab.wait_for_timeout(50)
    await drawn(tab)


async def holds(tab: Page, script: str) -> None:
    """Wait until an expression is true.  Playwright's own waiting evaluates text in the page, which its policy forbids."""
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while not await tab.evaluate(script):  # noqa: ASYNC110
            await asyncio.sleep(0.03)


async def rows(tab: Page) -> list[list[str]]:
    """The text of each cell of the page's first table, once it is there."""
    await tab.wait_for_selector("main table")
    script = """() => [...document.querySelector('main table').querySelectorAll('tbody tr:not(.gap)')]
        .map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"""
    found: list[list[str]] = await tab.evaluate(script)
    return found


async def violations(tab: Page) -> list[str]:
    """What axe-core finds serious or worse, in a few words each."""
    if not await tab.evaluate("Boolean(window.axe)"):
        await tab.evaluate(AXE.read_text())
    found: dict[str, Any] = await tab.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['id']} ({one['impact']}): {json.dumps([node['html'][:160] for node in one['nodes'][:3]])}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
