"""`dorm top`: its picture, its keys, and both in a real terminal."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest
from rich.cells import cell_len

from dorm.cli.top import ORDERS, Look, Recent, keys_in, picture, press, rows_of
from events import kinds as k
from events.positions import logged
from events.quantities import SECOND
from tests.cli.terminals import Terminal
from tests.e2e import commands
from tests.e2e.local_up import leaving_nothing, talker, up, write_spec
from tests.replay.made_log import Story, two_apps

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.core.state import State


@pytest.fixture(scope="module")
def story() -> Any:
    return two_apps()


def recent_of(story: Any) -> Recent:
    recent = Recent()
    for record in story.records:
        recent.add(record.time, [one.event for one in logged(record)])
    return recent


def drawn(story: Any, look: Look, width: int = 120, height: int = 40) -> list[str]:
    lines = picture(story.state, recent_of(story), look, cluster="lab", now=story.now, width=width, height=height)
    return [line.plain for line in lines]


def test_the_picture_has_nodes_apps_and_events(story: Any) -> None:
    lines = drawn(story, Look())
    assert "lab" in lines[0]
    assert f"record {story.state.seq}" in lines[0]
    for heading in ("NODE", "APP", "EVENTS"):
        assert any(heading in line.split() for line in lines), heading
    for name in (*story.state.nodes, *(app.name for app in story.state.apps.values())):
        assert any(name in line for line in lines), name
    assert any("NodeLost" in line for line in lines)
    assert not any("AppProgressed" in line for line in lines)


def test_single_items_are_named_in_the_singular() -> None:
    story = Story(nodes=1)
    story.submit("only")
    story.settle()
    heading = drawn(story, Look())[0]
    for part in ("1 of 1 node ", "1 app ", "1 decision "):
        assert part in heading


@pytest.mark.parametrize("page", ["cluster", "app", "help"])
@pytest.mark.parametrize("size", [(200, 60), (80, 24), (40, 10), (20, 5), (3, 1)])
def test_it_fits_any_terminal(story: Any, page: Any, size: tuple[int, int]) -> None:
    width, height = size
    lines = drawn(story, Look(page=page, chosen=next(iter(story.state.apps))), width, height)
    assert 0 < len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)


def test_an_empty_cluster_has_a_picture() -> None:
    from dorm.core.state import State

    lines = picture(State(), Recent(), Look(), cluster="c", now=0, width=80, height=24)
    assert any("none" in line.plain for line in lines)


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_shows_every_app_and_reverses(story: Any, order: str) -> None:
    there = rows_of(story.state, Look(order=order), story.now)
    back = rows_of(story.state, Look(order=order, reverse=True), story.now)
    assert {row.id for row in there} == {row.id for row in back} == set(story.state.apps)
    live = [row.id for row in there if not story.state.apps[row.id].ended]
    assert [row.id for row in there][: len(live)] == live, "apps that have ended come last"


def test_words_choose_apps_and_events(story: Any) -> None:
    lines = drawn(story, Look(search="three"))
    apps = [line for line in lines if line.startswith(("  ", "> ")) and "three" in line]
    assert apps
    assert not any(line.split()[:1] == ["one"] for line in lines)
    events = lines[[line.strip() for line in lines].index("EVENTS") + 1 :]
    assert events
    assert all("three" in line.lower() for line in events)


def state_of(story: Any) -> State:
    state: State = story.state
    return state


def pressed(story: Any, look: Look, typed: str) -> bool:
    goes_on = True
    for key in keys_in(typed.encode()):
        goes_on = press(look, key, state_of(story), story.now) and goes_on
    return goes_on


def test_keys(story: Any) -> None:
    look = Look()
    names = [row.id for row in rows_of(story.state, look, story.now)]
    assert pressed(story, look, "\x1b[B")
    assert look.chosen == names[0]
    assert pressed(story, look, "j\r")
    assert (look.chosen, look.page) == (names[1], "app")
    assert pressed(story, look, "\x1b")
    assert look.page == "cluster"
    assert pressed(story, look, "s")
    assert look.order == list(ORDERS)[1]
    assert pressed(story, look, "SSr")
    assert (look.order, look.reverse) == (list(ORDERS)[-1], True)
    assert pressed(story, look, "/qq\x7f w\r")
    assert (look.search, look.typing) == ("q w", False)
    assert pressed(story, look, "\x1b")
    assert look.search == ""
    assert pressed(story, look, "en?")
    assert (look.ended, look.nodes, look.page) == (False, False, "help")
    assert pressed(story, look, "?")
    assert not pressed(story, look, "q")


def test_keys_that_mean_nothing_change_nothing(story: Any) -> None:
    look = Look()
    assert keys_in(b"\x1b[99~\x1b[1;5Z\xff") == []
    assert pressed(story, look, "xyz\x01\x1b[99~\t")
    assert look == Look()
    assert pressed(story, look, "\r"), "no app is chosen"
    assert look.page == "cluster"


def test_names_from_others_are_only_text() -> None:
    recent = Recent()
    recent.add(SECOND, [k.NodeLost(node="\x1b[31mred\n", last_heard=0)])
    story = two_apps()
    story.submit("evil", user="\x1b]0;title\x07")
    story.settle()
    lines = picture(story.state, recent, Look(), cluster="\x1b[2J", now=story.now, width=200, height=50)
    assert all(line.plain.isprintable() for line in lines)


@pytest.mark.nats
@pytest.mark.slow
async def test_in_a_real_terminal(tmp_path: Path) -> None:
    import asyncio

    async with leaving_nothing(tmp_path) as folder, up(folder) as cluster:
        home = cluster.home
        await commands.done(home, "submit", write_spec(folder, talker("chatty", n_max=2)))
        once = await commands.done(home, "top")
        assert "chatty" in once
        assert "\x1b" not in once, "colors are for terminals"
        assert "chatty" in await commands.done(home, "top", "--once")
        await asyncio.to_thread(_watch, home)


def _watch(home: Path) -> None:
    words = [sys.executable, "-c", "from dorm.cli.main import main; main()", "top"]
    terminal = Terminal(*words, home=home, columns="")
    try:
        terminal.until("chatty")
        terminal.press("j\r")
        terminal.until("Esc goes back")
        terminal.press("\x1b")
        terminal.until("sorted by age")
        fcntl.ioctl(terminal.inside, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 30, 0, 0))
        os.kill(terminal.program.pid, signal.SIGWINCH)
        terminal.until("…")
        terminal.press("/nothing")
        terminal.until("none with")
        terminal.press("\x1bq")
        code, said = terminal.ended()
        assert code == 0
        assert b"\x1b[?1049l" in said
        assert b"Traceback" not in said
        assert termios.tcgetattr(terminal.inside) == terminal.before
    finally:
        terminal.close()
