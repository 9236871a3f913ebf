"""`dorm top`: nodes, partitions and recent events of a cluster as they change, or the containers of one app rank by rank.

The picture is a pure function of the state, recent events and where the user is (`Look`), so it is the same in a pipe and in
any terminal; the effect of a key on a look is pure as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import termios
import time
import tty
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app
from dorm.cli.events import in_words, style_of
from dorm.cli.output import ago, cell, console, counted
from dorm.cli.signals import first_of, stops
from dorm.cli.terminal import one_line
from dorm.core.progress import Newest
from dorm.core.query.views import adjustment, app_row, node_rows, sizes, summary
from events import kinds as k
from events.instants import shown
from events.log.records import LogError
from events.positions import Position
from events.quantities import CPU, MEMORY, SECOND, humanize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from dorm.api.reports import Report, Reports, Used
    from dorm.client.client import Client
    from dorm.core.query.views import AppRow, NodeRow
    from dorm.core.state import App, State
    from events.kinds import Event

    Keys = Callable[[Callable[[str], None]], AbstractContextManager[None]]
    from collections.abc import Callable, Iterator


# --- keys -------------------------------------------------------------------------------------------------------------

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\x08": "backspace",
}  # fmt: skip
_PAGE = 10
_LONGEST = 100


def keys_in(typed: bytes) -> list[str]:
    """Return the keys in a terminal's input: names of special ones, else the character; unknown ones are left out."""
    keys = []
    for match in _SEQUENCE.finditer(typed.decode("utf-8", "ignore")):
        key = _NAMES.get(match[0], match[0])
        if len(match[0]) == 1 or match[0] in _NAMES:
            keys.append(key)
    return keys


def press(look: Look, key: str, state: State, now: int) -> bool:
    """Change the look.  Return False if the key ends the program."""
    if look.typing:
        _type(look, key)
        return True
    if key == "q":
        return False
    if key == "escape":
        if look.page == "cluster":
            look.search = ""
        look.page = "cluster"
    elif key == "?":
        look.page = "cluster" if look.page == "help" else "help"
    elif look.page == "cluster":
        _press_in_cluster(look, key, state, now)
    return True


def _type(look: Look, key: str) -> None:
    if key == "enter":
        look.typing = False
    elif key == "escape":
        look.typing, look.search = False, ""
    elif key == "backspace":
        look.search = look.search[:-1]
    elif len(key) == 1 and key.isprintable() and len(look.search) < _LONGEST:
        look.search += key


def _press_in_cluster(look: Look, key: str, state: State, now: int) -> None:
    moves = {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "page up": -_PAGE,
        "page down": _PAGE,
        "home": -(10**9),
        "end": 10**9,
    }
    orders = list(ORDERS)
    match key:
        case "s" | "S":
            step = 1 if key == "s" else -1
            look.order = orders[(orders.index(look.order) + step) % len(orders)]
        case "r":
            look.reverse = not look.reverse
        case "/":
            look.typing = True
        case "e":
            look.ended = not look.ended
        case "n":
            look.nodes = not look.nodes
        case "enter":
            if look.chosen in state.apps:
                look.page = "app"
        case _ if key in moves:
            _move(look, moves[key], state, now)
        case _:
            pass


def _move(look: Look, by: int, state: State, now: int) -> None:
    rows = rows_of(state, look, now)
    if not rows:
        return
    at = next((place for place, row in enumerate(rows) if row.id == look.chosen), None)
    if at is None:
        look.chosen = rows[0 if by > 0 else -1].id
    else:
        look.chosen = rows[max(0, min(len(rows) - 1, at + by))].id


# --- the picture ------------------------------------------------------------------------------------------------------

NOISE = frozenset(kind.__name__ for kind in k.EVENTS if "noise" in kind.KIND.lists)
"""Kinds that would push everything else off the screen."""
MOST_EVENTS = 500
_LEAST = 40
_HELP = (
    "q           quit",
    "up, down    choose an app (j, k; PgUp, PgDn; Home, End)",
    "Enter       open it; Esc goes back",
    "s, S        sort by the next, previous column",
    "r           reverse the order",
    "/           show only apps, nodes and events with these words; Esc shows all again",
    "e           show or hide apps that have ended",
    "n           show or hide nodes",
    "?           this help",
)
ORDERS: dict[str, Callable[[AppRow], Any]] = {
    "age": lambda row: -row.age_s,
    "name": lambda row: row.name,
    "user": lambda row: (row.user, row.name),
    "phase": lambda row: (row.phase, row.name),
    "size": lambda row: -row.containers,
    "missing": lambda row: row.containers - row.n_max,
    "step": lambda row: -row.step,
    "resized": lambda row: -row.adjustments,
    "failures": lambda row: -row.failures,
}
"""Keys by which apps are sorted."""


class Happened(NamedTuple):
    """One event, with its log time (UTC ns)."""

    time: int
    event: Event


class Recent:
    """The latest events, without the noise."""

    def __init__(self) -> None:
        self._events: deque[Happened] = deque(maxlen=MOST_EVENTS)

    def add(self, time: int, events: Iterable[Event]) -> None:
        for event in events:
            for fact in getattr(event, "events", None) or [event]:
                if type(fact).__name__ not in NOISE:
                    self._events.append(Happened(time, fact))

    def last(self, count: int, search: str = "", app: str = "") -> list[Happened]:
        """Return the latest that match, oldest first."""
        matches: list[Happened] = []
        for event in reversed(self._events):
            if len(matches) >= count:
                break
            text = f"{type(event.event).__name__} {in_words(event.event)}".lower()
            if all(word in text for word in search.lower().split()) and (not app or app in text):
                matches.append(event)
        return matches[::-1]


class Look(msgspec.Struct):
    """Where the user is."""

    page: Literal["cluster", "app", "help"] = "cluster"
    order: str = "age"
    reverse: bool = False
    search: str = ""
    typing: bool = False
    """Whether keys go into `search`."""
    ended: bool = True
    nodes: bool = True
    chosen: str = ""
    """Id of the chosen app."""
    lost: bool = False
    """Whether the log cannot be reached now."""
    newest: Newest = {}
    """The apps' reports next to the log."""


def picture(state: State, recent: Recent, look: Look, *, cluster: str, now: int, width: int, height: int) -> list[Text]:
    """Return at most `height` lines, none wider than `width`.  `now` is UTC ns."""
    lines = [_heading(state, look, cluster)]
    if look.page == "help":
        lines += [Text(), *(Text(f"  {line}") for line in _HELP)]
    elif look.page == "app" and look.chosen in state.apps:
        lines += _app(state, recent, look, now, height - 1)
    else:
        lines += _cluster(state, recent, look, now, width, height - 1)
    return [_fitting(line, width) for line in lines[:height]]


def rows_of(state: State, look: Look, now: int) -> list[AppRow]:
    """Return the apps that are shown, in their order."""
    apps = (app for app in state.apps.values() if look.ended or not app.ended)
    rows = sorted((app_row(app, now, look.newest) for app in apps), key=lambda row: (row.name, row.id))
    rows.sort(key=ORDERS[look.order], reverse=look.reverse)
    rows.sort(key=lambda row: row.phase in ("completed", "failed", "cancelled"))
    searched = look.search.lower().split()
    return [row for row in rows if _matches(searched, row.name, row.id, row.user, row.phase, row.note)]


def _matches(searched: Sequence[str], *texts: str) -> bool:
    text = " ".join(texts).lower()
    return all(word in text for word in searched)


def _heading(state: State, look: Look, cluster: str) -> Text:
    total = summary(state)
    waiting = sum(1 for name in state.names.values() if state.apps[name].current is None)
    line = Text("dorm top", style="bold").append(f"  {one_line(cluster)}", style="not bold")
    parts = [
        f"{total.nodes} of {counted(len(state.nodes), 'node')}",
        counted(total.apps, "app") + (f", {waiting} waiting" if waiting else ""),
        f"utilization {total.utilization:.2f} of {total.utilization_max}",
        f"fairness loss {total.fairness_loss:.2f}",
        counted(total.decisions, "decision"),
        f"record {total.seq}",
    ]
    line.append("  " + "  ".join(parts), style="not bold")
    if state.paused is not None:
        line.append("  scheduling is paused", style="bold yellow")
    if look.lost:
        line.append("  the log does not answer", style="bold red")
    return line


# --- the cluster --------------------------------------------------------------------------------------------------------


def _cluster(state: State, recent: Recent, look: Look, now: int, width: int, height: int) -> list[Text]:
    """Nodes get at most a third of the lines, events the lines that apps leave, and at least a few."""
    lines = [_state_of(look)]
    nodes = _nodes(state, look, max(3, height // 3)) if look.nodes else []
    rows = rows_of(state, look, now)
    room = height - len(lines) - len(nodes)
    events = min(8, max(0, room // 3))
    lines += nodes
    lines += _apps(state, rows, look, width, max(2, room - events - 1))
    left = height - len(lines) - 1
    if left > 0:
        lines += [Text("EVENTS", style="bold"), *(_event(event) for event in recent.last(left, look.search))]
    return lines


def _state_of(look: Look) -> Text:
    line = Text("? keys   ", style="dim")
    line.append(f"sorted by {look.order}{', reversed' if look.reverse else ''}")
    if look.typing or look.search:
        line.append(f"   / {one_line(look.search)}{'_' if look.typing else ''}", style="not dim bold")
    return line


def _nodes(state: State, look: Look, most: int) -> list[Text]:
    searched = look.search.lower().split()
    rows = [row for row in node_rows(state) if _matches(searched, row.name, row.condition, *row.labels.values())]
    if not rows:
        rows = node_rows(state)
    kinds = sorted({kind for row in rows for kind in row.capacity})[:4]
    columns = [("NODE", "name"), ("CONDITION", "condition"), ("CONTAINERS", "containers")]
    columns += [(kind.upper(), kind) for kind in kinds]
    shown = [_node(row, kinds) for row in rows[: most - 1]]
    drawn = _table(shown, columns)
    if len(rows) > len(shown):
        drawn[-1] = Text(f"… {len(rows) - len(shown) + 1} more nodes", style="dim")
    return drawn


def _node(row: NodeRow, kinds: Sequence[str]) -> dict[str, Any]:
    return {
        "name": row.name,
        "condition": row.condition,
        "containers": row.containers,
        **{kind: _bar(row.used.get(kind, 0), row.capacity.get(kind, 0)) for kind in kinds},
    }


def _bar(used: int, have: int) -> str:
    if not have:
        return "-"
    part = min(1.0, used / have)
    full = round(8 * part)
    return f"{'█' * full}{'·' * (8 - full)} {100 * part:3.0f}%"


def _apps(state: State, rows: Sequence[AppRow], look: Look, width: int, most: int) -> list[Text]:
    columns = [
        ("", "mark"), ("APP", "name"), ("USER", "user"), ("PHASE", "phase"), ("SIZE", "size"), ("PARTITION", "partition"),
        ("STEP", "step"), ("RESIZED", "adjustments"), ("AGE", "age"), ("NOTE", "note"),
    ]  # fmt: skip
    if not rows:
        return [Text("APPS", style="bold"), Text("none" if not look.search else "none with these words", style="dim")]
    at = next((place for place, row in enumerate(rows) if row.id == look.chosen), 0)
    room = max(1, most - 2 if len(rows) > most - 1 else most - 1)
    first = max(0, min(at - room // 2, len(rows) - room))
    shown = [_app_line(state, row, look) for row in rows[first : first + room]]
    drawn = _table(shown, columns if width >= 2 * _LEAST else [column for column in columns if column[1] != "user"])
    if len(rows) > room:
        drawn.append(Text(f"{first + 1} to {first + len(shown)} of {len(rows)} apps", style="dim"))
    return drawn


def _app_line(state: State, row: AppRow, look: Look) -> dict[str, Any]:
    return {
        "mark": ">" if row.id == look.chosen else " ",
        "name": row.name,
        "user": row.user,
        "phase": row.phase,
        "size": f"{row.containers}/{row.n_max}",
        "partition": _partition(state.apps[row.id]),
        "step": row.step or None,
        "adjustments": row.adjustments,
        "age": ago(row.age_s),
        "note": row.note,
    }


def _partition(app: App) -> str:
    by_node = sizes(app)
    if len(by_node) > 3:
        return f"{sum(by_node.values())} on {len(by_node)} nodes"
    return " ".join(f"{node}×{count}" for node, count in by_node.items()) or "-"


def _event(event: Happened) -> Text:
    line = Text(f"{shown(event.time)}  ", style="dim").append(
        f"{type(event.event).__name__:<21}", style=style_of(event.event)
    )
    return line.append(in_words(event.event), style="none")


# --- one app ------------------------------------------------------------------------------------------------------------


def _app(state: State, recent: Recent, look: Look, now: int, height: int) -> list[Text]:
    app = state.apps[look.chosen]
    row = app_row(app, now, look.newest)
    lines = [
        Text("Esc goes back", style="dim"),
        Text(one_line(app.name), style="bold").append(f"  {app.id} of {one_line(app.user)}  ", style="not bold").append(cell(row.phase)),
        Text(f"containers {row.containers} (n_min {app.n_min}, n_max {app.n_max})   weight {app.weight:g}   generation {app.generation}"),
        Text(f"step {row.step}   checkpoint {app.checkpoint if app.checkpoint is not None else 'none'}   lost steps {app.lost_steps}   failures {app.failures}"),
    ]  # fmt: skip
    if row.note:
        lines.append(Text(one_line(row.note), style="yellow"))
    generation = app.generations.get(app.generation)
    containers = (
        [msgspec.to_builtins(container) for container in generation.all_containers()] if generation is not None else []
    )
    if containers:
        columns = [("SLOT", "slot"), ("NODE", "node"), ("STATE", "state"), ("EXIT", "exit_code"), ("REASON", "reason")]
        lines += [Text(), *_table(containers[: max(2, height // 3)], columns)]
    if app.history:
        done = [adjustment(app, index) for index in range(len(app.history))][-5:]
        columns = [("FROM", "from_generation"), ("TO", "to_generation"), ("SIZE", "containers"), ("STOP s", "stop_s"),
                   ("WAIT s", "wait_s"), ("START s", "start_s"), ("LOST", "lost_steps")]  # fmt: skip
        lines += [Text(), *_table(done, columns)]
    left = height - len(lines) - 2
    if left > 0:
        lines += [
            Text(),
            Text("EVENTS", style="bold"),
            *(_event(event) for event in recent.last(left, app=app.id.lower())),
        ]
    return lines


# --- lines --------------------------------------------------------------------------------------------------------------


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[tuple[str, str]]) -> list[Text]:
    """Return a heading and the rows; each column as wide as its widest cell."""
    cells = [[cell(row.get(key)) for _, key in columns] for row in rows]
    widths = [
        max([cell_len(heading), *(cell_len(row[place].plain) for row in cells)])
        for place, (heading, _) in enumerate(columns)
    ]
    head = Text(
        "  ".join(f"{heading:<{width}}" for (heading, _), width in zip(columns, widths, strict=True)), style="bold"
    )
    lines = [head]
    for row in cells:
        line = Text()
        for text, width in zip(row, widths, strict=True):
            line.append_text(text).append(" " * (width - cell_len(text.plain) + 2))
        lines.append(line)
    return lines


def _fitting(line: Text, width: int) -> Text:
    line.rstrip()
    if cell_len(line.plain) > width:
        kept = len(set_cell_size(line.plain, max(0, width - 1)))
        line = line[:kept].append("…")
    return line


# --- the containers of one app ----------------------------------------------------------------------------------------

_LOOK_S: Final = 1.0
_AT_ONCE: Final = 16
"""Nodes whose heartbeats are read at a time."""


async def print_app(connected: Client, name: str) -> None:
    """Print one picture.  Raises NotFound."""
    from dorm.api.reports import Reports
    from dorm.client.finding import find_app

    state = await connected.state()
    app = find_app(state, name, connected.user)
    reports = await _reports(Reports(connected.bus, connected.cluster), state, app)
    console.print(picture_of_app(app, reports, await connected.reported(app.id), max(state.time, time.time_ns())))


async def watch_app(connected: Client, name: str, keys: Keys) -> None:
    """Draw pictures in a terminal until q; `keys` passes on the typed keys.  Raises NotFound."""
    from dorm.api.reports import Reports
    from dorm.client.finding import find_app

    kept = Reports(connected.bus, connected.cluster)
    done = asyncio.Event()
    id = find_app(await connected.state(), name, connected.user).id
    reports: dict[str, Report] = {}
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        keys(lambda key: done.set() if key == "q" else None),
    ):
        while not done.is_set():
            with contextlib.suppress(LogError):  # An outage is reported on stderr; the ages on the screen grow.
                state = await connected.state()
                if id in state.apps:
                    app, newest = state.apps[id], await connected.reported(id)
                    reports = await _reports(kept, state, app)
                    live.update(picture_of_app(app, reports, newest, max(state.time, time.time_ns())), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await done.wait()


async def _reports(kept: Reports, state: State, app: App) -> dict[str, Report]:
    """Return the last report of each node that has a container of the app."""
    generation = app.generations.get(app.generation)
    containers = list(generation.all_containers()) if generation is not None and not app.ended else []
    started = {(app.id, app.generation, container.slot): container.started_at for container in containers}
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: str) -> tuple[str, Report | None]:
        async with room:
            return node, await kept.of(node, state.nodes[node].identity, started)

    nodes = dict.fromkeys(container.node for container in containers if container.node in state.nodes)
    return {node: report for node, report in await asyncio.gather(*map(ask, nodes)) if report is not None}


def picture_of_app(app: App, reports: dict[str, Report], newest: Newest, now: int) -> Group:
    """Return the app's lines.  `now` is UTC ns."""
    row = app_row(app, now, newest)
    head = Text(one_line(app.name), style="bold").append(f"  {app.id} of {one_line(app.user)}  ", style="not bold")
    head.append(cell(row.phase))
    progress = [f"generation {row.generation}", f"step {row.step}"]
    progress += (
        [f"loss {row.loss:.6g}" if row.loss is not None else f"loss {row.loss_is}"]
        if row.loss is not None or row.loss_is
        else []
    )
    progress += [f"{row.samples_per_s:.4g} samples/s"] if row.samples_per_s is not None else []
    progress += (
        [f"reported {ago(row.progress_age_s)} ago"] if row.progress_age_s is not None else ["no progress reported"]
    )
    lines: list[Any] = [head, Text("  ".join(progress))]
    if row.note:
        lines.append(Text(one_line(row.note), style="yellow"))
    return Group(*lines, Text(), _ranks_table(app, reports, now))


def _ranks_table(app: App, reports: dict[str, Report], now: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("RANK", "SLOT", "NODE", "STATE", "CPU", "MEMORY", "AGE"):
        table.add_column(
            heading, justify="right" if heading in ("RANK", "SLOT", "CPU", "MEMORY", "AGE") else "left", no_wrap=True
        )
    generation = app.generations.get(app.generation)
    if generation is None:
        return table
    ranks = {slot: rank for rank, slot in enumerate(sorted(generation.containers))}
    demand = app.demand
    for container in sorted(generation.all_containers(), key=lambda container: container.slot):
        report = reports.get(container.node) if container.state == "running" else None
        used = _used(report, app, container.slot)
        table.add_row(
            str(ranks.get(container.slot, "-")),
            str(container.slot),
            one_line(container.node),
            container.state,
            _of(CPU, used.cpu if used is not None else None, demand.get(CPU)),
            _of(MEMORY, used.memory if used is not None else None, demand.get(MEMORY)),
            ago(max(0, now - report.time) / SECOND) if report is not None and used is not None else "-",
        )
    return table


def _used(report: Report | None, app: App, slot: int) -> Used | None:
    if report is None:
        return None
    return next(
        (
            container
            for container in report.containers
            if (container.app, container.generation, container.slot) == (app.id, app.generation, slot)
        ),
        None,
    )


def _of(name: str, used: int | None, demand: int | None) -> str:
    """Return `0.42 of 1 cores`, `-` while nothing is known."""
    if used is None:
        return "-"
    amount = f"{used / 1000:.2f}" if name == CPU else humanize(name, used)
    if not demand:
        return f"{amount} cores" if name == CPU else amount
    return f"{amount} of {humanize(name, demand)}"


# --- the command ------------------------------------------------------------------------------------------------------

_FRAME_S = 0.125
"""The shortest time between two pictures."""
_TICK_S = 1.0
"""The longest: ages grow."""
_BEFORE = 50
"""Earlier events that are shown at the start."""


@command()
async def top(
    cx: Cluster,
    app: Annotated[
        str | None,
        typer.Argument(metavar="[APP]", help="Only this app, by rank.", autocompletion=complete_app),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the state once and exit; also if standard output is not a terminal.")
    ] = False,
) -> None:
    """Watch the cluster: its nodes, every app's partition, and events.

    Keys: the arrows choose an app and Enter opens it, s sorts, / filters, ? shows
    the other keys, q quits. The command follows the log, so it shows a resize
    when it happens, and sends no requests to other processes.

    With an APP, it shows the resource use of each of the app's containers next to
    the app's progress.

    [bold]Examples[/]

      dorm top

      dorm top --once | grep waiting

      dorm top digits-mlp
    """

    async with cx.client() as connected:
        if app is not None:
            await _of_app(connected, app, once=once)
            return
        look = Look()
        if once or not (console.is_terminal and sys.stdin.isatty()):
            await _print(connected, look)
            return
        connected.report_outages(lambda lost: setattr(look, "lost", lost))
        with stops() as events:
            await first_of(_Screen(connected, look, cx.target().cluster).run(), events.first.wait())


async def _of_app(connected: Client, name: str, *, once: bool) -> None:

    if once or not (console.is_terminal and sys.stdin.isatty()):
        await print_app(connected, name)
        return
    with stops() as events:
        await first_of(watch_app(connected, name, keys), events.first.wait())


async def _print(connected: Client, look: Look) -> None:
    """Whole, however wide the lines are: a pipe cuts nothing."""

    state = await connected.state()
    look.newest = await connected.reported()
    recent = await _recent(connected)
    height = 40 + len(state.nodes) + 2 * len(state.apps)
    now = max(state.time, time.time_ns())
    for line in picture(state, recent, look, cluster=connected.cluster, now=now, width=10_000, height=height):
        console.print(line, soft_wrap=True)


async def _recent(connected: Client) -> Recent:
    """Return the latest events so far."""
    from dorm.client.tail import Filter, Tail, before_last
    from dorm.core.query.concerns import KINDS

    wanted = Filter(kinds=tuple(kind for kind in KINDS if kind not in NOISE))
    end = await connected.log.end()
    begin = await before_last(connected.log, connected.cluster, wanted, _BEFORE, end)
    recent = Recent()
    tailed = Tail(connected.log, connected.cluster, wanted, after=Position(begin.seq), until=end).events()
    async with contextlib.aclosing(tailed) as events:
        async for event in events:
            recent.add(event.time, [event.event])
    return recent


class _Screen:
    """The picture in a terminal, and the keys."""

    def __init__(self, connected: Client, look: Look, cluster: str) -> None:
        self._client = connected
        self._look = look
        self._cluster = cluster
        self._state: State
        self._recent: Recent
        self._changed = asyncio.Event()
        self._done = asyncio.Event()

    async def run(self) -> None:
        self._recent = await _recent(self._client)
        self._state = await self._client.state()
        loop = asyncio.get_running_loop()
        with Live(console=console, screen=True, auto_refresh=False) as live, keys(self._press):
            for number in (signal.SIGWINCH, signal.SIGCONT):
                loop.add_signal_handler(number, self._changed.set)
            try:
                async with asyncio.TaskGroup() as tasks:
                    working = [
                        tasks.create_task(work) for work in (self._follow(), self._follow_progress(), self._draw(live))
                    ]
                    await self._done.wait()
                    for task in working:
                        task.cancel()
            finally:
                for number in (signal.SIGWINCH, signal.SIGCONT):
                    loop.remove_signal_handler(number)

    async def _follow(self) -> None:
        async for state, events in self._client.watch():
            self._state = state
            self._recent.add(state.time, events)
            self._changed.set()

    async def _follow_progress(self) -> None:
        from dorm.client.reports import followed

        async for newest in followed(self._client.log):
            self._look.newest = newest

    async def _draw(self, live: Live) -> None:

        while True:
            self._changed.clear()
            width, height = console.size
            now = max(self._state.time, time.time_ns())
            lines = picture(
                self._state, self._recent, self._look, cluster=self._cluster, now=now, width=width, height=height
            )
            live.update(Group(*lines), refresh=True)
            await asyncio.sleep(_FRAME_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._changed.wait()

    def _press(self, key: str) -> None:

        if not press(self._look, key, self._state, time.time_ns()):
            self._done.set()
        self._changed.set()


@contextlib.contextmanager
def keys(press: Callable[[str], None]) -> Iterator[None]:
    """Pass on each key, without Enter and without its echo; Ctrl-C and Ctrl-Z do what they always do."""

    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def read() -> None:
        try:
            typed = os.read(terminal, 1024)
        except OSError:
            typed = b""
        if not typed:  # The terminal is gone.
            loop.remove_reader(terminal)
            press("q")
        for key in keys_in(typed):
            press(key)

    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
