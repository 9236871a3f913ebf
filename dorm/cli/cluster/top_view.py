"""What `dorm top` draws: a state, recent events and where its user is, as lines.  Pure, so the same in a pipe and in any
terminal."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dorm.cli.log.events import in_words, style_of
from dorm.cli.output import ago, cell, counted
from dorm.cli.terminal import one_line
from dorm.core.progress import Newest
from dorm.core.query.views import adjustment, app_row, node_rows, sizes, summary
from events import kinds as k
from events.instants import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dorm.core.query.views import AppRow, NodeRow
    from dorm.core.state import App, State
    from events.kinds import Event

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

    def last(self, count: int, words: str = "", app: str = "") -> list[Happened]:
        """Return the latest that match, oldest first."""
        found: list[Happened] = []
        for one in reversed(self._events):
            if len(found) >= count:
                break
            text = f"{type(one.event).__name__} {in_words(one.event)}".lower()
            if all(word in text for word in words.lower().split()) and (not app or app in text):
                found.append(one)
        return found[::-1]


class Look(msgspec.Struct):
    """Where the user is."""

    page: Literal["cluster", "app", "help"] = "cluster"
    order: str = "age"
    reverse: bool = False
    words: str = ""
    typing: bool = False
    """Whether keys go into `words`."""
    ended: bool = True
    nodes: bool = True
    chosen: str = ""
    """Id of the chosen app."""
    lost: bool = False
    """Whether the log cannot be reached now."""
    newest: Newest = {}
    """The apps' reports beside the log."""


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
    words = look.words.lower().split()
    return [row for row in rows if _matches(words, row.name, row.id, row.user, row.phase, row.note)]


def _matches(words: Sequence[str], *texts: str) -> bool:
    text = " ".join(texts).lower()
    return all(word in text for word in words)


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
        lines += [Text("EVENTS", style="bold"), *(_event(one) for one in recent.last(left, look.words))]
    return lines


def _state_of(look: Look) -> Text:
    line = Text("? keys   ", style="dim")
    line.append(f"sorted by {look.order}{', reversed' if look.reverse else ''}")
    if look.typing or look.words:
        line.append(f"   / {one_line(look.words)}{'_' if look.typing else ''}", style="not dim bold")
    return line


def _nodes(state: State, look: Look, most: int) -> list[Text]:
    words = look.words.lower().split()
    rows = [row for row in node_rows(state) if _matches(words, row.name, row.condition, *row.labels.values())]
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
        return [Text("APPS", style="bold"), Text("none" if not look.words else "none with these words", style="dim")]
    at = next((place for place, row in enumerate(rows) if row.id == look.chosen), 0)
    room = max(1, most - 2 if len(rows) > most - 1 else most - 1)
    first = max(0, min(at - room // 2, len(rows) - room))
    shown = [_app_line(state, row, look) for row in rows[first : first + room]]
    drawn = _table(shown, columns if width >= 2 * _LEAST else [one for one in columns if one[1] != "user"])
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


def _event(one: Happened) -> Text:
    line = Text(f"{shown(one.time)}  ", style="dim").append(
        f"{type(one.event).__name__:<21}", style=style_of(one.event)
    )
    return line.append(in_words(one.event), style="none")


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
    containers = [msgspec.to_builtins(one) for one in generation.all_containers()] if generation is not None else []
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
        lines += [Text(), Text("EVENTS", style="bold"), *(_event(one) for one in recent.last(left, app=app.id.lower()))]
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
        for one, width in zip(row, widths, strict=True):
            line.append_text(one).append(" " * (width - cell_len(one.plain) + 2))
        lines.append(line)
    return lines


def _fitting(line: Text, width: int) -> Text:
    line.rstrip()
    if cell_len(line.plain) > width:
        kept = len(set_cell_size(line.plain, max(0, width - 1)))
        line = line[:kept].append("…")
    return line
