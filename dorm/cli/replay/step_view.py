"""The view of `dorm replay step`: the events around a cursor, the state after it, its changes, and the event in full.

From data to text, so that the screen (`dorm.cli.replay.step_screen`) only has to place it.  Times are UTC, like those that
people type.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from rich.text import Text

from dorm.cli.log.events import in_words, style_of
from dorm.cli.output import cell, counted
from dorm.cli.tables import share
from dorm.cli.terminal import clean
from dorm.core.query.views import AppRow, NodeRow, Summary, app_rows, node_rows, summary
from events.cloudevents import plain
from events.instants import clock, shown
from events.positions import Logged, Position
from replay.travel.diff import Diff, diff
from replay.travel.diff_words import of_app, of_cluster, of_node, of_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from replay.travel.diff import Thing
    from replay.travel.search import Search
    from replay.travel.stepper import Stepper

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
    """Which of them match the filter; None without one."""
    start: int
    end: int
    found: Diff
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
    at = next(index for index, one in enumerate(view.events) if one.position == view.cursor.position)
    first = max(0, min(at - height // 2, len(view.events) - height))
    lines = [_event_line(view, one, width) for one in view.events[first : first + height]]
    return Text("\n").join(lines), first


def _event_line(view: View, one: Logged, width: int) -> Text:
    here = view.cursor is not None and one.position == view.cursor.position
    left_out = view.wanted is not None and one.position not in view.wanted
    roomy = width >= _ROOMY
    when = clock(one.time, 3 if roomy else 0)
    kind = type(one.event).__name__
    line = Text(no_wrap=True).append("▶" if here else " ", style="bold yellow")
    line.append(f"{one.position!s:>{8 if roomy else 6}} {when} ", style="" if here else "dim")
    line.append(f"{kind:<21}" if roomy else f"{kind} ", style="dim" if left_out else style_of(one.event))
    words = in_words(one.event)
    line.append(words if roomy else words.removeprefix("app="), style="dim" if left_out else "")
    line.truncate(width, overflow="ellipsis", pad=True)
    if here:
        line.stylize(_CURSOR)
    return line


# --- the state after it -------------------------------------------------------------------------------------------------


def change_lines(view: View) -> Text:
    """Return the record's changes, a line for each thing."""
    found, lines = view.found, []
    for things, words in ((found.apps, of_app), (found.nodes, of_node)):
        for thing in things:
            sign, style = _SIGNS[thing.how]
            lines.append(Text().append(f"{sign} {thing.name} ", style=f"bold {style}").append(words(thing)))
    lines += [Text(f"~ {text}", style="magenta") for text in of_settings(found.settings)]
    lines += [Text(of_cluster(change), style="dim") for change in found.cluster]
    return Text("\n").join(lines) if lines else Text("nothing that is shown here", style="dim")


def changes_title(view: View) -> str:
    if view.cursor is None:
        return "changed"
    told = view.cursor.position
    return f"changed by {told.seq}" if told.index is None else f"changed by round {told.seq}"


def state_title(view: View) -> str:
    found = view.summary
    return (
        f"after it: {counted(found.apps, 'app')} on {counted(found.nodes, 'node')}, "
        f"U {found.utilization:.2f}/{found.utilization_max}"
    )


def state_lines(view: View, width: int) -> Text:
    """Return apps and nodes as tables, with changes highlighted."""
    apps = _table(
        _APP_COLUMNS, [_app_cells(row) for row in view.apps], _changed(view.found.apps), width, note=("NOTE", "note")
    )
    resources = dict.fromkeys(name for row in view.nodes for name in row.capacity)
    columns = [("NODE", "name"), ("CONDITION", "condition"), ("HAS", "containers")]
    columns += [(name.upper(), name) for name in resources]
    nodes = _table(columns, [_node_cells(row) for row in view.nodes], _changed(view.found.nodes), width)
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
    one = view.cursor
    if one is None:
        return Text("")
    fields = plain(one.event)
    if one.round is not None:
        said = one.round
        fields["round"] = {
            "by": said.by, "epoch": said.epoch, "basis": said.basis, "facts": len(said.events), "id": said.id,
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
