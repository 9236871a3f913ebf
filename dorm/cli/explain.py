"""`dorm explain` and `dorm story`: why an app has what it has, and what happened to an app or a node, in order.

Both print chapters of a story (`replay.story`): the gist, then the details, with the position of each on the log.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster, complete_app_or_node
from dorm.cli.output import Format, Output, cell, console, counted, show_document, solver_prints_elsewhere
from dorm.cli.source import At, File, log_of, own_app, parse_at, parse_moment, progress_of
from dorm.cli.terminal import one_line
from events.instants import clock, day

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.core.state import State
    from replay.simulator.forks.starting import Outlook, Start
    from replay.story.chapters import AppTotals, Chapter
    from replay.story.explanation import Batch, Decision, Explanation
    from replay.story.node import NodeTotals, Use
    from replay.story.speed import SpeedCurve
    from replay.story.story import Follower


# --- story ------------------------------------------------------------------------------------------------------------

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
            narrated = await tell(log, wanted, until, since=begin, node=node, progress=report)
    if output in (Format.json, Format.yaml):
        show_document(narrated, output)
        return
    console.print(
        Text(narrated.name, style="bold").append(
            f"  {narrated.id}" * (narrated.id != narrated.name), style="not bold dim"
        )
    )
    for line in _totals(narrated.totals):
        console.print(line)
    console.print()
    show_chapters(narrated.chapters, last)


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
    listed = {chapter.position for chapter in chapters}
    places = max((len(chapter.position) for chapter in shown), default=0)
    today = ""
    for chapter in shown:
        if today != (today := day(chapter.time)):
            console.print(Text(f"{today} UTC", style="dim"))
        margin = Text(f"{clock(chapter.time, 3)}  {chapter.position:>{places}}  ", style="dim")
        text = _in_lines(chapter, listed)
        # A pipe gets whole lines, a terminal folds them beside the margin.
        room = max(20, console.width - len(margin)) if console.is_terminal else 10**6
        for line in text.wrap(console, room):
            line.rstrip()
            console.print(Text.assemble(margin, line))
            margin = Text(" " * len(margin))


def _in_lines(chapter: Chapter, listed: set[str]) -> Text:
    """Return the gist, then the details; causes that are chapters of the story are named only by their positions."""
    head, *rest = (_plain(part) for part in chapter.text.split("; "))
    text = Text(head, style=_STYLES.get(chapter.what, ""))
    within = [cause.position for cause in chapter.causes if cause.position in listed]
    if within:
        text.append(f"  ← {', '.join(within)}", style="not bold dim default")
    for part in rest:
        text.append(f"\n  {part}", style="default")
    for cause in chapter.causes:
        if cause.position not in listed:
            text.append(f"\n  ← {cause.position} {_plain(cause.text)}", style="dim default")
    return text


def _plain(text: str) -> str:
    """Return one line without anything that moves a terminal's cursor: names and messages are untrusted."""
    return one_line(" ".join(text.split()))


# --- explain ----------------------------------------------------------------------------------------------------------

_TRY = {
    "resources": "dorm plan --nodes +1,like=NODE",
    "ports": "a wider range: dorm agent --ports FIRST-LAST, dorm plan --nodes +1,like=NODE",
    "no_nodes": "dorm plan --nodes +1,cpu=…,memory=…",
    "constraint": "dorm nodes -o wide (shows labels), dorm plan --nodes +1,cpu=…,label.NAME=VALUE",
    "drained": "dorm drain NODE --undo",
    "held": "dorm logs APP; it ends with any dorm update APP",
    "asked": "dorm update APP --n-max N, which also ends the request",
    "overhead": "dorm plan --rounds 5, dorm plan --set theta2=0.3",
    "fairness": "dorm plan --set theta1=0.2",
    "floor": "dorm plan --set floor=0.3",
    "price": "dorm plan --set horizon_s=3600",
    "static_count": "dorm plan --set count=2",
    "gain": "dorm plan --set policy=dorm",
    "learning": "declare the known speed in its spec (speed:); otherwise, it grows gradually",
    "not_resized": "dorm plan --set policy=dorm",
    "no_checkpoint": "report checkpoints in DORM_PROGRESS, or state `resume:` in its spec if it continues by itself",
    "not_resizable": "dorm edit APP --set resizable=auto",
}
"""The command that shows whether a change would help, by the code of the reason."""


@command()
async def explain(
    cx: Cluster,
    app: AppName,
    at: At = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only the current state, without the story.")] = False,
    last: Last = None,
    file: File = None,
    output: Output = Format.table,
) -> None:
    """Explain why an app has what it has: its share, what limits it, the decision behind it, and its story.

    The story lists the app's events in order: who submitted it, why it waited,
    which decision resized it and for which other app, what each adjustment cost,
    what failed. An arrow points to the log position of the cause.

    For a waiting app, it also predicts when the app will start, from a few short
    simulations (at most about two seconds of computing): a range, if the
    remaining work of other apps is unknown, and the assumptions.

    JSON has phase, containers by node, dominant and fair share (fractions of the
    cluster), reason (code, text, since), decision (its position on the log, its
    figures), the latest adjustments by phases, the same as text (text), the
    chapters of the story, and for a waiting app start (earliest_s, latest_s,
    assumptions). Times are UTC nanoseconds, lengths are seconds.

    [bold]Examples[/]

      dorm explain digits-mlp

      dorm explain digits-mlp --at -10m --brief

      dorm explain digits-mlp --at 120 --file incident.dorm -o json
    """
    moment = parse_at(at)

    from replay.simulator.forks.starting import Outlook
    from replay.story.app import AppTeller
    from replay.story.explain import explain as explained
    from replay.story.explanation import Witness
    from replay.story.story import follow

    wanted = await own_app(app, file, cx)
    witness, teller, outlook = Witness(wanted), AppTeller(wanted), Outlook()
    async with log_of(file, cx) as log:
        with progress_of("folding") as report:
            followers: list[Follower] = [witness] if brief else [witness, teller, outlook]
            state = await follow(log, wanted, followers, moment, progress=report)
        live = file is None and moment is None
        explanation = explained(state, witness, max(state.time, time.time_ns()) if live else state.time)
    start = None if brief else await _start_of(explanation, outlook, state)
    if output in (Format.json, Format.yaml):
        more = {} if brief else {"start": start, "totals": teller.totals(state), "story": teller.story()}
        show_document({**msgspec.to_builtins(explanation), **more}, output)
        return
    _show(explanation, start, live=live)
    if not isinstance(state.policy_failure, msgspec.UnsetType):
        failed = state.policy_failure
        text = f"policy {failed.policy} gives no usable answer, so every app keeps what it has: {failed.reason}"
        console.print(Text(f"{text} [{failed.code}]", style="yellow"))
    if not brief:
        console.print()
        show_chapters(teller.story(), last)


async def _start_of(explanation: Explanation, outlook: Outlook, state: State) -> Start | None:
    """Return when an app that waits will start; None for other apps."""
    from replay.simulator.forks.starting import forecast

    with progress_of("simulating"), solver_prints_elsewhere():
        return await asyncio.to_thread(forecast, outlook, state, explanation.id, explanation.at)


def _show(explanation: Explanation, start: Start | None, *, live: bool) -> None:
    from replay.words import moment

    if not live:
        console.print(Text(f"as it was at sequence {explanation.seq}, {moment(explanation.at)}", style="dim"))
    console.print(Text(explanation.name, style="bold").append(f"  {explanation.id}", style="dim not bold"))
    # A paragraph is folded to the terminal's width.
    console.print(Text(f"{explanation.text}  {start.text}" if start else explanation.text), soft_wrap=False)
    lines = _lines(explanation)
    if lines:
        console.print()
    for label, value in lines:
        console.print(Text(f"  {label:<12}").append(cell(value)))


def _lines(explanation: Explanation) -> list[tuple[str, str]]:
    from events.quantities import humanize
    from replay.words import moment

    lines: list[tuple[str, str]] = []
    if explanation.state not in ("live", "ended"):
        return lines
    if explanation.state == "live":
        each = ", ".join(humanize(name, amount) for name, amount in explanation.demand.items())
        lines.append(
            (
                "containers",
                f"{explanation.containers} ({explanation.n_min} to {explanation.n_max}, weight {explanation.weight:g}) of {each}",
            )
        )
        if explanation.share is not None and explanation.fair_share is not None:
            parts = f"{explanation.share:.4g} of {explanation.dominant or 'nothing'}, fair {explanation.fair_share:.4g}"
            lines.append(
                (
                    "share",
                    parts + (f" ({explanation.share / explanation.fair_share:.0%})" if explanation.fair_share else ""),
                )
            )
        if explanation.reason:
            lines.append(("reason", f"{explanation.reason.code}, since {moment(explanation.reason.since)}"))
            if explanation.reason.code in _TRY:
                capped = explanation.reason.code == "overhead" and "max_changes" in explanation.reason.text
                lines.append(("try", "dorm plan --set max_changes=100" if capped else _TRY[explanation.reason.code]))
    if explanation.decision:
        lines += _decision_lines(explanation.decision)
    if explanation.revision > 1:
        behind = explanation.revision_running not in (None, explanation.revision)
        due = f", and revision {explanation.revision_running} runs until it is restarted" if behind else ""
        lines.append(("revision", f"{explanation.revision}{due}"))
    if explanation.last_change:
        change = explanation.last_change
        what = f"{change.adjustment} with {change.containers}, generation {change.generation}"
        lines.append(("last change", f"{change.position}, {moment(change.time)}: {what}"))
    if explanation.speed is not None:
        lines += _speed_lines(explanation.speed)
    if explanation.batch is not None:
        lines.append(("batch", _batch_line(explanation.batch)))
    if explanation.history:
        last = explanation.history[-1]
        names = ("wait", "warm_up", "barrier", "pause") if last["live"] else ("stop", "wait", "start")
        phases = [f"{name} {last[f'{name}_s']:.3f} s" for name in names if last[f"{name}_s"] is not None]
        cost = (
            f"; one costs {explanation.adjust_s:.{1 if explanation.adjust_s >= 0.1 else 3}f} s of its work"
            if explanation.adjust_s is not None
            else ""
        )
        lost = (
            f"{counted(explanation.lost_steps, 'step')} lost" if explanation.reports_progress else "lost work unknown"
        )
        times = f"{counted(explanation.adjustments, 'time')}, {lost}"
        lines.append(("adjusted", f"{times}; the last: {', '.join(phases)}{cost}"))
    return lines


def _speed_lines(speed: SpeedCurve) -> list[tuple[str, str]]:
    from replay.words import span

    lines = []
    if speed.basis != "law":
        parts = []
        for point in speed.points:
            seen = f", {span(point.measured_s)} measured" if point.measured_s else ""
            parts.append(f"{point.containers}: {point.steps_per_s:.3g} steps/s (±{point.uncertainty:.0%}{seen})")
        origin = {"measured": "as measured", "declared": "as its owner declares", "alike": "as a similar app"}
        lines.append(("speed", f"{origin[speed.basis]}: {', '.join(parts)}"))
    if speed.across:
        rates = [f"{point.containers}: {point.steps_per_s:.3g} steps/s" for point in speed.across if point.steps_per_s]
        lines.append(("across", f"if they are on several nodes, {', '.join(rates)}"))
    for type_ in speed.types:
        rates = [f"{point.containers}: {point.steps_per_s:.3g} steps/s" for point in type_.points if point.steps_per_s]
        times = f"{type_.times:.2f} times the slowest" if type_.times > 1 else "the slowest"
        lines.append((f"on {type_.type or 'no type'}", f"{times} ({type_.basis}): {', '.join(rates)}"))
    if speed.remaining_s is not None:
        more = f"; one more container saves {span(speed.next_saves_s)}" if speed.next_saves_s is not None else ""
        lines.append(("remaining", f"{span(speed.remaining_s)} with what it has{more}"))
    return lines


def _batch_line(batch: Batch) -> str:
    from replay.words import moment

    decided = f", decided at {batch.position} ({moment(batch.time)}) by {batch.policy}" if batch.position else ""
    now = batch.now
    return f"{now.now} samples of {now.least} to {now.most}, at most {now.per_container} in a container{decided}: {now.why}"


def _decision_lines(decision: Decision) -> list[tuple[str, str]]:
    from replay.words import moment

    budget = f" of {decision.fairness_budget:.4g}" if decision.fairness_budget >= 0 else ""
    excess = f" ({decision.excess:.4g} over)" if decision.excess > 0 else ""
    changes = f" of {decision.overhead_budget}" if decision.overhead_budget >= 0 else ""
    return [
        ("decision", f"{decision.position}, {moment(decision.time)}, by policy {decision.policy} ({decision.status})"),
        (
            "figures",
            f"utilization {decision.utilization:.4g}, fairness loss {decision.fairness_loss:.4g}{budget}{excess}, "
            f"overhead {decision.overhead}{changes} changed apps",
        ),
    ]
