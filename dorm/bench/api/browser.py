"""How long after the master's answer a browser that follows the cluster draws a new app."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import aiohttp

from dorm.bench import BenchError
from events.codec import decode
from events.kinds import AppAccepted, Round

if TYPE_CHECKING:
    from dorm.bench.report import Tell
    from events.nats.connection import Connection

_EACH_S = 1.0
_PATIENCE_S = 15.0
_WATCH = """
window.__drawn = {};
new MutationObserver(() => {
  for (const [, number] of document.body.textContent.matchAll(/drawn-([0-9]+)/g)) window.__drawn[number] ??= Date.now();
}).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""Records when the name of each app first appears in the page (UTC ms)."""


async def browser_lags(connection: Connection, url: str, seconds: float, tell: Tell) -> list[float]:
    """Submit an app a second, and return how long after its acceptance was stored each was drawn, in seconds.  Raises
    BenchError, also if there is no browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise BenchError("this part needs a browser: apt install chromium", code="package.missing")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise BenchError("this part needs Playwright: pip install playwright", code="package.missing") from None
    found: list[float] = []
    async with async_playwright() as driver, aiohttp.ClientSession(base_url=url) as session:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            tab = await browser.new_page(viewport={"width": 1400, "height": 1000})
            await tab.add_init_script(_WATCH)
            await tab.goto(f"{url}/#/apps?find=drawn-")
            await tab.wait_for_selector("main:not([aria-busy=true]) > :not(.boot)")
            for number in range(max(1, int(seconds / _EACH_S))):
                tell(f"apps drawn in a browser, {number} of {max(1, int(seconds / _EACH_S))}")
                found.append(await _one(connection, session, tab, number))
                await asyncio.sleep(_EACH_S)
        finally:
            await browser.close()
    return found


async def _one(connection: Connection, session: aiohttp.ClientSession, tab: Any, number: int) -> float:
    name = f"drawn-{number:04}"
    # A table draws only the rows that fit, and this row has to be one of them.
    await tab.evaluate(f"location.hash = '#/apps?find={name}'")
    spec = {"name": name, "command": ["work"], "demand": {"cpu": 1}}
    async with session.post("/v1/apps", json=spec) as answer:
        if answer.status != 202:
            raise BenchError(f"a submission was answered with {answer.status}", code="bench.wrong_answer")
        sent = await answer.json()
    accepted = await _accepted(connection, int(sent["position"]), sent["id"])
    waiting = f"window.__drawn['{number:04}']"
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not (drawn_ms := await tab.evaluate(waiting)):  # noqa: ASYNC110 - the page's own variable
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise BenchError(f"an app was not drawn within {_PATIENCE_S:g} s", code="bench.too_slow") from None
    async with session.post(f"/v1/apps/{sent['id']}/cancel", json={}) as answer:
        await answer.read()
    return max(0.0, float(drawn_ms) / 1e3 - accepted / 1e9)


async def _accepted(connection: Connection, after: int, app: str) -> int:
    """Return the log time (UTC ns) of the round that accepted an app."""
    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            contextlib.aclosing(connection.log.read(after=after, follow=True)) as batches,
        ):
            async for batch in batches:
                for record in batch:
                    event = decode(record)
                    facts = event.events if isinstance(event, Round) else ()
                    if any(isinstance(fact, AppAccepted) and fact.app == app for fact in facts):
                        return record.time
    except TimeoutError:
        pass
    raise BenchError("the master answered no submission", code="bench.nothing_measured")
