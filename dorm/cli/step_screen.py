"""The screen of `dorm replay step`: the events around a cursor, the state after it, its changes, and the event in full.

The view goes from data to text, so that the screen only has to place it: panes, keys, and one task that moves the cursor, so
that keys never wait for the log.  Times are UTC, like those that people type.  Only `dorm replay step` imports this module,
because it needs textual.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import yaml
from rich.text import Text
from textual import events as ui
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from dorm.cli.errors import expected, line
from dorm.cli.events import in_words, style_of
from dorm.cli.output import cell, counted
from dorm.cli.tables import share
from dorm.cli.terminal import clean
from dorm.core.query.views import AppRow, NodeRow, Summary, app_rows, node_rows, summary
from events import positions
from events.cloudevents import plain
from events.instants import clock, shown
from events.log.records import LogError
from events.positions import Logged, Position
from replay.moments import Moment
from replay.moments import parse as parse_moment
from replay.travel.diff import Diff, diff
from replay.travel.diff_words import of_app, of_cluster, of_node, of_settings
from replay.travel.search import Search, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from events.log.interface import ReadableLog
    from replay.travel.diff import Thing
    from replay.travel.search import Search
    from replay.travel.stepper import Stepper


# --- what is shown ----------------------------------------------------------------------------------------------------

_SIGNS = {"came": ("+", "green"), "changed": ("~", "yellow"), "gone": ("-", "red")}
_CHANGED = "bold black on yellow"
_CURSOR = "on grey23"
_ROOMY = 56
"""Columns from which an event's line has room for milliseconds and kinds in a column."""
_NARROWEST_NOTE = 12
_FIRST = ("kind", "trigger", "reasons", "shortage", "changes", "app", "generation", "node")
_LAST = ("policy", "policy_version", "params", "solver", "digest", "id", "at", "by", "cause", "v")
_APP_COLUMNS = (
    ("APP", "name"), ("PHASE", "phase"), ("SIZE", "size"), ("NODES", "nodes"), ("STEP", "step"), ("RESIZED", "adjustments"),
)  # fmt: skip
_CHANGES_OF = {"size": ("placement", "n_max"), "nodes": ("placement",), "note": ("why",)}
"""Fields of a difference that a column shows under another name."""


class View(msgspec.Struct, frozen=True):
    """Everything that is shown of one place in a log."""

    cursor: Logged | None
    events: list[Logged]
    wanted: set[Position] | None
    """Positions of the events that match the filter; None without one."""
    start: int
    end: int
    diff: Diff
    apps: list[AppRow]
    nodes: list[NodeRow]
    summary: Summary


async def look(stepper: Stepper, search: Search, reach: int) -> View:
    """Return the view of a stepper's position, with at most `reach` events before it and after it."""
    events = await stepper.around(reach, reach)
    wanted = await stepper.wanted(events, search) if search else None
    before, after = stepper.before, stepper.after

    def draw() -> View:
        apps = sorted(app_rows(after, after.time), key=lambda row: row.phase in ("completed", "failed", "cancelled"))
        return View(
            stepper.cursor, events, wanted, stepper.start, stepper.end, diff(before, after), apps, node_rows(after),
            summary(after),
        )  # fmt: skip

    return await asyncio.to_thread(draw)


# --- where it stands ----------------------------------------------------------------------------------------------------


def heading(view: View, name: str, search: Search, *, follows: bool) -> Text:
    """Return which log, the position in it, and the filter."""
    text = Text(f" {name} ", style="bold reverse", no_wrap=True, overflow="ellipsis")
    if view.cursor is None:
        return text.append("  the log is empty", style="not bold not reverse")
    place = f"  {view.cursor.position} of {view.end}{'…' if follows else ''}"
    text.append(place, style="not reverse").append(f"  {shown(view.cursor.time, 3)}", style="not bold not reverse")
    if search:
        text.append(f"  only {search}", style="not reverse yellow")
    return text


def event_lines(view: View, width: int, height: int) -> tuple[Text, int]:
    """Return as many events as there are lines, the cursor in the middle, and the index of the first of them."""
    if view.cursor is None:
        return Text("nothing has happened yet", style="dim"), 0
    at = next(index for index, each in enumerate(view.events) if each.position == view.cursor.position)
    first = max(0, min(at - height // 2, len(view.events) - height))
    lines = [_event_line(view, event, width) for event in view.events[first : first + height]]
    return Text("\n").join(lines), first


def _event_line(view: View, event: Logged, width: int) -> Text:
    here = view.cursor is not None and event.position == view.cursor.position
    left_out = view.wanted is not None and event.position not in view.wanted
    roomy = width >= _ROOMY
    when = clock(event.time, 3 if roomy else 0)
    kind = type(event.event).__name__
    line = Text(no_wrap=True).append("▶" if here else " ", style="bold yellow")
    line.append(f"{event.position!s:>{8 if roomy else 6}} {when} ", style="" if here else "dim")
    line.append(f"{kind:<21}" if roomy else f"{kind} ", style="dim" if left_out else style_of(event.event))
    text = in_words(event.event)
    line.append(text if roomy else text.removeprefix("app="), style="dim" if left_out else "")
    line.truncate(width, overflow="ellipsis", pad=True)
    if here:
        line.stylize(_CURSOR)
    return line


# --- the state after it -------------------------------------------------------------------------------------------------


def change_lines(view: View) -> Text:
    """Return the record's changes, a line for each thing."""
    diff, lines = view.diff, []
    for things, describe in ((diff.apps, of_app), (diff.nodes, of_node)):
        for thing in things:
            sign, style = _SIGNS[thing.how]
            lines.append(Text().append(f"{sign} {thing.name} ", style=f"bold {style}").append(describe(thing)))
    lines += [Text(f"~ {text}", style="magenta") for text in of_settings(diff.settings)]
    lines += [Text(of_cluster(change), style="dim") for change in diff.cluster]
    return Text("\n").join(lines) if lines else Text("nothing that is shown here", style="dim")


def changes_title(view: View) -> str:
    if view.cursor is None:
        return "changed"
    changed = view.cursor.position
    return f"changed by {changed.seq}" if changed.index is None else f"changed by round {changed.seq}"


def state_title(view: View) -> str:
    totals = view.summary
    return (
        f"after it: {counted(totals.apps, 'app')} on {counted(totals.nodes, 'node')}, "
        f"U {totals.utilization:.2f}/{totals.utilization_max}"
    )


def state_lines(view: View, width: int) -> Text:
    """Return apps and nodes as tables, with changes highlighted."""
    apps = _table(
        _APP_COLUMNS, [_app_cells(row) for row in view.apps], _changed(view.diff.apps), width, note=("NOTE", "note")
    )
    resources = dict.fromkeys(name for row in view.nodes for name in row.capacity)
    columns = [("NODE", "name"), ("CONDITION", "condition"), ("HAS", "containers")]
    columns += [(name.upper(), name) for name in resources]
    nodes = _table(columns, [_node_cells(row) for row in view.nodes], _changed(view.diff.nodes), width)
    blocks = [Text("\n").join(lines) for lines, rows in ((apps, view.apps), (nodes, view.nodes)) if rows]
    return Text("\n\n").join(blocks) if blocks else Text("no app and no node is known here", style="dim")


def _app_cells(row: AppRow) -> dict[str, Any]:
    plain_row = msgspec.to_builtins(row)
    return {**plain_row, "key": row.id, "size": f"{row.containers}/{row.n_max}", "note": row.note or ""}


def _node_cells(row: NodeRow) -> dict[str, Any]:
    shares = {name: share(name, row.used[name], amount) for name, amount in row.capacity.items()}
    return {**shares, "key": row.name, "name": row.name, "condition": row.condition, "containers": row.containers}


def _changed(things: Iterable[Thing]) -> dict[str, set[str]]:
    """Return the changed fields by id; all fields of a new thing."""
    return {
        thing.id: {change.field for change in thing.changes} | ({"name", "used"} if thing.how == "came" else set())
        for thing in things
    }


def _table(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    changed: Mapping[str, set[str]],
    width: int,
    note: tuple[str, str] | None = None,
) -> list[Text]:
    """Return a line for each row, with as many columns as fit, and the note if there is room left."""
    drawn = [[cell(row.get(key)) for _, key in columns] for row in rows]
    widths = [
        max([len(heading), *(line[index].cell_len for line in drawn)]) for index, (heading, _) in enumerate(columns)
    ]
    shown = len(columns)
    while shown > 2 and sum(widths[:shown]) + 2 * shown > width:
        shown -= 1
    left = width - sum(widths[:shown]) - 2 * shown - 2
    noted = note is not None and left >= _NARROWEST_NOTE and any(row.get(note[1]) for row in rows)
    head = "  ".join(f"{heading:<{widths[index]}}" for index, (heading, _) in enumerate(columns[:shown]))
    lines = [Text(f"  {head}  {note[0] if note and noted else ''}", style="bold dim")]
    for row, cells in zip(rows, drawn, strict=True):
        fields = changed.get(str(row["key"]), set())
        line = Text(no_wrap=True).append("▌ " if fields else "  ", style="yellow")
        for index, (_, key) in enumerate(columns[:shown]):
            if fields.intersection(_CHANGES_OF.get(key, (key, *(() if key in _STATIC else ("used",))))):
                cells[index].stylize(_CHANGED)
            line.append_text(cells[index]).append(" " * (widths[index] - cells[index].cell_len + 2))
        if note and noted:
            line.append(str(row.get(note[1]) or ""), style=_CHANGED if "why" in fields else "dim")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


_STATIC = ("name", "phase", "step", "adjustments", "condition", "containers")
"""Columns that are fields of a difference themselves; the others of a node are resources, which change with `used`."""

# --- all that the event says --------------------------------------------------------------------------------------------


def details(view: View, width: int) -> Text:
    """Return the event as YAML, the most important fields first; for a fact, with its round."""
    event = view.cursor
    if event is None:
        return Text("")
    fields = plain(event.event)
    if event.round is not None:
        entry = event.round
        fields["round"] = {
            "by": entry.by, "epoch": entry.epoch, "basis": entry.basis, "facts": len(entry.events), "id": entry.id,
        }  # fmt: skip
    first = [name for name in _FIRST if name in fields]
    last = [name for name in _LAST if name in fields]
    ordered = [*first, *(name for name in fields if name not in (*first, *last)), *last]
    dumped = yaml.dump(
        _Block((name, fields[name]) for name in ordered), Dumper=_Dumper, sort_keys=False, allow_unicode=True,
        default_flow_style=None, width=max(40, width - 12),
    )  # fmt: skip
    text = Text(clean(dumped))
    text.highlight_regex(r"(?m)^ *(- )?[\w-]+:", "cyan")
    return text


class _Block(dict[str, Any]):
    """A map with a line for each of its fields, however short they are."""


class _Dumper(yaml.SafeDumper):
    """Without anchors: a list that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _as_block(dumper: yaml.SafeDumper, fields: _Block) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", fields.items(), flow_style=False)


_Dumper.add_representer(_Block, _as_block)


# --- the screen -------------------------------------------------------------------------------------------------------

_HINTS = " ← → event  PgUp/Dn 10  d decision  f failure  / filter  g go to  ? help  q quit"
_MOST_AT_ONCE = 1000
"""Steps that a held key can queue while one is in progress."""
_HELP = """\
  → n  ← p        next event, the one before (↓ ↑ in the list)
  PgDn  PgUp      ten of them     N  P   a hundred
  Home  End       the log's start, its end (or < and >)
  d  D            next decision, the one before
  f  F            next failure, the one before
  g               go to a sequence (118), a position (118.2),
                  a time (2026-11-21T09:00, UTC) or -10m
                  before the log's end
  /               only some events: kinds, apps, nodes by name,
                  as in  Resized digits-mlp;  or kind=… app=…
                  user=… node=…  Nothing shows all again.
  Tab             to the next pane; ↑ ↓ PgUp PgDn scroll it
  Esc             stop a search        q   leave

  While a filter is set, steps skip all other events.
  A round is folded whole: its facts share one state."""


class Step(msgspec.Struct, frozen=True):
    """Events to move forward or back, among matches of the search, or of the filter if that is None."""

    count: int
    what: str = ""


class Go(msgspec.Struct, frozen=True):
    to: Moment | Position | None


class Filter(msgspec.Struct, frozen=True):
    text: str


class Grown(msgspec.Struct, frozen=True):
    """The log has grown."""

    end: int


class Redraw(msgspec.Struct, frozen=True):
    """The terminal was resized."""


Move = Step | Go | Filter | Grown | Redraw


class Events(Static, can_focus=True):
    """The list; arrows move the cursor in it."""

    BINDINGS: ClassVar[list[Any]] = [
        Binding("down", "app.step(1)"),
        Binding("up", "app.step(-1)"),
        Binding("pagedown", "app.step(10)"),
        Binding("pageup", "app.step(-10)"),
        Binding("home", "app.begin"),
        Binding("end", "app.end"),
    ]
    first = 0
    """Index of the event in the first line."""

    class Sized(Message):
        """The number of lines changed."""

    def on_resize(self) -> None:
        self.post_message(self.Sized())


class Pane(VerticalScroll):
    """Scrolls up and down; left and right move in the log."""

    BINDINGS: ClassVar[list[Any]] = [Binding("right", "app.step(1)"), Binding("left", "app.step(-1)")]


class Help(ModalScreen[None]):
    """The keys."""

    def compose(self) -> ComposeResult:
        yield Static(Text(_HELP), id="help")

    def on_key(self, event: ui.Key) -> None:
        event.stop()
        self.dismiss()

    def on_click(self) -> None:
        self.dismiss()


class StepApp(App[None]):
    """Walks through one log.  Ends with the error if that is a bug; errors that people can fix are shown in a line below."""

    CSS = """
    Screen { layout: vertical; }
    #heading, #status { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #upper { height: 2fr; }
    #left, #right { width: 1fr; }
    #events, #changes, #state, #details { border-top: solid $secondary; border-title-style: bold; border-title-color: $text-muted; }
    #events:focus, #changes:focus, #state:focus, #details:focus { border-top: heavy $accent; border-title-color: $text; }
    #events, #state { height: 1fr; }
    #changes { height: auto; max-height: 45%; }
    #right { border-left: vkey $secondary; }
    #details { height: 1fr; }
    #status { background: $panel; }
    #ask { display: none; border: none; height: 1; padding: 0 1; background: $panel; }
    Pane { scrollbar-size-vertical: 1; scrollbar-background: $background; scrollbar-color: $secondary; }
    Help { align: center middle; }
    #help { width: auto; height: auto; border: round $accent; padding: 0 1; background: $panel; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        Binding("right,n", "step(1)"),
        Binding("left,p", "step(-1)"),
        Binding("N,ctrl+pagedown", "step(100)"),
        Binding("P,ctrl+pageup", "step(-100)"),
        Binding("home,less_than_sign", "begin"),
        Binding("end,greater_than_sign", "end"),
        Binding("pagedown", "step(10)"),
        Binding("pageup", "step(-10)"),
        Binding("d", "step(1, 'decision')"),
        Binding("D", "step(-1, 'decision')"),
        Binding("f", "step(1, 'failure')"),
        Binding("F", "step(-1, 'failure')"),
        Binding("g", "ask('go')"),
        Binding("slash", "ask('filter')"),
        Binding("question_mark,f1", "help"),
        Binding("escape", "stop"),
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(self, log: ReadableLog, stepper: Stepper, name: str, search: Search, *, follow: bool = False) -> None:
        super().__init__()
        self._source, self._stepper, self._label, self._follow = log, stepper, name, follow
        self._search = search
        self._moves: list[Move] = []
        self._requested = asyncio.Event()
        self._moving: asyncio.Task[str] | None = None
        self._asking = ""
        self._view: View | None = None
        self.idle = asyncio.Event()
        """Event that is set while every request is done and drawn."""

    def compose(self) -> ComposeResult:
        yield Static(id="heading")
        with Horizontal(id="upper"):
            with Vertical(id="left"):
                yield Events(id="events")
            with Vertical(id="right"):
                with Pane(id="changes"):
                    yield Static(id="changed")
                with Pane(id="state"):
                    yield Static(id="tables")
        with Pane(id="details"):
            yield Static(id="document")
        yield Static(_HINTS, id="status", markup=False)
        yield Input(id="ask", compact=True)

    def on_mount(self) -> None:
        self.query_one(Events).focus()
        self.query_one("#details").border_title = "all it says"
        self.query_one("#events").border_title = "events (UTC)"
        self._ask_for(Redraw())
        self.run_worker(self._move_on())
        if self._follow:
            self.run_worker(self._watch())

    # --- keys -----------------------------------------------------------------------------------------------------------

    def action_step(self, count: int, what: str = "") -> None:
        self._ask_for(Step(count, what))

    def action_begin(self) -> None:
        self._ask_for(Go(positions.Position(self._stepper.start)))

    def action_end(self) -> None:
        self._ask_for(Go(None))

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_stop(self) -> None:
        self._moves.clear()
        if self._moving is not None:
            self._moving.cancel()
        self._close_question()

    def action_ask(self, what: str) -> None:
        self._asking = what
        field = self.query_one("#ask", Input)
        field.placeholder = (
            "go to SEQ, SEQ.INDEX, TIME (UTC) or -10m"
            if what == "go"
            else "only KIND, APP, NODE, user=NAME; empty for all"
        )
        field.value = "" if what == "go" else str(self._search)
        self.query_one("#status").display = False
        field.display = True
        # At once: it gets the next keys.
        self.screen.set_focus(field)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        text, what = event.value.strip(), self._asking
        self._close_question()
        if what == "filter":
            self._ask_for(Filter(text))
        elif text:
            try:
                self._ask_for(Go(_place(text)))
            except Exception as error:
                self._show_error(error)

    def _close_question(self) -> None:
        field = self.query_one("#ask", Input)
        if field.display:
            field.display = False
            self.query_one("#status").display = True
            self.screen.set_focus(self.query_one(Events))

    def on_click(self, event: ui.Click) -> None:
        listed = self.query_one(Events)
        if self._view is None or event.widget is not listed:
            return
        index = listed.first + event.screen_y - listed.content_region.y
        if 0 <= index < len(self._view.events):
            self._ask_for(Go(self._view.events[index].position))

    def on_events_sized(self) -> None:
        self._ask_for(Redraw())

    # --- moving ---------------------------------------------------------------------------------------------------------

    def _ask_for(self, move: Move) -> None:
        """Queue a move; steps of the same kind are merged, and of moves that replace each other only the last one is
        made."""
        last = self._moves[-1] if self._moves else None
        if isinstance(move, Step) and isinstance(last, Step) and move.what == last.what:
            count = max(-_MOST_AT_ONCE, min(last.count + move.count, _MOST_AT_ONCE))
            self._moves[-1] = Step(count, move.what)
        elif isinstance(move, Go | Grown | Redraw) and type(move) is type(last):
            self._moves[-1] = move
        elif len(self._moves) < 16:
            self._moves.append(move)
        self.idle.clear()
        self._requested.set()

    async def _move_on(self) -> None:
        while True:
            if not self._moves:
                self.idle.set()
            await self._requested.wait()
            self._requested.clear()
            while self._moves:
                self._moving = asyncio.create_task(self._do(self._moves.pop(0)))
                try:
                    await asyncio.wait({self._moving})
                except asyncio.CancelledError:
                    self._moving.cancel()
                    await asyncio.wait({self._moving})
                    raise
                self._show_outcome(self._moving)
                self._moving = None
                # Also while more moves wait: a held key moves the display.
                await self._show()

    async def _do(self, move: Move) -> str:
        """Carry out a move; return the message for it."""
        stepper = self._stepper
        match move:
            case Step(count, what):
                search = msgspec.structs.replace(self._search, what=what)
                moved = await stepper.step(count, search, self._progress)
                return "" if moved else self._nothing_found(count, what)
            case Go(to):
                await stepper.go(to, self._progress)
            case Filter(text):
                self._search = parse(text, stepper.after)
            case Grown(end):
                at_end = stepper.place.seq == stepper.end
                stepper.grow(end)
                if at_end:
                    await stepper.go(None, self._progress)
        return ""

    def _nothing_found(self, count: int, what: str) -> str:
        if not what and not self._search:
            return "this is the log's end" if count > 0 else "this is the log's start"
        kind = what or "event"
        which = f" of {self._search}" if self._search else ""
        return f"no {'later' if count > 0 else 'earlier'} {kind}{which}"

    def _progress(self, done: int, total: int) -> None:
        if total:
            self._set_status(f"on the way: {done:,} of {total:,} records (Esc stops)")

    def _show_outcome(self, moved: asyncio.Task[str]) -> None:
        if moved.cancelled():
            self._set_status("stopped")
        elif (error := moved.exception()) is not None:
            self._show_error(error)
        else:
            self._set_status(moved.result())

    def _show_error(self, error: BaseException) -> None:
        known = expected(error)
        if known is None:
            raise error
        self._set_status(line(known), style="bold red")

    def _set_status(self, text: str, style: str = "yellow") -> None:
        self.query_one("#status", Static).update(Text(f" {text}", style=style) if text else Text(_HINTS, style="dim"))

    async def _watch(self) -> None:
        try:
            async with aclosing(self._source.read(after=self._stepper.end, follow=True)) as batches:
                async for batch in batches:
                    self._ask_for(Grown(batch[-1].seq))
        except LogError as error:
            self._show_error(error)

    # --- showing --------------------------------------------------------------------------------------------------------

    async def _show(self) -> None:
        try:
            view = self._view = await look(self._stepper, self._search, self.size.height)
        except Exception as error:
            self._show_error(error)
            return
        listed, state, document = self.query_one(Events), self.query_one("#state"), self.query_one("#details")
        wide, across = state.scrollable_content_region.width, document.scrollable_content_region.width
        # Large clusters have long tables, and large decisions long texts.
        tables, record = await asyncio.to_thread(lambda: (state_lines(view, wide), details(view, across)))
        self.query_one("#heading", Static).update(heading(view, self._label, self._search, follows=self._follow))
        lines, listed.first = event_lines(view, listed.content_size.width, max(1, listed.content_size.height))
        listed.update(lines)
        changes = self.query_one("#changes")
        changes.border_title, state.border_title = changes_title(view), state_title(view)
        self.query_one("#changed", Static).update(change_lines(view))
        self.query_one("#tables", Static).update(tables)
        self.query_one("#document", Static).update(record)
        changes.scroll_home(animate=False)
        document.scroll_home(animate=False)


def _place(text: str) -> Moment | Position:
    """A moment, or a position in a round.  Raises MomentError."""
    try:
        if "." in text:
            return positions.parse(text)
    except ValueError:
        pass
    return parse_moment(text)
