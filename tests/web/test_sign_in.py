"""Signing in to the dashboard, in a browser: by a code as `dorm dashboard` opens the page, by a token, and out again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from dorm.cli.serve import leading_page
from events import kinds as k
from tests.api.served import connected, led, say, served
from tests.api.test_identity import bearer, closed
from tests.web.browsing import TIMEOUT_MS, drawn, holds, violations

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

    from tests.lab.machines.nats_server import NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.soak]


async def test_a_code_signs_a_browser_in_and_leaves_no_trace(
    nats_server: NatsServer, tmp_path: Path, browser: Browser
) -> None:
    async with connected(nats_server.url) as connection, led(connection, "a"):
        secrets = await closed(connection)
        async with served(connection) as api:
            await api.reach(await connection.log.end())
            url = api.server.url
            inside = re.compile(rf"^{re.escape(url)}/(#.*)?$")
            context = await browser.new_context(timezone_id="UTC")
            context.set_default_timeout(TIMEOUT_MS)
            tab = await context.new_page()
            asked: list[str] = []
            tab.on("request", lambda request: asked.append(request.url))

            # Without a session the page asks who it is, also a wrong one.
            await tab.goto(f"{url}/")
            await tab.wait_for_url(f"{url}/sign-in")
            assert await violations(tab) == []
            await tab.fill("#token", "dorm_wrong")
            await tab.click("button")
            await holds(tab, "document.getElementById('said').textContent.includes('unknown')")

            # As `dorm dashboard` does it: a file that leads there.
            code = (await api.send("POST", "/v1/session/codes", None, 200, bearer(secrets["op"])))["code"]
            file = tmp_path / "dashboard.html"
            file.write_text(leading_page(f"{url}/sign-in#{code}"))
            await tab.goto(file.as_uri())
            await tab.wait_for_url(inside)
            await drawn(tab)
            assert code not in tab.url
            assert [one for one in asked if code in one.partition("#")[0]] == []
            history = await tab.evaluate("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
            assert secrets["op"] not in history
            assert "dorm-session" not in history, "no script reads the cookie"

            # The session does what the page does, and a page of another origin does nothing with it.
            given = "{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{}'}"
            ask = f"async (to) => (await fetch(to, {given})).status"
            assert await tab.evaluate(ask, "/v1/nodes/a/drain") == 202
            await tab.goto(f"{url.replace('127.0.0.1', 'localhost')}/v1/health")
            assert await tab.evaluate(ask, "/v1/nodes/a/drain") == 401, (
                "cookies are of the address that was signed in at"
            )

            # Without its token the session is over.
            await tab.goto(f"{url}/")
            await drawn(tab)
            await api.reach(await say(connection.log, connection.cluster, k.TokenRemoved(token="op-t"), "root"))
            await tab.goto(f"{url}/")
            await tab.wait_for_url(f"{url}/sign-in")
            await tab.fill("#token", secrets["rea"])
            await tab.click("button")
            await tab.wait_for_url(inside)
            cookies = await context.cookies()
            assert {(one["httpOnly"], one["sameSite"]) for one in cookies} == {(True, "Strict")}
            await context.close()
