"""A recording as people get it: one file, opened without a network."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from PIL import Image

from dorm.api.page import Page, _version
from dorm.core.evolve import evolve
from dorm.core.query.views import sizes
from dorm.core.state import State
from dorm.web.offline import LinkError, link, page
from dorm.web.page_files import ASSETS, read
from events import kinds as k
from events.codec import decode
from events.kinds import AppProgressed, AppSubmitted, ContainerExited, NodeJoined
from replay.page.recording import record
from replay.page.view import view
from tests.core.records import Bench
from tests.replay.busy import busy_log
from tests.replay.made_log import Story, log_of
from tests.tries import tries
from tests.web import picture, vendored
from tests.web.browsing import drawn, holds, opened, rows, violations, visit

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import Browser

    from events.log.records import Record


pytestmark = pytest.mark.slow
EVIL = "</script><script>hacked=1</script><img src=x onerror=hacked=1><a href='javascript:hacked=1'>x</a>\u202e"


async def offline(records: list[Record], folder: Path, title: str = "a log") -> str:
    file = folder / "log.html"
    file.write_text(page(msgspec.json.encode(await record(log_of(records), title)), title))
    return file.absolute().as_uri()


def evil_story() -> Story:
    story = Story(2)
    story.say(
        NodeJoined(
            node="n9", address=EVIL, capacity={EVIL: 5, "cpu": 3000}, ports=(20_900, 20_999), labels={EVIL: EVIL}
        ),
        "n9",
    )
    story.say(AppSubmitted(spec={"name": EVIL, "command": ["x"], "demand": {"cpu": 1}}, by=EVIL), "mallory")
    story.submit("honest")
    story.decide()
    story.decide(allocate=True)
    story.decide()
    for app in list(story.state.live_apps()):
        for slot, container in (app.current.containers if app.current else {}).items():
            story.say(
                ContainerExited(app=app.id, generation=1, slot=slot, node=container.node, exit_code=1, message=EVIL),
                container.node,
            )
    story.decide()
    return story


async def test_any_moment_is_the_state_of_the_log_and_its_address_restores_it(tmp_path: Path, browser: Browser) -> None:
    records = busy_log(700, apps=9, nodes=5)
    address = await offline(records, tmp_path)
    chance = Random(3)
    async with opened(browser, f"{address}#/apps") as tab:
        for seq in [*(chance.randint(1, len(records)) for _ in range(tries(4, 60))), 1, len(records)]:
            state = State()
            for one in records[:seq]:
                evolve(state, one)
            await visit(tab, f"#/apps?at={seq}")
            await holds(tab, f"document.querySelector('.exact input').value === '{seq}'")
            shown = {row[0]: (row[2], row[3].split()[0]) for row in await rows(tab) if row[0]} if state.apps else {}
            assert {
                app.name: (app.phase, str(sum(sizes(app).values()))) for app in state.live_apps()
            }.items() <= shown.items()
        slider = tab.get_by_role("slider", name="Moment of the log")
        await slider.focus()
        for key in ("Home", "PageUp", "PageUp", "PageUp", "ArrowRight"):
            await slider.press(key)
        await holds(tab, "/at=\\d+/.test(location.hash)")
        await tab.wait_for_timeout(400)
        await drawn(tab)
        seen = await tab.inner_text("main")
        async with opened(browser, tab.url) as other:
            assert await other.inner_text("main") == seen


async def test_progress_at_a_moment_contains_earlier_reports_only(tmp_path: Path, browser: Browser) -> None:
    records = busy_log(700, apps=9, nodes=5)
    reports = [one for one in map(decode, records) if isinstance(one, AppProgressed)]
    app = reports[-1].app
    middle = next(record.seq for record in records[300:] if isinstance(decode(record), AppProgressed))
    steps = "[...document.querySelectorAll('canvas')].find((one) => /^Steps/.test(one.ariaLabel))?.ariaLabel ?? ''"
    async with opened(browser, await offline(records, tmp_path)) as tab:
        for upto in (len(records), middle):
            told = [
                one.step for one in map(decode, records[:upto]) if isinstance(one, AppProgressed) and one.app == app
            ]
            await visit(tab, f"#/app/{app}?at={upto}")
            await holds(tab, f"({steps}).endsWith('to {told[-1]:,}')")


async def test_a_pausing_app_shows_when_it_continues(tmp_path: Path, browser: Browser) -> None:
    records = busy_log(700, apps=9, nodes=5)
    state, paused = State(), 0
    for one in records:
        evolve(state, one)
        if not paused and any(app.phase == "retrying" for app in view(state).apps):
            paused = one.seq
    assert paused
    async with opened(browser, await offline(records, tmp_path)) as tab:
        await visit(tab, f"#/cluster?at={paused}")
        said = await tab.locator("[aria-labelledby=waiting-title]").inner_text()
        assert "again in " in said
        assert " -" not in said


async def test_hostile_names_are_text(tmp_path: Path, browser: Browser) -> None:
    story = evil_story()
    address = await offline(story.records, tmp_path, EVIL)
    async with opened(browser, address) as tab:
        app = next(app.id for app in story.state.apps.values())
        for place in ("", "#/apps", "#/nodes", "#/log", "#/node/n9", f"#/app/{app}", "#/compare?vs=3"):
            await visit(tab, place)
            assert await tab.evaluate("typeof hacked") == "undefined"
            assert await tab.locator("main img, main a[href^='javascript']").count() == 0
        await visit(tab, "#/node/n9")
        assert "onerror=hacked" in await tab.inner_text("main")
        assert "\u202e" not in await tab.inner_text("body")
        await tab.keyboard.press("/")
        await tab.keyboard.type("honest")
        await tab.keyboard.press("Enter")
        assert "#/app/honest" in tab.url


async def test_a_text_without_a_space_widens_no_page(tmp_path: Path, browser: Browser) -> None:
    long, bench = "x" * 400, Bench(n1=4, n2=4)
    bench.running("a" * 48, n_max=4, labels={"team": "y" * 50})
    bench.add(k.AppHoldRequested(app="a" * 48, reason=long))
    bench.submit("b" * 48, n_max=1, env={"PATH_OF_ALL": long})
    bench.settle()
    bench.submit("c" * 48, n_max=1)
    bench.settle()
    bench.add(k.AppCancelRequested(app="c" * 48, reason=long))
    bench.settle()
    apps = {app.name[0]: app.id for app in bench.state.apps.values()}
    async with opened(browser, await offline(bench.records, tmp_path)) as tab:
        for size in ({"width": 390, "height": 844}, {"width": 1400, "height": 900}):
            await tab.set_viewport_size(size)  # type: ignore[arg-type]
            for place in ("", "#/apps", "#/nodes", "#/log", *(f"#/app/{apps[name]}" for name in "abc")):
                await visit(tab, place)
                assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, place
                assert await tab.locator("h1").count() == 1, place


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
async def test_no_serious_problem_for_screen_readers(tmp_path: Path, theme: str, browser: Browser) -> None:
    records = busy_log(900, apps=9, nodes=5)
    address = await offline(records, tmp_path)
    state = State()
    for one in records:
        evolve(state, one)
    app = next(state.live_apps()).id
    scheme = "dark" if theme == "dark" else "light"
    async with opened(browser, address, theme=scheme, strict=False) as tab:  # type: ignore[arg-type]
        places = ["", f"#/app/{app}"]
        if scheme == "dark":
            places += ["#/log", "#/apps", "#/nodes", "#/node/gpu-01", "#/cluster?at=300", "#/compare?vs=300"]
        places += ["#/whatif"]
        for place in places:
            await visit(tab, place)
            await tab.wait_for_timeout(100)
            assert (place, await violations(tab)) == (place, [])


async def test_the_picture_of_the_documentation_can_be_taken_again(tmp_path: Path) -> None:
    await picture.take(tmp_path / "dashboard.png")
    with Image.open(tmp_path / "dashboard.png") as drawn, Image.open("docs/dashboard.png") as there:
        assert drawn.size == there.size == picture.SIZE
        assert len(drawn.convert("RGB").getcolors(1 << 24) or []) > 50


def test_the_page_is_small() -> None:
    """What a browser loads from a server, compressed."""
    from dorm.bench.page_bench import page_bytes

    assert page_bytes() <= 120_000


def test_vendored_files_are_unchanged() -> None:
    assert [wrong for package in vendored.PACKAGES for wrong in vendored.differences(package)] == []


def test_every_module_can_be_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    script = link("main.js")
    assert all(
        repr(name) in script for name in ASSETS if name.endswith(".js") and name not in ("sign-in.js", "worker.js")
    )
    monkeypatch.setattr("dorm.web.offline.read", lambda name: b'import x from "./y.js";\n')
    with pytest.raises(LinkError):
        link("main.js")


def test_another_version_of_the_page_has_another_worker() -> None:
    """Tabs that were opened before an upgrade keep theirs."""
    version = re.compile(rb'<meta name="dorm-version" content="(\w{16})">')
    (first,) = version.findall(Page.load()._files["index.html"].body)
    assert _version({"main.js": b"1"}) != _version({"main.js": b"2"}) != _version({"main.js": b"", "2": b""})
    assert version.findall(Page.load("an archive")._files["index.html"].body) == [first]


def test_no_file_of_the_page_leads_elsewhere() -> None:
    for name in ASSETS:
        text = read(name).decode()
        assert "innerHTML" not in text or name == "vendor/preact.js"
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "https://" not in text


def test_a_recording_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.page.recording.MOST_CHANGES", 100)
    monkeypatch.setattr("replay.page.recording.MOST_RECORDS", 150)
    monkeypatch.setattr("replay.page.recording.MOST_POINTS", 10)
    records = busy_log(3000, apps=6, nodes=4)
    found = asyncio.run(record(log_of(records), "x"))
    assert len(found.changes) <= 201
    assert sum(len(change.records) for change in found.changes) <= 150
    assert max(len(one.points) for one in found.progress.values()) <= 11
    assert len(found.notes) >= 2
    assert found.changes[-1].position == str(len(records))
