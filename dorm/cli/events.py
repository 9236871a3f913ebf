"""`dorm events`: print the log, or follow it as it grows."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete, complete_app, complete_node
from dorm.cli.errors import WrongUsage
from dorm.cli.output import as_yaml, console
from dorm.cli.source import log_of, parse_moment, report_nothing_found
from dorm.cli.terminal import in_document, one_line, print_line
from events.cloudevents import cloud_event, plain
from events.instants import shown
from events.log.records import LogUnavailable
from events.positions import Position, parse
from replay.gist import gist

if TYPE_CHECKING:
    from dorm.client.tail import Filter, Tail
    from events.kinds import Event
    from events.log.interface import ReadableLog
    from events.positions import Logged
    from replay.moments import Moment


class EventFormat(StrEnum):
    """Output formats of events: `Format`, which DORM_OUTPUT may hold for all commands, and one more."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    cloudevents = "cloudevents"


def _position(text: str | None) -> str | None:
    if text is not None:
        try:
            parse(text)
        except ValueError as error:
            raise WrongUsage.of(error) from None
    return text


def _moment(text: str | None) -> str | None:
    parse_moment(text)
    return text


def _kinds(kinds: list[str] | None) -> list[str] | None:
    from dorm.client.tail import check_kinds

    try:
        check_kinds(kinds or ())
    except ValueError as error:
        raise WrongUsage.of(error) from None
    return kinds


def _complete_kind(incomplete: str) -> list[str]:
    from dorm.core.query.concerns import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    return complete(ctx, incomplete, lambda state: [app.user for app in state.apps.values()])


_MOMENT = "SEQ|TIME|-10m"


@command()
async def events(
    cx: Cluster,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log as it grows, through restarts of the server.")] = False,
    after: Annotated[str | None, typer.Option(metavar="POSITION", callback=_position, help="Only events after this position (118, or 118.2), which an interrupted run prints.")] = None,
    since: Annotated[str | None, typer.Option(metavar=_MOMENT, callback=_moment, help="Only events since this moment: a sequence, a time, or a duration before the log's last " "record.")] = None,
    until: Annotated[str | None, typer.Option(metavar=_MOMENT, callback=_moment, help="Only events up to and including this moment.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last N events.")] = None,
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", callback=_kinds, autocompletion=_complete_kind, help="Only this kind; may be repeated, like the following options.")] = None,
    app: Annotated[list[str] | None, typer.Option(metavar="APP", autocompletion=complete_app, help="Only events about this app (name or id), including decisions that mention it.")] = None,
    user: Annotated[list[str] | None, typer.Option(metavar="USER", autocompletion=_complete_user, help="Only requests by this user, and events about this user's apps.")] = None,
    node: Annotated[list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Only events by or about this node, and decisions that place containers there.")] = None,
    file: Annotated[Path | None, typer.Option("--file", metavar="LOG.dorm", help="An exported log instead of a cluster's.")] = None,
    output: Annotated[EventFormat, typer.Option("--output", "-o", envvar="DORM_OUTPUT", help="Print each event as a line of text (wide: not truncated), a line of JSON, a CloudEvent, " "or a YAML document.")] = EventFormat.table,
) -> None:  # fmt: skip
    """Print the log: every submission, decision, start and exit, in order.

    [bold]Examples[/]

      dorm events -f

      dorm events --app digits-mlp --tail 20

      dorm events --since -10m --kind NodeLost --kind AppFailed

      dorm events -f --after 118.2 -o cloudevents | my-consumer

      dorm events --file incident.dorm --node node-2 -o json | jq .
    """
    if follow and (until is not None or file is not None):
        raise WrongUsage(
            f"--follow never ends, so it can't go with {'--until' if until else '--file'}", code="usage.conflict"
        )
    if after is not None and since is not None:
        raise WrongUsage("--after and --since both name a start; give one of them", code="usage.conflict")

    from dorm.client.tail import Filter

    wanted = Filter(kinds=tuple(kind or ()), apps=tuple(app or ()), users=tuple(user or ()), nodes=tuple(node or ()))
    name = "*" if file is not None else cx.target().cluster
    async with log_of(file, cx, folds=False) as log:
        chosen, end = await _chosen(log, name, wanted, after, parse_moment(since), parse_moment(until), tail, follow)
        first, printer = chosen.position.seq + 1, _Printer(output, flush=follow)
        await _print_all(chosen, printer)
        if not printer.shown and not follow and tail != 0 and (wanted != Filter() or since or until):
            report_nothing_found(first, end, app=wanted.apps, user=wanted.users, node=wanted.nodes, kind=wanted.kinds)


async def _chosen(
    log: ReadableLog, cluster: str, wanted: Filter, after: str | None, since: Moment | None, until: Moment | None,
    count: int | None, follow: bool,
) -> tuple[Tail, int]:  # fmt: skip
    """Return the requested events, as one reading of the log, and the last sequence that it has."""
    from dorm.client.tail import EVER, Tail, before_last
    from replay.moments import AtTime

    begin = Position(await log.start())
    if after is not None:
        begin = parse(after)
    elif since is not None:
        begin = Position(max(begin.seq, await _before(log, since, itself=False)))
    end = await log.end() if until is None else await _before(log, until, itself=True)
    latest = EVER if until is None else until.time if isinstance(until, AtTime) else None
    if count is not None:
        last = await before_last(log, cluster, wanted, count, end, latest)
        begin = begin if begin.seq > last.seq or begin.covers(last) else last
    reading = Tail(log, cluster, wanted, after=begin, until=None if follow else end, latest=latest, follow=follow)
    return reading, end


async def _before(log: ReadableLog, moment: Moment, *, itself: bool) -> int:
    """Return the last sequence before a moment; with `itself`, records at the moment count as before it."""
    from replay.moments import AtSequence, time_at

    if isinstance(moment, AtSequence):
        return min(moment.seq if itself else max(0, moment.seq - 1), await log.end())
    time = await time_at(log, moment)
    return await log.at_time(time if itself else time - 1)


async def _print_all(tail: Tail, printer: _Printer) -> None:
    try:
        async with contextlib.aclosing(tail.events()) as events:
            async for event in events:
                printer.show(event)
    except (asyncio.CancelledError, LogUnavailable):
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
            print_line(f"ended early; to continue from here: --after {tail.position}", error=True, flush=True)
        raise


class _Printer:
    """Prints a line for each event, at once when following, otherwise in blocks."""

    def __init__(self, output: EventFormat, *, flush: bool) -> None:
        self._output, self._flush = output, flush
        self.shown = 0

    def show(self, event: Logged) -> None:
        self.shown += 1
        whole = self._output is EventFormat.wide
        if console.is_terminal and (whole or self._output is EventFormat.table):
            console.print(_coloured(event, whole), soft_wrap=True)
            return
        sys.stdout.write(self._line(event) + "\n")
        if self._flush:
            sys.stdout.flush()

    def _line(self, event: Logged) -> str:
        if self._output is EventFormat.cloudevents:
            return in_document(msgspec.json.encode(cloud_event(event)).decode())
        if self._output in (EventFormat.json, EventFormat.yaml):
            document = {"position": str(event.position), "log_time": event.time, **plain(event.event)}
            if self._output is EventFormat.json:
                return in_document(msgspec.json.encode(document).decode())
            return "---\n" + as_yaml(document).rstrip("\n")
        return "".join(_columns(event, self._output is EventFormat.wide))


def _columns(logged: Logged, whole: bool) -> tuple[str, str, str]:
    """Return place and time, kind, and the gist."""
    return (
        f"{logged.position!s:>8}  {shown(logged.time, 3)}  ",
        f"{type(logged.event).__name__:<21}",
        in_words(logged.event, whole=whole),
    )


_STYLES = {
    "RecordsRefused": "bold red", "Unreadable": "bold red", "Unknown": "bold yellow", "AppCompleted": "bold green",
}  # fmt: skip


def style_of(event: Event) -> str:
    """Return the style of an event's kind, for all lists of events."""
    usual = "bold red" if "failures" in event.KIND.lists else "bold cyan"
    return _STYLES.get(type(event).__name__, usual)


def _coloured(logged: Logged, whole: bool) -> Text:
    place, kind, gist = _columns(logged, whole)
    return Text(place, style="dim").append(kind, style=style_of(logged.event)).append(gist, style="none")


def in_words(event: Event, *, whole: bool = False) -> str:
    """Return the gist of an event in one line, without anything that moves a terminal's cursor; `whole` cuts no value."""
    return one_line(gist(event, whole=whole))
