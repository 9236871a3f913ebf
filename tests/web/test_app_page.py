"""The page of an app: its output through restarts, what it is, notes, files; and how it is found on a grid."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from dorm.client import steering
from replay.page.view import view
from tests.e2e.story import until
from tests.replay.busy import busy_log
from tests.web.browsing import drawn, holds, opened, violations, visit
from tests.web.test_live import dashboard
from tests.web.test_offline import offline

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser, Page

pytestmark = [pytest.mark.nats, pytest.mark.slow]

WRITES = r"""
import os, sys, time
generation, rank = os.environ["DORM_GENERATION"], os.environ["DORM_RANK"]
print(f"\x1b[31mred\x1b[0m of generation {generation} rank {rank} \u202eevil", flush=True)
for part in (10, 50, 100):
    sys.stdout.write(f"\r{part}% of {rank}")
print(flush=True)
with open(os.path.join(os.environ["DORM_OUTPUTS"], "model.bin"), "wb") as file:
    file.write(bytes(600_000) + b"end")
for number in range(10**6):
    print("tick", rank, number, flush=True)
    time.sleep(0.3)
"""
BREAKS = """
delete window.SharedWorker;
const real = window.fetch;
window.fetch = async (...wanted) => {
  const answer = await real(...wanted);
  if (!/[/]streams$/.test(wanted[0]) || !answer.ok) return answer;
  const reader = answer.body.getReader();
  const body = new ReadableStream({ start(out) {
    window.breakOff = () => { out.error(new TypeError("lost")); reader.cancel(); };
    (async () => { for (let read; !(read = await reader.read()).done;) out.enqueue(read.value); })().catch(() => {});
  } });
  return new Response(body, { status: answer.status, headers: answer.headers });
};
"""
"""The tab has a connection of its own, which `breakOff()` breaks."""
BUSY = """(async () => {
  const { Streams } = await import("/assets/streams.js");
  const real = window.fetch, { port1, port2 } = new MessageChannel();
  const problem = JSON.stringify({ status: 503, detail: "problem of the server" });
  const events = [["stream", '{"stream": "s"}'], ["part", '"p1"'], ["problem", problem]];
  window.fetch = async () => new Response(events.map(([event, data]) => `event: ${event}\\ndata: ${data}\\n\\n`).join(""));
  new Streams().attach(port2);
  const told = new Promise((done) => {
    port1.addEventListener("message", ({ data }) => { if (data.event) done(data); });
  });
  port1.start();
  port1.postMessage({ do: "hello", base: "/v1" });
  port1.postMessage({ do: "follow", key: 1, path: "/v1/apps/x/logs", last: "" });
  const { event, data } = await told;
  port1.postMessage({ do: "leave", key: 1 });
  window.fetch = real;
  return [JSON.parse(data).detail, event];
})()"""
"""Message to a tab about a stream that the server cannot serve now."""
SHOWN = "[...document.querySelectorAll('.output pre > div:not([hidden])')].map((row) => row.innerText)"
TOO_WIDE = """document.documentElement.scrollWidth <= window.innerWidth ? [] : [...document.querySelectorAll('main *')]
    .filter((one) => one.getBoundingClientRect().right > window.innerWidth && !one.closest('.rows, .scrollbox, pre'))
    .map((one) => one.outerHTML.slice(0, 100))"""
LINES = "(text, before) => { const { parts, style } = ansi.readLine(text, before); return [parts, style]; }"


def spec(**more: Any) -> dict[str, Any]:
    return {
        "name": "writes", "command": [sys.executable, "-c", WRITES], "demand": {"cpu": "500m", "memory": "64MiB"},
        "n_min": 2, "n_max": 2, "env": {"ON": "yes"}, "labels": {"team": "a: b"}, **more,
    }  # fmt: skip


async def has(tab: Page, text: str) -> None:
    await holds(tab, f"{SHOWN}.join('\\n').includes({msgspec.json.encode(text).decode()})")


async def test_output_goes_on_through_restarts_and_lost_connections(tmp_path: Path, browser: Browser) -> None:
    async with dashboard(tmp_path) as (cluster, address), opened(browser, address, script=BREAKS) as tab:
        app = await cluster.client.submit(spec())
        await until(cluster.client, lambda now: now.apps[app.id].phase == "running", "it runs")
        await visit(tab, f"#/app/{app.id}?output=all")
        for text in ("generation 1 rank 0 \\u202eevil", "generation 1 rank 1", "100% of 1", "tick 0 5"):
            await has(tab, text)
        await tab.evaluate("window.breakOff()")
        await has(tab, "tick 0 15")
        lines: list[str] = await tab.evaluate(SHOWN)
        assert not [line for line in lines if "10%" in line.replace("100%", "")]
        assert await tab.locator(".output pre .ink-red").first.inner_text() == "red"
        # No line is lost or comes twice where the reading broke off.
        for rank in (0, 1):
            ticks = [int(found[1]) for line in lines if (found := re.search(rf"tick {rank} (\d+)", line))]
            assert ticks == list(range(len(ticks)))
        await tab.get_by_placeholder("Only lines with").fill("RED of")
        assert len(await tab.evaluate(SHOWN)) == 2
        await tab.get_by_placeholder("Only lines with").fill("")

        await steering.note(cluster.client, app.id, "now")
        before = await cluster.client.log.end()
        await steering.restart(cluster.client, app.id)
        await has(tab, "— generation 2 —")
        await has(tab, "generation 2 rank 1")
        await has(tab, "generation 1 rank 1")
        await tab.get_by_label("Generation").select_option("1")
        await holds(tab, f"!{SHOWN}.join().includes('generation 2')")
        await has(tab, "generation 1 rank 0")
        await visit(tab, f"#/app/{app.id}?output=1&at={before}")
        await has(tab, "generation 1 rank 1")
        assert not [line for line in await tab.evaluate(SHOWN) if "rank 0" in line or "generation 2" in line]

        # What it is: its command, its spec as it can be submitted again.
        await visit(tab, f"#/app/{app.id}")
        about = tab.locator("[aria-labelledby=about-title]")
        await about.get_by_text("Spec", exact=True).click()
        document = yaml.safe_load(await about.locator("pre").inner_text())
        assert {name: document[name] for name in spec()} == {**spec(), "demand": document["demand"]}
        await about.get_by_role("button", name="Run again").click()
        again = yaml.safe_load(await tab.get_by_label("Spec (YAML or JSON)").input_value())
        assert again["command"] == spec()["command"]
        # Its own name is taken while it lives.
        assert again["name"] == "writes-2"
        await tab.locator("dialog .preview", has_text="writes-2").wait_for()
        await tab.keyboard.press("Escape")

        await tab.get_by_label("A note").fill("the data were wrong")
        await tab.get_by_role("button", name="Note", exact=True).click()
        await tab.locator(".notes", has_text="the data were wrong").wait_for()
        await tab.locator(".story", has_text="noted: the data were wrong").wait_for()

        await tab.get_by_role("button", name="Outputs").click()
        link = tab.get_by_role("link", name="Download model.bin")
        file = await tab.request.get(address.rstrip("/") + "/" + str(await link.get_attribute("href")).lstrip("/"))
        assert await file.body() == bytes(600_000) + b"end"

        async with opened(
            browser, f"{address}#/app/{app.id}?output=all", strict=False, size=(390, 844), theme="dark"
        ) as other:
            await has(other, "generation 2 rank 0")
            assert await violations(other) == []
            assert await other.evaluate(TOO_WIDE) == []

        assert await tab.evaluate(BUSY) == ["problem of the server", "waits"]
        # The parser of terminal output, in its own words.
        await tab.evaluate("import('/assets/ansi.js').then((found) => { window.ansi = found; })")
        for text, wanted in {
            "a\u001b[1;38;5;196mb\u001b[0mc": [("a", ""), ("b", "ink-bright-red bold"), ("c", "")],
            " 10%|#  |\r 99%|###|\u001b[K": [(" 99%|###|", "")],
            "long\rx\u001b[K": [("x", "")],
            "ab\b\bc\u001b[2Cd\u001b]0;title\u0007\u001b[31": [("cb d", "")],
            "\u001b[7minverse": [("inverse", "inverse")],
        }.items():
            parts, _ = await tab.evaluate(f"(text) => ({LINES})(text)", text)
            assert [(one["text"], one["classes"]) for one in parts] == wanted
        # Of more lines than a reading repeats, those that are known are found by the last ones.
        taken = await tab.evaluate("""async () => {
            const { Unrepeated } = await import("/assets/output.js");
            const lines = (from, to) => Array.from({ length: to - from }, (_, at) => ({ slot: 0, text: `${from + at}` }));
            const all = (reader, list) => list.flatMap((one) => reader.take(one)).map((one) => Number(one.text));
            const reader = new Unrepeated(100), found = all(reader, lines(0, 300));
            for (const [from, to] of [[220, 320], [250, 350], [600, 720]]) {
                reader.restart();
                found.push(...all(reader, lines(from, to)));
            }
            return found;
        }""")
        assert taken == [*range(350), *range(600, 720)]
        _, style = await tab.evaluate(f"(text) => ({LINES})(text)", "\u001b[32mgreen")
        parts, _ = await tab.evaluate(f"([text, before]) => ({LINES})(text, before)", ["still", style])
        assert parts == [{"text": "still", "classes": "ink-green"}]


async def test_an_app_is_found_on_the_grid(tmp_path: Path, browser: Browser) -> None:
    """By the pointer on its name, and by an address; its color is that of the view."""
    records = busy_log(300, apps=9, nodes=5)
    lit = "document.querySelector('.gridcanvas').dataset.lit"
    async with opened(browser, await offline(records, tmp_path)) as tab:
        await tab.locator(".applink").first.hover()
        await holds(tab, f"{lit} !== ''")
        await tab.mouse.move(0, 0)
        await holds(tab, f"{lit} === ''")
        names = tab.locator(".lanenames a").first
        await names.hover()
        await holds(tab, f"{lit} !== ''")
        await visit(tab, "#/apps")
        link = tab.locator("main .applink").first
        app, swatch = await link.get_attribute("title"), await link.locator(".swatch").get_attribute("class")
        color = (await _view_of(records))[str(app)]
        assert swatch == f"swatch app{color % 9} pattern{color // 9}"
        await visit(tab, f"#/cluster?app={app}")
        await holds(tab, f"{lit} === '{app}'")
        await tab.get_by_role("button", name="Show all apps").click()
        await drawn(tab)
        await holds(tab, f"{lit} === ''")


async def _view_of(records: Any) -> dict[str, int]:
    from dorm.core.evolve import evolve
    from dorm.core.state import State

    state = State()
    for record in records:
        evolve(state, record)
    return {app.id: app.color for app in view(state).apps}
