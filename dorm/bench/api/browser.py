"""How long after the master's answer a browser that follows the cluster draws a new app, and how long after a resize the
picture of the nodes moves.  All clocks are this machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING, Any

import aiohttp

from dorm.bench import BenchError
from events.codec import decode
from events.kinds import AppAccepted, Resized, Round

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.bench.report import Progress
    from events.log.records import Record
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
_POSITIONS = """() => {
  const canvas = document.querySelector(".gridcanvas");
  window.__positions = [];
  new MutationObserver(() => window.__positions.push([canvas.dataset.position, Date.now()]))
    .observe(canvas, { attributes: true, attributeFilter: ["data-position"] });
}"""
"""Records which positions of the log the picture of the nodes shows, and since when (UTC ms)."""


@contextlib.asynccontextmanager
async def _opened(address: str, script: str = "") -> AsyncIterator[Any]:
    """Open a tab in which the page is drawn.  Raises BenchError, also if there is no browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise BenchError("this part needs a browser: apt install chromium", code="package.missing")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise BenchError("this part needs Playwright: pip install playwright", code="package.missing") from None
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            tab = await browser.new_page(viewport={"width": 1400, "height": 1000})
            await tab.add_init_script(script)
            await tab.goto(address)
            await tab.wait_for_selector("main:not([aria-busy=true]) > :not(.boot)")
            yield tab
        finally:
            await browser.close()


async def browser_lags(connection: Connection, url: str, seconds: float, progress: Progress) -> list[float]:
    """Submit an app a second, and return how long after its acceptance was stored each was drawn, in seconds.  Raises
    BenchError, also where there is no browser."""
    lags: list[float] = []
    count = max(1, int(seconds / _EACH_S))
    async with _opened(f"{url}/#/apps?find=drawn-", _WATCH) as tab, aiohttp.ClientSession(base_url=url) as session:
        for number in range(count):
            progress(f"apps drawn in a browser, {number} of {count}")
            lags.append(await _one(connection, session, tab, number))
            await asyncio.sleep(_EACH_S)
    return lags


async def resize_lags(connection: Connection, url: str, seconds: float, progress: Progress) -> list[float]:
    """Watch the cluster for so long, and return how long after each decision that resized apps was stored the picture of the
    nodes showed it, in seconds.  Raises BenchError, also where there is no browser."""
    async with _opened(f"{url}/#/cluster") as tab:
        progress("resizes drawn in a browser")
        await tab.wait_for_selector(".gridcanvas[data-position]")
        await tab.evaluate(_POSITIONS)
        begin = await connection.log.end()
        await asyncio.sleep(seconds)
        resizes = [resize async for resize in _resizes(connection, begin)]
        if not resizes:
            raise BenchError("the master resized nothing", code="bench.nothing_measured")
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while (drawn := _drawn(await tab.evaluate("window.__positions")))[-1][0] < resizes[-1].seq:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise BenchError(f"a resize was not drawn within {_PATIENCE_S:g} s", code="bench.too_slow") from None
    return [max(0.0, next(at for seq, at in drawn if seq >= resize.seq) - resize.time / 1e9) for resize in resizes]


def _drawn(noted: list[tuple[str, float]]) -> list[tuple[int, float]]:
    """Return the sequences that were drawn, in order, and when (UTC seconds)."""
    return [(0, 0.0), *((int(position.split(".")[0].split("~")[0]), ms / 1e3) for position, ms in noted)]


async def _resizes(connection: Connection, after: int) -> AsyncIterator[Record]:
    async with contextlib.aclosing(connection.log.read(after=after)) as batches:
        async for batch in batches:
            for record in batch:
                event = decode(record)
                if isinstance(event, Round) and any(isinstance(fact, Resized) for fact in event.events):
                    yield record


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
