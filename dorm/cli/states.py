"""`dorm state` and `dorm diff`: the state at any moment, and what differs between two."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text
from typer.core import TyperCommand

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete, complete_node
from dorm.cli.errors import FAILED, Fail, WrongUsage
from dorm.cli.output import Format, Output, console, show_document
from dorm.cli.source import At, File, log_of, parse_at, progress_of
from dorm.cli.tables import show_app, show_apps, show_node, show_nodes
from events.instants import shown

if TYPE_CHECKING:
    from dorm.core.progress import Newest
    from dorm.core.state import State
    from replay.diff import Diff, Thing

_SIGNS = {"came": ("+", "green"), "changed": ("~", "yellow"), "gone": ("-", "red")}


class Moments(TyperCommand):
    """Accepts a lone `-10m` as a moment instead of options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # A moment may start with a space, an option may not.
        return super().parse_args(ctx, [f" {arg}" if re.match(r"-\d", arg) else arg for arg in args])


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [*(app.name for app in state.apps.values()), *state.nodes])


Name = Annotated[
    str | None,
    typer.Argument(metavar="[APP|NODE]", help="Only this app or node.", autocompletion=_complete),
]
_POINT = "A sequence, a time (ISO 8601, UTC unless it says otherwise) or how long before the log's last record."


@command()
async def state(
    cx: Cluster,
    name: Name = None,
    at: At = None,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="NODE", help="Show what this node was to know and run: its part.", autocompletion=complete_node
        ),
    ] = None,
    file: File = None,
    output: Output = Format.table,
) -> None:
    """Show apps and nodes at any moment, or what one node was to run.

    [bold]Examples[/]

      dorm state --at -10m

      dorm state --at 2026-11-21T09:00 digits-mlp

      dorm state --at 120 --file incident.dorm -o json

      dorm state --part node-1 --at 120 -o yaml
    """
    if part is not None and name is not None:
        raise WrongUsage("--part shows one node's part: leave the name of the app or node out", code="usage.conflict")
    moment = parse_at(at)

    from replay.reading import cluster_name
    from replay.travel import reported_at, state_at

    async with log_of(file, cx) as log:
        with progress_of("folding") as report:
            past = await state_at(log, moment, progress=report)
        named = await cluster_name(log) if part is not None else ""
        newest = await reported_at(log, past, moment)
    if part is not None:
        _show_part(past, named, part, output)
    else:
        _show_state(past, newest, name, output)


def _show_part(state: State, cluster: str, node: str, output: Format) -> None:
    from dorm.core.parts.deriving import known_nodes, part_of

    if node not in known_nodes(state):
        there = ", ".join(known_nodes(state)) or "none"
        raise Fail(f"there was no node {node} at sequence {state.seq}; there was {there}", code="node.not_found")
    document = part_of(state, cluster, node)
    if output in (Format.json, Format.yaml):
        show_document(document, output)
        return
    held = f", held by {document.holder[:12]} at {document.held_at}" if document.holder else ""
    lease = ", its lease has ended" if document.lease_ended else ""
    console.print(Text(f"part of {node} at sequence {document.seq}: {document.condition or 'not joined'}{lease}{held}"))
    for app, app_part in document.apps.items():
        what = (
            "ended"
            if app_part.ended_at
            else "failed"
            if app_part.failed
            else "released"
            if app_part.released
            else "planned"
        )
        here = ", ".join(f"{c.generation}/{c.slot} {c.state}" for c in app_part.containers) or "none released here"
        console.print(Text(f"  {app}: generation {app_part.generation}, {what}; containers {here}"))
    if document.ended:
        console.print(Text(f"  ended: {', '.join(document.ended)}"))


@command(cls=Moments)
async def diff(
    cx: Cluster,
    before: Annotated[str, typer.Argument(metavar="A", help=_POINT, show_default=False)],
    after: Annotated[
        str | None,
        typer.Argument(
            metavar="B", help="The later moment, in the same form; default: the log's end.", show_default=False
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="APP|NODE", help="Only this app or node.", autocompletion=_complete),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything has changed.")] = False,
    file: File = None,
    output: Output = Format.table,
) -> None:
    """Show what changed between two moments: apps, their places, nodes, settings.

    JSON has before and after (seq, time, digest), and apps and nodes (name, id,
    how: came, changed or gone, and changes: field, before, after), settings and
    cluster (field, before, after), and set_by: who changed which settings in
    between (seq, time, by, changes).

    [bold]Examples[/]

      dorm diff -10m

      dorm diff 2026-11-21T09:00 2026-11-21T09:30 --only digits-mlp

      dorm diff 120 240 --file incident.dorm -o json
    """
    moments = [parse_at(before), parse_at(after)]

    from replay.diff import diff as between
    from replay.diff import only as concerning
    from replay.diff import settings_between
    from replay.travel import reported_at, state_at

    async with log_of(file, cx) as log:
        states = []
        for moment in moments:
            with progress_of("folding") as report:
                states.append(await state_at(log, moment, progress=report))
        set_by = await settings_between(log, states[0], states[1])
        newest = [await reported_at(log, state, moment) for state, moment in zip(states, moments, strict=True)]
    if only is not None:
        _check_known(only, states)
    difference = between(states[0], states[1], set_by, (newest[0], newest[1]))
    difference = difference if only is None else concerning(difference, only)
    if output in (Format.json, Format.yaml):
        show_document(difference, output)
    else:
        _show_diff(difference)
    if exit_code and not difference.same:
        raise typer.Exit(FAILED)


# --- a state ------------------------------------------------------------------------------------------------------------


def _show_state(state: State, newest: Newest, name: str | None, output: Format) -> None:
    named = None if name is None else _one(state, newest, name)
    if output in (Format.json, Format.yaml):
        show_document(named or _document(state, newest), output)
        return
    console.print(Text(_headline(state), style="dim"), soft_wrap=True)
    if named is None:
        _show_all(state, newest, output)
    elif "phase" in named:
        show_app(named)
    else:
        show_node(named, output)


def _show_all(state: State, newest: Newest, output: Format) -> None:
    from dorm.core.query.views import app_rows, node_rows

    apps, nodes = app_rows(state, _now(state, newest), newest=newest), node_rows(state)
    if apps:
        show_apps(apps, output)
    if apps and nodes:
        console.print()
    if nodes:
        show_nodes(nodes, output)
    if not apps and not nodes:
        console.print(Text("no app and no node was known then"))


def _now(state: State, newest: Newest) -> int:
    """Return the time to which ages are relative: of the last that is known at the moment."""
    return max([state.time, *(report.time for report in newest.values())])


def _one(state: State, newest: Newest, name: str) -> dict[str, Any]:
    """Return an app, else a node, as plain maps.  Raises Fail."""
    from dorm.core.query.views import describe, describe_node

    wanted = state.find_app(name)
    if wanted is not None:
        return describe(wanted, _now(state, newest), state, newest)
    if name in state.nodes:
        return describe_node(state, state.nodes[name], state.time)
    known = [*state.names, *state.nodes]
    hint = f"; there were {', '.join(known[:10])}" if known else "; none had come yet"
    raise Fail(f"at sequence {state.seq} there was no app or node {name!r}{hint}", code="name.not_found")


def _document(state: State, newest: Newest) -> dict[str, Any]:
    from dorm.core.query.views import app_rows, node_rows, summary
    from dorm.core.settings import settings_shown
    from dorm.core.state import digest

    return {
        "seq": state.seq,
        "time": state.time,
        "epoch": state.epoch,
        "digest": digest(state),
        "settings": settings_shown(state.settings),
        "summary": msgspec.to_builtins(summary(state)),
        "apps": msgspec.to_builtins(app_rows(state, _now(state, newest), newest=newest)),
        "nodes": msgspec.to_builtins(node_rows(state)),
        "counters": msgspec.to_builtins(state.counters),
    }


def _headline(state: State) -> str:
    from dorm.core.state import digest

    if not state.seq:
        return "before the first record"
    return f"sequence {state.seq}, {shown(state.time, 3)}, epoch {state.epoch}, digest {digest(state)}"


# --- a difference -------------------------------------------------------------------------------------------------------


def _check_known(name: str, states: list[State]) -> None:
    """Raises Fail if neither moment has it: a mistyped name must not look as if nothing had changed."""
    if not any(state.find_app(name) or name in state.nodes for state in states):
        known = dict.fromkeys(word for state in states for word in (*state.names, *state.nodes))
        hint = f"; there were {', '.join([*known][:10])}" if known else ""
        raise Fail(f"at neither moment was there an app or node {name!r}{hint}", code="name.not_found")


def _show_diff(diff: Diff) -> None:
    from replay.diff import headline, of_app, of_cluster, of_node, of_set_by, of_settings

    console.print(Text(headline(diff), style="dim"), soft_wrap=True)
    _show_things("apps", diff.apps, [of_app(thing) for thing in diff.apps])
    _show_things("nodes", diff.nodes, [of_node(thing) for thing in diff.nodes])
    for title, lines in (
        ("settings", [*of_settings(diff.settings), *map(of_set_by, diff.set_by)]),
        ("cluster", [of_cluster(change) for change in diff.cluster]),
    ):
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for text in lines:
            console.print(Text(f"  {text}"), soft_wrap=True)
    if diff.same:
        console.print(Text("nothing changed"))


def _show_things(title: str, things: list[Thing], lines: list[str]) -> None:
    if things:
        console.print(Text(f"\n{title}", style="bold"))
    width = max((len(thing.name) for thing in things), default=0)
    for thing, text in zip(things, lines, strict=True):
        sign, style = _SIGNS[thing.how]
        console.print(
            Text(f"  {sign} {thing.name:<{width}}  ", style=style).append(text, style="default"), soft_wrap=True
        )
