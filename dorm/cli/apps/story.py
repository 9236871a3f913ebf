"""`dorm story`: what happened to an app or a node, in order; also prints the chapters of `dorm explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app_or_node
from dorm.cli.output import Format, Output, console, counted, show_document
from dorm.cli.source import At, File, log_of, own_app, parse_at, parse_moment, progress_of
from dorm.cli.terminal import one_line
from events.instants import clock, day

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.story.chapters import AppTotals, Chapter
    from replay.story.node import NodeTotals, Use

_STYLES = {
    "started": "green", "restarted": "green", "running": "green", "resumed": "green", "completed": "green",
    "grown": "cyan", "shrunk": "cyan", "moved": "cyan", "stopped": "yellow", "released": "", "waits": "yellow",
    "limited": "yellow", "refused": "red", "update_refused": "red", "container_failed": "red", "delayed": "yellow", "retried": "yellow",
    "doubtful": "yellow", "failed": "red", "cancelled": "yellow", "node_lost": "red", "node_left": "yellow", "node_lease_ended": "red",
    "node_drained": "yellow", "node_recovered": "green", "lost": "red", "lease_ended": "red", "left": "yellow",
    "settings": "yellow", "killed": "red", "container_killed": "red", "drained": "yellow", "recovered": "green", "joined": "green", "rejoined": "green",
    "suspected": "red", "node_suspected": "red", "trusted": "green", "node_trusted": "green",
}  # fmt: skip
BARS = "▁▂▃▄▅▆▇█"


Last = Annotated[int | None, typer.Option("--last", "-n", min=0, help="Only the last chapters.")]


@command()
async def story(
    cx: Cluster,
    name: Annotated[
        str,
        typer.Argument(
            metavar="APP|NODE", help="Name or id of an app, or name of a node.", autocompletion=complete_app_or_node
        ),
    ],
    node: Annotated[bool, typer.Option("--node", help="Show the node even if an app has the same name.")] = False,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="SEQ|TIME|-10m", help="Start at this moment; default: the whole life."),
    ] = None,
    at: At = None,
    last: Last = None,
    file: File = None,
    output: Output = Format.table,
) -> None:
    """Show what happened to an app or a node, in order, with the causes.

    For an app: who submitted it, why it waited, where it started, which decision
    resized it and for which other app, what each adjustment cost, what failed,
    how it ended. For a node: when it joined and left, what was decided for it,
    what ran there, how full it was. An arrow points to the log position of a
    chapter's cause. JSON has the same as fields; times are UTC nanoseconds,
    lengths are seconds, and empty fields are left out.

    [bold]Examples[/]

      dorm story digits-mlp

      dorm story node-2 --since -1h

      dorm story digits-mlp --at 120 --file incident.dorm -o json
    """
    until, begin = parse_at(at), parse_moment(since)

    from replay.story.story import tell

    wanted = name if node else await own_app(name, file, cx)
    async with log_of(file, cx) as log:
        with progress_of("reading") as report:
            found = await tell(log, wanted, until, since=begin, node=node, progress=report)
    if output in (Format.json, Format.yaml):
        show_document(found, output)
        return
    console.print(
        Text(found.name, style="bold").append(f"  {found.id}" * (found.id != found.name), style="not bold dim")
    )
    for line in _totals(found.totals):
        console.print(line)
    console.print()
    show_chapters(found.chapters, last)


def _totals(totals: AppTotals | NodeTotals | None) -> list[Text]:
    from replay.story.chapters import AppTotals
    from replay.story.words import totals as in_words
    from replay.words import span

    if totals is None:
        return []
    if isinstance(totals, AppTotals):
        return [Text(f"it {in_words(totals)}")]
    away = [
        f"{what} {span(seconds)}"
        for what, seconds in (("drained", totals.drained_s), ("lost", totals.lost_s), ("gone", totals.left_s))
        if seconds
    ]
    lives = f"up {span(totals.up_s)}" + (f" ({', '.join(away)})" if away else "")
    ran = f"{counted(totals.started, 'container')} of {counted(totals.apps, 'app')} started"
    failed = f", {totals.failed} failed" if totals.failed else ""
    return [Text(f"{lives}; {ran}{failed}; {totals.running} may run now"), *map(_use, totals.use)]


def _use(use: Use) -> Text:
    """Return utilization over time, as a row of bars."""
    bars = "".join(BARS[min(len(BARS) - 1, int(part * len(BARS)))] for part in use.course)
    return Text(f"{use.resource:<8}").append(bars, style="cyan").append(f"  mean {use.mean:.0%}, peak {use.peak:.0%}")


def show_chapters(chapters: Sequence[Chapter], last: int | None = None) -> None:
    """Print a line for each chapter, with its causes; times are UTC."""
    shown = chapters if last is None else chapters[len(chapters) - min(last, len(chapters)) :]
    if len(shown) < len(chapters):
        console.print(Text(f"{counted(len(chapters) - len(shown), 'earlier chapter')}", style="dim"))
    told = {chapter.position for chapter in chapters}
    places = max((len(chapter.position) for chapter in shown), default=0)
    today = ""
    for chapter in shown:
        if today != (today := day(chapter.time)):
            console.print(Text(f"{today} UTC", style="dim"))
        margin = Text(f"{clock(chapter.time, 3)}  {chapter.position:>{places}}  ", style="dim")
        text = _in_lines(chapter, told)
        # A pipe gets whole lines, a terminal folds them beside the margin.
        room = max(20, console.width - len(margin)) if console.is_terminal else 10**6
        for line in text.wrap(console, room):
            line.rstrip()
            console.print(Text.assemble(margin, line))
            margin = Text(" " * len(margin))


def _in_lines(chapter: Chapter, told: set[str]) -> Text:
    """Return the gist, then the details; causes that are chapters of the story are named only by their positions."""
    head, *rest = (_plain(part) for part in chapter.text.split("; "))
    text = Text(head, style=_STYLES.get(chapter.what, ""))
    within = [cause.position for cause in chapter.causes if cause.position in told]
    if within:
        text.append(f"  ← {', '.join(within)}", style="not bold dim default")
    for part in rest:
        text.append(f"\n  {part}", style="default")
    for cause in chapter.causes:
        if cause.position not in told:
            text.append(f"\n  ← {cause.position} {_plain(cause.text)}", style="dim default")
    return text


def _plain(text: str) -> str:
    """Return one line without anything that moves a terminal's cursor: names and messages are untrusted."""
    return one_line(" ".join(text.split()))
