"""`dorm events`: the log, as it is or as it grows."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url, client
from dorm.cli.errors import run
from dorm.cli.output import console
from events.codec import decode
from events.kinds import Round

if TYPE_CHECKING:
    from collections.abc import Iterator

    from events.kinds import Event
    from events.log import Record


class EventFormat(StrEnum):
    """How to print events."""

    table = "table"
    json = "json"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="The log")(events)


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")] = False,
    after: Annotated[int, typer.Option(min=0, help="Only what comes after this sequence.")] = 0,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last records.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only these kinds; may be repeated.")] = None,
    app: Annotated[str | None, typer.Option(help="Only what names this app (its id, or its name).")] = None,
    output: Annotated[
        EventFormat, typer.Option("--output", "-o", help="A line of text, or of JSON, for each.")
    ] = EventFormat.table,
    url: Url = None,
    cluster: ClusterName = None,
) -> None:
    """Print the log: every submission, decision, start and exit, in its one order.

    [bold]Examples[/]

      dorm events -f

      dorm events --kind Resized --kind AppCompleted -o json | jq .

      dorm events --app digits-mlp
    """

    async def work() -> None:
        async with client(url, cluster) as connected:
            first = max(after, await connected.log.end() - tail) if tail is not None else after
            async for record in connected.records(after=first, follow=follow):
                for position, event in positions(record):
                    if _wanted(event, kind, app):
                        _print(position, record, event, output)

    run(work())


def positions(record: Record) -> Iterator[tuple[str, Event]]:
    """Each event of a record with its position in the log: `seq`, or `seq.index` in a round."""
    event = decode(record)
    if isinstance(event, Round):
        for index, fact in enumerate(event.events):
            yield f"{record.seq}.{index}", fact
    else:
        yield str(record.seq), event


def _wanted(event: Event, kinds: list[str] | None, app: str | None) -> bool:
    if kinds and type(event).__name__ not in kinds:
        return False
    if app is None:
        return True
    named = getattr(event, "app", None)
    if isinstance(named, str):
        return named == app or named.rpartition("-")[0] == app
    changes = getattr(event, "changes", None)
    if changes is not None:
        return any(change.app == app or change.app.rpartition("-")[0] == app for change in changes)
    spec = getattr(event, "spec", None)
    return isinstance(spec, dict) and spec.get("name") == app


def _print(position: str, record: Record, event: Event, output: EventFormat) -> None:
    if output is EventFormat.json:
        line = {"position": position, "log_time": record.time, **msgspec.to_builtins(event)}
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        sys.stdout.flush()
        return
    when = datetime.fromtimestamp(record.time / 1e9, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    text = Text(f"{position:>8}  {when}  ", style="dim").append(f"{type(event).__name__:<20}", style="bold cyan")
    console.print(text.append(in_words(event), style="none"), soft_wrap=True)


def in_words(event: Event) -> str:
    """The gist of an event in one line."""
    if type(event).__name__ == "Resized":
        return _resized_in_words(event)
    # Of these the line has the time already, or nobody can read them.
    hidden = ("id", "at", "by", "cause", "v", "started_at", "exited_at", "submission")
    fields: dict[str, Any] = {name: getattr(event, name) for name in event.__struct_fields__ if name not in hidden}
    spec = fields.pop("spec", None)
    if isinstance(spec, dict):
        fields["name"] = spec.get("name", "?")
    return " ".join(f"{name}={_short(value)}" for name, value in fields.items() if value not in (None, "", [], {}))


def _resized_in_words(event: Any) -> str:
    parts = []
    for change in event.changes:
        nodes: dict[str, int] = {}
        for placed in change.placement:
            nodes[placed.node] = nodes.get(placed.node, 0) + 1
        where = " ".join(f"{node}×{count}" for node, count in nodes.items()) or "nowhere"
        parts.append(f"{change.app} {change.adjustment} g{change.to_generation} -> {len(change.placement)} ({where})")
    changed = "; ".join(parts) or "no change, new reasons"
    return f"{changed}  [U={event.utilization:.2f} F={event.fairness_loss:.2f} overhead={event.overhead}]"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(msgspec.to_builtins(value)) if isinstance(value, msgspec.Struct) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
