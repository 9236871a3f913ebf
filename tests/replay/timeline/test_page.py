"""A timeline as a page, as people have it: in a real browser, with a real pointer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from events.kinds import AppSubmitted, ContainerExited, NodeDrainRequested, NodeJoined
from replay.timeline.fold import timeline
from replay.timeline.html import document, page
from replay.timeline.model import Timeline, TimelineError
from replay.timeline.words import decision_lines, decision_title
from tests.errors import raises
from tests.lab.machines.chromium import browser, chromium
from tests.lab.machines.engines import unavailable
from tests.replay.busy import busy_log
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from events.log.records import Record
    from tests.lab.machines.chromium import Page

EVIL = "</script><script>hacked=1</script><img src=x onerror=hacked=1><a href='javascript:hacked=1'>x</a>"


async def drawn(records: list[Record]) -> Timeline:
    return await timeline(log_of(records))


@contextlib.asynccontextmanager
async def opened(text: str, folder: Path) -> AsyncIterator[Page]:
    """The page in a browser, drawn.  It must have asked for nothing but itself, and have had nothing to complain about."""
    if chromium() is None:
        unavailable("there is no chromium")
    file = folder / "timeline.html"
    file.write_text(text, encoding="utf-8")
    async with browser(folder / "browser") as tab:
        await tab.open(file)
        await tab.wait_for("document.documentElement.dataset.ready")
        yield tab
        assert tab.errors == []
        assert {one for one in tab.requests if not one.startswith(("data:", "blob:"))} == {file.as_uri()}


async def hover(tab: Page, x: float, y: float) -> str:
    """What the page says beside the pointer, '' where it says nothing."""
    await tab.mouse("mouseMoved", x, y)
    said: str = await tab.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
    return said


async def place(tab: Page, things: str) -> list[float]:
    """The middle of something on the screen."""
    middle = "[box.x + box.width / 2, box.y + box.height / 2]"
    found: list[float] = await tab.run(
        f"(() => {{ const box = ({things}).getBoundingClientRect(); return {middle}; }})()"
    )
    return found


async def lane(tab: Page, axis: str, index: int, part: float = 0.5) -> list[float]:
    """In the lane of an app (`yaxis`) or a node (`yaxis2`), at a part of the time."""
    found: list[float] = await tab.run(
        f"""(() => {{
            const plot = document.getElementById('lanes');
            plot.scrollIntoView();
            scrollBy(0, -document.getElementById('top').offsetHeight);
            const box = plot.getBoundingClientRect(), layout = plot._fullLayout, axis = layout.{axis}, x = layout.xaxis;
            return [box.x + x._offset + x._length * {part}, box.y + axis._offset + axis.c2p(-{index} - 0.45)];
        }})()"""
    )
    return found


def decision_mark(index: int) -> str:
    return f"document.querySelector('#cluster .subplot.x4y4 .trace').querySelectorAll('.point')[{index}]"


def range_of(name: str) -> str:
    return f"document.getElementById('{name}')._fullLayout.xaxis.range.map(Date.parse)"


async def drawn_points(tab: Page) -> int:
    """How many points both drawings are made of now."""
    script = "['cluster', 'lanes'].flatMap(id => document.getElementById(id).data).reduce((n, t) => n + t.x.length, 0)"
    found: int = await tab.run(script)
    return found


@pytest.mark.slow
async def test_hovering_shows_decisions_apps_and_nodes(recorded: list[Record], tmp_path: Path) -> None:
    picture = await drawn(recorded)
    text = page(picture, "an incident")
    assert "<script src" not in text
    async with opened(text, tmp_path) as tab:
        assert await tab.run("document.title") == "an incident"
        legend = await tab.run("document.getElementById('legend').innerText")
        assert all(f"node {how}" in legend for how in ("draining", "lost", "left"))
        shown = await tab.run(
            "document.querySelectorAll('#cluster .subplot.x4y4 .trace')[0].querySelectorAll('.point').length"
        )
        assert 0 < shown <= len(picture.decisions)
        said = await hover(tab, *await place(tab, decision_mark(0)))
        first = picture.decisions[0]
        for line in (decision_title(first), *decision_lines(first, len(picture.decided))):
            assert line in said
        titles = [decision_title(one) for one in picture.decisions]
        last = await hover(tab, *await place(tab, decision_mark(shown - 1)))
        assert last.splitlines()[0] in titles[1:]
        assert "allocated" in await hover(tab, *await place(tab, "document.querySelector('#cluster .subplot.xy')"))
        name = next(iter(picture.apps.values())).name
        assert (await hover(tab, *await lane(tab, "yaxis", 0))).startswith(name)
        node = next(iter(picture.nodes))
        assert (await hover(tab, *await lane(tab, "yaxis2", 0))).splitlines()[0] == node
        labels = await tab.run("[...document.querySelectorAll('#lanes .ytick text')].map(one => one.textContent)")
        assert {label.rsplit(" ", 1)[0] for label in labels} == {one.name for one in picture.apps.values()}


@pytest.mark.slow
async def test_zoom_search_and_keeping_what_is_shown(tmp_path: Path) -> None:
    picture = await drawn(busy_log(1500, apps=8, nodes=4, tick_s=20))
    async with opened(page(picture, "busy"), tmp_path) as tab:
        whole = await tab.run(range_of("cluster"))
        await tab.run("window.before = document.getElementById('lanes')._fullLayout.xaxis.range[0]")
        x0, y = await lane(tab, "yaxis", 1, 0.25)
        x1, _ = await lane(tab, "yaxis", 1, 0.5)
        await tab.drag(x0, x1, y)
        await tab.wait_for("document.getElementById('cluster')._fullLayout.xaxis.range[0] !== before")
        await tab.wait_for("document.getElementById('lanes')._fullLayout.xaxis.range[0] !== before && !view.busy")
        zoomed = await tab.run(range_of("lanes"))
        assert zoomed == await tab.run(range_of("cluster"))
        assert (zoomed[1] - zoomed[0]) / (whole[1] - whole[0]) == pytest.approx(0.25, abs=0.02)
        assert (zoomed[0] - whole[0]) / (whole[1] - whole[0]) == pytest.approx(0.25, abs=0.02)
        await tab.run("document.getElementById('all').click()")
        await tab.wait_for("document.getElementById('lanes')._fullLayout.xaxis.range[0] === before && !view.busy")
        assert await tab.run(range_of("cluster")) == whole

        name = list(picture.apps.values())[3].name
        await tab.run(
            f"find_ = document.getElementById('find'), find_.value = '{name}', find_.dispatchEvent(new Event('input'))"
        )
        await tab.wait_for("view.shown.length === 1 && !view.busy")
        x, y = await lane(tab, "yaxis", 0)
        assert (await hover(tab, x, y)).startswith(name)
        await tab.mouse("mousePressed", x, y, button="left", clickCount=1)
        await tab.mouse("mouseReleased", x, y, button="left", clickCount=1)
        await tab.wait_for("document.getElementById('tip').className === 'kept'")
        assert (await hover(tab, *await lane(tab, "yaxis2", 0))).startswith(name)


@pytest.mark.soak
@pytest.mark.slow
async def test_a_hundred_thousand_events_stay_usable(tmp_path: Path) -> None:
    """Bounded is what the browser has to work on: the page's bytes, points that are drawn, elements."""
    picture = await drawn(busy_log(100_000, apps=40, nodes=12))
    text = page(picture, "busy")
    assert len(text.encode()) < 15_000_000
    async with opened(text, tmp_path) as tab:
        assert await drawn_points(tab) < 250_000
        assert await tab.run("document.querySelectorAll('*').length") < 6000
        said = await hover(tab, *await place(tab, decision_mark(40)))
        assert said.startswith("decision ")
        assert said.splitlines()[0] in [decision_title(one) for one in picture.decisions]
        assert await tab.run("document.getElementById('notes').innerText") == "\n".join(document(picture)["notes"])
        begin = picture.decisions[100].time // 1_000_000
        await tab.run(f"look({begin - 60_000}, {begin + 60_000})")
        assert await drawn_points(tab) < 60_000
        shown = [one for one in picture.decisions if abs(one.time / 1e6 - begin) < 60_000]
        assert decision_title(shown[0]) in await hover(tab, *await place(tab, decision_mark(0)))


@pytest.mark.slow
async def test_strangers_words_are_only_words(tmp_path: Path) -> None:
    story = Story()
    story.say(NodeJoined(node=EVIL, address="10.0.0.9", capacity={"cpu": 3000}, ports=(30_000, 30_100)), EVIL)
    story.say(
        AppSubmitted(spec={"name": "one", "command": ["work"], "demand": {"cpu": 1}, "n_min": 3, "n_max": 3}), EVIL
    )
    story.settle()
    app = next(iter(story.state.apps.values()))
    container = next(iter(app.generations[1].containers.values()))
    words: Any = {"exit_code": 1, "reason": "exit", "message": EVIL}
    story.say(
        ContainerExited(app=app.id, generation=1, slot=container.slot, node=container.node, **words), container.node
    )
    story.settle()
    story.say(NodeDrainRequested(node=EVIL, reason=EVIL), EVIL)
    picture = await drawn(story.records)
    assert EVIL in picture.nodes
    text = page(picture, EVIL)
    assert EVIL not in text
    async with opened(text, tmp_path) as tab:
        assert await tab.run("document.title") == EVIL
        index = list(picture.nodes).index(EVIL)
        assert (await hover(tab, *await lane(tab, "yaxis2", index))).startswith(EVIL)
        lane_of_app = await lane(tab, "yaxis", 0)
        assert EVIL in await hover(tab, *lane_of_app)
        marks = "document.querySelectorAll('#cluster .subplot.x4y4 .trace:last-of-type .point')[0]"
        assert EVIL in await hover(tab, *await place(tab, marks))
        assert await tab.run("typeof hacked") == "undefined"
        assert await tab.run("document.querySelectorAll('img, a[href^=java], #lanes a').length") == 0


@pytest.mark.slow
async def test_an_app_whose_name_is_long_and_a_time_in_which_nothing_changed(tmp_path: Path) -> None:
    story = Story(nodes=1)
    story.submit("a-name-that-is-much-too-long-for-a-lane", n_max=2)
    story.settle()
    async with opened(page(await drawn(story.records), "short"), tmp_path) as tab:
        labels = await tab.run("document.querySelector('#lanes .ytick text').textContent")
        assert labels.startswith("a-name-that-is-much-t…")
        assert "a-name-that-is-much-too-long" in await hover(tab, *await lane(tab, "yaxis", 0))


async def test_nothing_to_draw() -> None:
    with raises(TimelineError, "timeline.empty"):
        page(await drawn([]), "empty")


async def test_plotly_is_named_where_it_is_missing(recorded: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.timeline.model.find_spec", lambda name: None)
    picture = await drawn(recorded)
    with raises(TimelineError, "package.missing") as missing:
        page(picture, "none")
    assert "plotly" in str(missing.value)


def test_what_a_page_shows_does_not_depend_on_chance() -> None:
    records = busy_log(1500, apps=8, nodes=4, tick_s=20)
    assert document(asyncio.run(drawn(records))) == document(asyncio.run(drawn(list(records))))
