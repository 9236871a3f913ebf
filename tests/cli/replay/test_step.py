"""`dorm replay step` by its keys: what it shows, on a simulated screen and in a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest
from rich.text import Text
from textual.widgets import Input, Static

from dorm.cli.main import main
from dorm.cli.step_screen import Events, StepApp
from events.kinds import AppSubmitted, NodeLost
from replay.export.export import export
from replay.moments import parse
from replay.stepper import Search, Stepper
from tests.cli.terminals import PATIENCE_S, Terminal
from tests.replay.made_log import Story, log_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from textual.pilot import Pilot

    from events.log.records import Record


def incident() -> Story:
    """Two apps, one of which fails, and a node that is lost."""
    story = Story()
    story.submit("first", n_max=3)
    story.settle()
    story.submit("second", n_max=3)
    story.settle()
    story.exit("second", 3)
    story.settle()
    story.round([NodeLost(node="n1", last_heard=story.now)])
    return story


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return incident().records


class Driver:
    """The screen, and hands."""

    def __init__(self, app: StepApp, pilot: Pilot[None]) -> None:
        self.app, self._pilot = app, pilot

    async def press(self, *keys: str) -> str:
        """Until all that they asked for is done; the heading then."""
        for key in keys:
            await self._pilot.press(key)
            await self.settle()
        return self.shown("heading")

    async def settle(self) -> None:
        await asyncio.wait_for(self.app.idle.wait(), PATIENCE_S)
        await self._pilot.pause()

    async def write(self, key: str, text: str) -> str:
        await self._pilot.press(key)
        self.app.query_one("#ask", Input).value = text
        return await self.press("enter")

    def shown(self, name: str) -> str:
        content = self.app.query_one(f"#{name}", Static).content
        assert isinstance(content, str | Text)
        return content.plain if isinstance(content, Text) else content

    def title(self, name: str) -> str:
        return str(self.app.query_one(f"#{name}").border_title)

    @property
    def place(self) -> str:
        return str(self.app._stepper.place)

    @property
    def lines(self) -> list[str]:
        return self.shown("events").splitlines()


@contextlib.asynccontextmanager
async def screen(
    records: list[Record], at: str | None = None, *, size: tuple[int, int] = (120, 40), search: Search | None = None,
    follow: bool = False,
) -> AsyncIterator[Driver]:  # fmt: skip
    log = log_of(records)
    stepper = await Stepper.open(log)
    await stepper.go(None if at is None else parse(at))
    app = StepApp(log, stepper, "incident", search or Search(), follow=follow)
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot)
        await driver.settle()
        yield driver


async def test_stepping_forward_and_back(records: list[Record]) -> None:
    async with screen(records) as driver:
        end = driver.place
        assert f"{end} of {len(records)}" in driver.shown("heading")
        await driver.press("right")
        assert driver.shown("status") == " this is the log's end"
        await driver.press("home")
        assert driver.place == "1.0"
        await driver.press("left")
        assert (driver.place, driver.shown("status")) == ("1.0", " this is the log's start")
        await driver.press("right", "n", "down")
        assert driver.place == "4"
        await driver.press("p", "up", "left")
        assert driver.place == "1.0"
        await driver.press("pagedown")
        assert driver.lines[10].startswith("▶")
        ten = driver.place
        await driver.press("N", "P")
        await driver.press("end")
        assert driver.place == end
        await driver.press("home", "pagedown", "pagedown", "pageup")
        assert driver.place == ten


async def test_changes_by_an_event_are_highlighted(records: list[Record]) -> None:
    async with screen(records, "1") as driver:
        await driver.press("d")
        assert "Resized" in next(line for line in driver.lines if line.startswith("▶"))
        assert driver.title("changes") == f"changed by round {driver.place.split('.')[0]}"
        assert "~ first waiting -> starting" in driver.shown("changed")
        assert driver.title("state").startswith("after it: 1 app on 2 nodes")
        row = next(line for line in driver.shown("tables").splitlines() if "first" in line)
        assert row.split()[:4] == ["▌", "first", "starting", "3/3"]
        document = driver.shown("document").splitlines()
        assert document[0] == "kind: Resized"
        assert document[1].startswith("reasons:")
        assert any(line.startswith("round: {by: m1, epoch: 1") for line in document)
        content = driver.app.query_one("#tables", Static).content
        assert isinstance(content, Text)
        marked = [content.plain[span.start : span.end] for span in content.spans if "on yellow" in str(span.style)]
        assert marked == ["starting", "3/3", "1", "3", "3/3"]


async def test_keys_jump_to_decisions_and_failures_both_ways(records: list[Record]) -> None:
    async with screen(records, "1") as driver:
        found = []
        for _ in range(9):
            await driver.press("f")
            found.append(driver.place)
        last = next(line for line in driver.lines if line.startswith("▶"))
        assert "NodeLost" in last
        assert driver.shown("status") == " no later failure"
        assert len(set(found)) < len(found)
        await driver.press("F")
        assert driver.place == found[found.index(found[-1]) - 1]
        await driver.press("home", "d")
        first = driver.place
        await driver.press("d", "D")
        assert driver.place == first


async def test_a_filter(records: list[Record]) -> None:
    async with screen(records, "1") as driver:
        await driver.write("slash", "second")
        assert "'second' is neither" in driver.shown("status")
        assert "only" not in driver.shown("heading")
        await driver.write("slash", "app=second containerexited")
        assert "only kind=ContainerExited app=second" in driver.shown("heading")
        await driver.press("n")
        assert "ContainerExited" in next(line for line in driver.lines if line.startswith("▶"))
        await driver.press("end")
        place = driver.place
        await driver.press("p")
        assert driver.place != place
        wanted = {str(one) for one in driver.app._view.wanted or ()} if driver.app._view else set()
        assert driver.place in wanted
        assert len(wanted) < len(driver.lines)
        await driver.press("pageup", "pageup")
        assert driver.shown("status") == " no earlier event of kind=ContainerExited app=second"
        # A decision about it, though the filter is of another kind.
        await driver.press("D")
        assert "Resized" in next(line for line in driver.lines if line.startswith("▶"))
        await driver.write("slash", "")
        assert "only" not in driver.shown("heading")


async def test_the_go_key_takes_sequences_positions_and_times(records: list[Record]) -> None:
    async with screen(records) as driver:
        for text, place in (("7", "7.0"), ("5.0", "5.0"), ("-10m", "1.0"), ("2023-11-14T22:13:20.350", "4")):
            await driver.write("g", text)
            assert driver.place == place
            assert driver.shown("status").startswith(" ← → event")
        await driver.write("g", "yesterday")
        assert "'yesterday' is not" in driver.shown("status")
        await driver.write("g", "5000")
        assert "5000" in driver.shown("status")
        assert str(len(records)) in driver.shown("status")
        assert driver.place == "4"
        await driver.press("g", "n", "escape")
        assert driver.place == "4"
        assert not driver.app.query_one("#ask").display


async def test_a_click_goes_to_an_event(records: list[Record]) -> None:
    async with screen(records, "9") as driver:
        await driver._pilot.click(Events, offset=(5, 3))
        await driver.settle()
        assert driver.lines[2].startswith("▶")


async def test_panes_and_help(records: list[Record]) -> None:
    async with screen(records, "1", size=(80, 24)) as driver:
        await driver.press("d")
        place, focused = driver.place, []
        for _ in range(4):
            await driver.press("tab")
            focused.append(driver.app.focused.id if driver.app.focused else "")
        assert focused == ["changes", "state", "details", "events"]
        await driver.press("shift+tab", "down", "down")
        assert driver.place == place
        assert driver.app.query_one("#details").scroll_target_y > 0
        await driver.press("right", "left")
        assert driver.place == place
        await driver.press("question_mark")
        assert "next failure, the one before" in str(driver.app.screen.query_one("#help", Static).content)
        await driver.press("q")
        assert driver.app.screen.query("#events")
        assert driver.app.is_running


@pytest.mark.parametrize("size", [(160, 45), (20, 5)])
async def test_lines_fit(records: list[Record], size: tuple[int, int]) -> None:
    async with screen(records, "1", size=size) as driver:
        await driver.press("d", "right", "f")
        listed = driver.app.query_one(Events)
        assert max(map(len, driver.lines)) <= listed.content_size.width
        assert len(driver.lines) <= max(1, listed.content_size.height)
        await driver._pilot.resize_terminal(100, 30)
        async with asyncio.timeout(PATIENCE_S):
            while max(map(len, driver.lines)) != 50:
                await driver._pilot.pause()


async def test_the_view_follows_a_growing_log(records: list[Record]) -> None:
    log = log_of(records[:4])
    stepper = await Stepper.open(log)
    await stepper.go()
    app = StepApp(log, stepper, "incident", Search(), follow=True)
    async with app.run_test(size=(120, 40)) as pilot:
        driver = Driver(app, pilot)
        await driver.settle()
        assert "4 of 4…" in driver.shown("heading")
        for record in records[4:6]:
            await log.append(record.subject, record.body, msg_id=record.msg_id)
        async with asyncio.timeout(PATIENCE_S):
            while stepper.place.seq != 6:
                await pilot.pause()
        await driver.press("left", "left")
        place = driver.place
        for record in records[6:8]:
            await log.append(record.subject, record.body, msg_id=record.msg_id)
        async with asyncio.timeout(PATIENCE_S):
            while stepper.end != 8:
                await pilot.pause()
        await driver.settle()
        assert driver.place == place
        assert "of 8…" in driver.shown("heading")


async def test_a_search_is_stopped(records: list[Record]) -> None:
    log = log_of(records)
    stepper = await Stepper.open(log)
    await stepper.go(parse("1"))
    waiting, read = asyncio.Event(), log.read

    async def slow(**how: Any) -> Any:
        waiting.set()
        await asyncio.Event().wait()
        async for batch in read(**how):
            yield batch

    app = StepApp(log, stepper, "incident", Search())
    async with app.run_test() as pilot:
        driver = Driver(app, pilot)
        await driver.settle()
        stepper._pages._kept.clear()
        log.read = slow  # type: ignore[method-assign]
        await pilot.press("d")
        await asyncio.wait_for(waiting.wait(), PATIENCE_S)
        log.read = read  # type: ignore[method-assign]
        await driver.press("escape")
        assert (driver.place, driver.shown("status")) == ("1.0", " stopped")
        await driver.press("d")
        assert driver.place != "1.0"


async def test_strangers_words_move_no_cursor() -> None:
    story = Story()
    story.say(AppSubmitted(spec={"name": "[red]x\x1b[2J", "command": ["\x1b]0;owned\x07", "[/]"]}))
    async with screen(story.records) as driver:
        for name in ("events", "document", "changed"):
            assert all(sign.isprintable() or sign == "\n" for sign in driver.shown(name))
        assert "[red]x" in driver.shown("events")


async def test_ctrl_c_leaves_from_anywhere(records: list[Record]) -> None:
    async with screen(records) as driver:
        await driver._pilot.press("slash", "a", "ctrl+c")
        await driver._pilot.pause()
        assert not driver.app.is_running
        assert driver.app.return_code == 0


async def test_an_empty_log() -> None:
    async with screen([]) as driver:
        await driver.press("right", "left", "d", "F", "home", "end", "pagedown")
        assert "the log is empty" in driver.shown("heading")


# --- as a command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def log_file(records: list[Record], tmp_path: Path) -> Path:
    path = tmp_path / "incident.dorm"
    asyncio.run(export(log_of(records), path))
    return path


@pytest.mark.parametrize("way", ["q", "SIGTERM"])
def test_in_a_real_terminal(log_file: Path, records: list[Record], tmp_path: Path, way: str) -> None:
    words = [sys.executable, "-c", "from dorm.cli.main import main; main()", "replay", "step", "--file", str(log_file)]
    terminal = Terminal(*words, "--at", "4", home=tmp_path)
    try:
        terminal.until(f"4 of {len(records)}")
        if way == "SIGTERM":
            terminal.program.send_signal(signal.SIGTERM)
        else:
            terminal.press("\x1b[C")
            terminal.until("5.0 of")
            terminal.press("g")
            terminal.until("go to SEQ")
            terminal.press("12\r")
            terminal.until(f"12.0 of {len(records)}")
            terminal.press(way)
        code, said = terminal.ended()
        assert code == 0
        assert b"\x1b[?1049l" in said
        assert b"Traceback" not in said
        assert termios.tcgetattr(terminal.inside) == terminal.before
    finally:
        terminal.close()


@pytest.fixture
def dorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.setenv("DORM_HOME", str(tmp_path / "home"))

    def run(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dorm", "replay", "step", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), capsys.readouterr().err

    return run


def test_wrong_usage(dorm: Callable[..., Any], log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = dorm("--file", log_file)
    assert code == 2
    assert "[usage.no_terminal]" in said
    assert said.count("\n") == 1
    code, said = dorm("--file", log_file, "--follow")
    assert (code, "[usage.conflict]" in said) == (2, True)
    code, said = dorm("--file", log_file, "--at", "yesterday")
    assert (code, "[moment.malformed]" in said) == (2, True)
    monkeypatch.setattr("dorm.cli.replay._in_terminal", lambda: True)
    code, said = dorm("--file", log_file, "--at", "5000")
    assert (code, "[moment.after_end]" in said) == (1, True)
    monkeypatch.setattr("dorm.cli.replay.find_spec", lambda name: None)
    code, said = dorm("--file", log_file)
    assert (code, "[package.missing]" in said) == (1, True)
