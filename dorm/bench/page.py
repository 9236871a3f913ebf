"""How fast the dashboard is on a large cluster: in Debian's Chromium, driven by Playwright, on a recording without a server.

    found = await measure(folder)

The cluster is made up: 2,000 apps on 10,000 nodes in 100 racks, every node used, and changes of some apps that follow each
other.  The page draws it while a pointer zooms and moves it, and while the moment changes.  Frame times are those of the
page's own drawing, per canvas; the compositor of a headless browser without a GPU is not measured.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import time
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.bench import BenchError
from dorm.web.files import ASSETS, read
from dorm.web.offline import page
from events.cloudevents import rfc3339
from events.quantities import SECOND
from replay.page.changes import Change
from replay.page.recording import Recording
from replay.page.stories import Stories
from replay.page.timeline import AppSpans, DecisionMark, Span, TimelineView
from replay.page.view import AppView, ClusterView, Held, NodeView, View

if TYPE_CHECKING:
    from pathlib import Path

START = 1_763_712_000 * SECOND
PER_NODE = 8
"""Containers that fit on a node."""
_DEMAND = {"cpu": 4000, "gpu": 1, "memory": 16 << 30}
_CAPACITY = {kind: amount * PER_NODE for kind, amount in _DEMAND.items()}


class PageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    apps: int
    nodes: int
    page_frame_p95_ms: float
    """Time of one drawing of the grid or the lanes."""
    page_frame_max_ms: float
    frames: int
    page_load_s: float
    """Time from the address to the first drawing, with the data of the whole cluster."""
    page_bytes: int
    """All files of the page, each in gzip."""


def large_cluster(apps: int, nodes: int, changes: int = 20) -> Recording:
    """Return a recording of a cluster that is full."""
    racks = max(1, nodes // 100)
    total = nodes * PER_NODE
    share = max(1, total // max(apps, 1))
    held: list[list[Held]] = [[] for _ in range(nodes)]
    for slot in range(min(total, share * apps)):
        node, app = slot // PER_NODE, slot // share
        last = held[node][-1] if held[node] else None
        if last is not None and last.app == app:
            held[node][-1] = Held(app, last.count + 1)
        else:
            held[node].append(Held(app, 1))
    at = rfc3339(START)
    view = View(
        position="1",
        at=at,
        cluster=ClusterView(
            kinds=sorted(_CAPACITY), capacity={kind: amount * nodes for kind, amount in sorted(_CAPACITY.items())},
            used={kind: amount * min(total, share * apps) for kind, amount in sorted(_DEMAND.items())},
            utilization=2.9, utilization_max=3, fairness_loss=0.1, fairness_budget=0.6, overhead=12, overhead_budget=200,
            policy="dorm", leader="bench", epoch=1, nodes=nodes, apps=apps, waiting=0, decisions=1,
        ),
        nodes=[
            NodeView(
                id=f"node-{number:05}", labels={"rack": f"r{number * racks // nodes:03}"}, capacity=_CAPACITY,
                used={kind: amount * sum(owner.count for owner in held[number]) for kind, amount in _DEMAND.items()},
                state="up", containers=held[number],
            )
            for number in range(nodes)
        ],
        apps=[_app(number, share, apps) for number in range(apps)],
        decision=None,
    )  # fmt: skip
    return Recording(
        title="bench",
        first=view,
        changes=[_change(step, apps, share) for step in range(1, changes + 1)],
        timeline=_lanes(apps, share, changes),
        progress={},
        stories=Stories({}, {}, {}, []),
        notes=[],
    )


def _app(number: int, share: int, apps: int, containers: int | None = None) -> AppView:
    count = share if containers is None else containers
    return AppView(
        id=f"app-{number:04}-aaaaaa", name=f"app-{number:04}", user=f"user-{number % 40}", phase="running", containers=count,
        running=count, n_min=1, n_max=share * 2, weight=1.0, share=1 / apps, fair_share=1 / apps, dominant="gpu",
        demand=_DEMAND, engine="torchrun", generation=1, since=rfc3339(START), submitted_at=rfc3339(START), reason=None,
        live=False, adjustments=0, failures=0,
    )  # fmt: skip


def _change(step: int, apps: int, share: int) -> Change:
    changed = [_app((step * 97 + place) % apps, share, apps, share - 1) for place in range(min(12, apps))]
    return Change(position=str(step + 1), at=rfc3339(START + step * 60 * SECOND), apps=changed)


def _lanes(apps: int, share: int, changes: int) -> TimelineView:
    length = changes * 60_000.0
    spans = [Span(place * length / 40, (place + 1) * length / 40, share - place % 3, "running") for place in range(40)]
    return TimelineView(
        begin=rfc3339(START),
        to=rfc3339(START + changes * 60 * SECOND),
        start=rfc3339(START),
        end=rfc3339(START + changes * 60 * SECOND),
        decisions=[DecisionMark(str(step + 1), step * 60_000.0, 12) for step in range(1, changes)],
        failures=[],
        marks=[],
        apps=[
            AppSpans(f"app-{n:04}-aaaaaa", f"app-{n:04}", f"user-{n % 40}", n + 1, 1, share * 2, share, "", spans)
            for n in range(apps)
        ],
        all_apps=apps,
        next=None,
        figures={"decided.gpu": [(0.0, 0.97)]},
    )


def page_bytes() -> int:
    """Return the size of the page's files, each in gzip, as a server sends them."""
    return sum(len(gzip.compress(read(name), 6, mtime=0)) for name in ASSETS)


async def measure(folder: Path, apps: int = 2000, nodes: int = 10_000, frames: int = 60) -> PageFigures:
    """Draw a large cluster in a browser, with files in `folder`.  Raises BenchError."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise BenchError("this bench needs a browser: apt install chromium", code="package.missing")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        raise BenchError("this bench needs Playwright: pip install playwright", code="package.missing") from None
    file = folder / "large.html"
    recording = await asyncio.to_thread(lambda: page(msgspec.json.encode(large_cluster(apps, nodes)), "bench"))
    await asyncio.to_thread(file.write_text, recording)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            tab = await browser.new_page(viewport={"width": 1600, "height": 1000})
            begun = time.perf_counter()
            await tab.goto(file.absolute().as_uri())
            await tab.wait_for_selector(".gridcanvas")
            while not await tab.evaluate("(window.__frames ?? []).length > 2"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            load_s = time.perf_counter() - begun
            times = await _frames(tab, frames)
        finally:
            await browser.close()
    times.sort()
    return PageFigures(
        apps=apps,
        nodes=nodes,
        page_frame_p95_ms=round(times[int(len(times) * 0.95)], 2),
        page_frame_max_ms=round(times[-1], 2),
        frames=len(times),
        page_load_s=round(load_s, 3),
        page_bytes=page_bytes(),
    )


async def _frames(tab: Any, count: int) -> list[float]:
    """Zoom and move the grid with the pointer, and return how long each drawing took (ms)."""
    await tab.evaluate("window.__frames = []")
    box = await tab.locator(".gridcanvas").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    await tab.locator(".gridcanvas").first.focus()
    for step in range(count):
        if step % 4 == 3:
            await tab.mouse.move(x + step % 7 * 9, y + step % 5 * 9)
        else:
            await tab.keyboard.press("+" if step % 8 < 4 else "-")
        await tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    for step in range(1, 8):
        await tab.evaluate(f"location.hash = '#/cluster?at={step * 2}'")
        await tab.wait_for_timeout(150)
    frames: list[float] = await tab.evaluate("window.__frames")
    return frames
