"""Sessions in a browser: links and drafts survive signing in, and the page offers what its user may do."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from dorm.api.identity import digest_of, new_secret
from events import kinds as k
from tests.api.served import connected, led, say, served
from tests.api.test_identity import bearer, closed
from tests.core.records import document
from tests.web.browsing import TIMEOUT_MS, drawn, holds, violations, visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, BrowserContext, Page

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow]

DRAFT = "name: half-written\ncommand: [train]\n"


@contextlib.asynccontextmanager
async def signed_out(browser: Browser) -> AsyncIterator[BrowserContext]:
    context = await browser.new_context(timezone_id="UTC", bypass_csp=True)
    context.set_default_timeout(TIMEOUT_MS)
    try:
        yield context
    finally:
        await context.close()


async def sign_in(tab: Page, secret: str) -> None:
    await tab.locator("#token").fill(secret)
    await tab.get_by_role("button", name="Sign in").click()
    await drawn(tab)


async def offered(tab: Page) -> set[str]:
    """The actions that the page offers."""
    await tab.locator(".who").wait_for()
    names: list[str] = await tab.evaluate(
        "[...document.querySelectorAll('.top > button, .pagehead button')].map((one) => one.innerText)"
    )
    return {name for name in names if name.isalpha()}


async def test_links_and_drafts_survive_signing_in(nats_server: NatsServer, browser: Browser) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"), signed_out(browser) as context:
        secrets = await closed(connection)
        log, cluster = connection.log, connection.cluster
        async with served(connection) as api:
            await api.reach(await log.end())
            url = api.server.url
            tab = await context.new_page()
            await tab.goto(f"{url}/?plain=1#/log?at=5&kinds=nodes")
            await tab.wait_for_url(f"{url}/sign-in?plain=1#/log?at=5&kinds=nodes")
            await tab.locator("#said", has_text="dorm dashboard").wait_for()
            await sign_in(tab, secrets["op"])
            assert tab.url == f"{url}/?plain=1#/log?at=5&kinds=nodes"
            (cookie,) = await context.cookies()
            assert secrets["op"] not in cookie["value"]
            assert cookie["expires"] > 0, "it ends"

            # The session ends under a page where somebody writes.
            await visit(tab, "#/apps")
            await tab.locator(".status.live").wait_for()
            await tab.evaluate("window.samePage = true")
            await tab.get_by_role("button", name="Submit").first.click()
            await tab.get_by_label("Spec (YAML or JSON)").fill(DRAFT)
            other = new_secret()
            await say(log, cluster, k.TokenAdded(token="other", user="op", digest=digest_of(other)), "root")
            await api.reach(await say(log, cluster, k.TokenRemoved(token="op-t"), "root"))
            again = tab.get_by_role("dialog", name="Your session has ended")
            await again.wait_for()
            assert await violations(tab) == []
            await again.get_by_label("Token").fill("dorm_wrong")
            await again.get_by_role("button", name="Sign in").click()
            await again.get_by_role("alert").wait_for()
            await again.get_by_label("Token").fill(other)
            await again.get_by_role("button", name="Sign in").click()
            await again.wait_for(state="detached")
            assert await tab.get_by_label("Spec (YAML or JSON)").input_value() == DRAFT
            assert await tab.evaluate("window.samePage && location.hash") == "#/apps"
            await tab.keyboard.press("Escape")
            await tab.locator(".status.live").wait_for()
            end = await say(log, cluster, k.NodeDrainRequested(node="a", reason="heat"), "root")
            await visit(tab, "#/cluster")
            await holds(tab, f"parseInt(document.querySelector('.gridcanvas').dataset.position) >= {end}")

            # Signing out ends the session for all tabs; a code of `dorm dashboard` begins another one, also with an address.
            second = await context.new_page()
            await second.goto(f"{url}/#/nodes")
            await drawn(second)
            await tab.locator(".who summary").click()
            assert cluster in await tab.locator(".whobox").inner_text()
            await tab.set_viewport_size({"width": 390, "height": 844})
            assert await tab.evaluate("document.querySelector('.whobox').getBoundingClientRect().left") >= 0
            assert await violations(tab) == []
            await tab.get_by_role("button", name="Sign out").click()
            await tab.wait_for_url(f"{url}/sign-in?plain=1#/cluster")
            await second.get_by_role("dialog", name="Your session has ended").wait_for()
            code = (await api.send("POST", "/v1/session/codes", None, 200, bearer(other)))["code"]
            await tab.goto(f"{url}/sign-in#code={code}&to=/node/a?at=4")
            await tab.wait_for_url(f"{url}/#/node/a?at=4")
            await visit(tab, "#/node/a")
            await tab.locator(".status.live").wait_for()
            assert await tab.locator("dialog").count() == 0
            await second.evaluate("dispatchEvent(new Event('focus'))")
            await second.get_by_role("dialog", name="Your session has ended").wait_for(state="detached")


async def test_the_page_offers_what_its_user_may_do(nats_server: NatsServer, browser: Browser) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"):
        secrets = await closed(connection)
        async with served(connection) as api:
            await api.reach(await connection.log.end())
            taken = await api.send("POST", "/v1/apps", document("mine"), headers=bearer(secrets["ann"]))
            await api.reach(int(taken["position"]))
            app = {"Update", "Hold", "Restart", "Cancel"}
            for who, role, there, may in (
                ("rea", "reader", taken["id"], set()),
                ("op", "operator", taken["id"], {"Policy", "Submit", *app}),
                ("ann", "user", taken["id"], {"Submit", *app}),
                ("mallory", "user", "", {"Submit"}),
            ):
                async with signed_out(browser) as context:
                    tab = await context.new_page()
                    await tab.goto(f"{api.server.url}/#/app/{there}" if there else f"{api.server.url}/#/apps")
                    await tab.wait_for_url(re.compile("/sign-in"))
                    await sign_in(tab, secrets[who])
                    summary = await tab.locator(".who summary").inner_text()
                    assert summary.split() == [who, role, "on", connection.cluster]
                    if there:
                        await tab.locator(".pagehead .chip").wait_for()
                    else:  # Of another tenant's app.
                        await tab.locator("main .applink").first.click()
                        await tab.locator(".pagehead .chip").wait_for()
                    if may:
                        await tab.get_by_role("button", name="Submit").first.wait_for()
                    shown = await offered(tab)
                    assert shown - {"Restart"} == may - {"Restart"}, who
