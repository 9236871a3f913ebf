"""`dorm explain`: why an app has what it has, now or at any moment of the log, and how that came about."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.apps.story import Last, show_chapters
from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.output import Format, Output, cell, console, counted, show_document, solver_prints_elsewhere
from dorm.cli.source import At, File, log_of, own_app, parse_at, progress_of

if TYPE_CHECKING:
    from dorm.core.state import State
    from replay.simulator.forks.starting import Outlook, Start
    from replay.story.explanation import Batch, Decision, Explanation
    from replay.story.speed import SpeedCurve
    from replay.story.story import Follower


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
        found = explained(state, witness, max(state.time, time.time_ns()) if live else state.time)
    start = None if brief else await _start_of(found, outlook, state)
    if output in (Format.json, Format.yaml):
        told = {} if brief else {"start": start, "totals": teller.totals(state), "story": teller.story()}
        show_document({**msgspec.to_builtins(found), **told}, output)
        return
    _show(found, start, live=live)
    if not isinstance(state.policy_failure, msgspec.UnsetType):
        failed = state.policy_failure
        text = f"policy {failed.policy} gives no usable answer, so every app keeps what it has: {failed.reason}"
        console.print(Text(f"{text} [{failed.code}]", style="yellow"))
    if not brief:
        console.print()
        show_chapters(teller.story(), last)


async def _start_of(found: Explanation, outlook: Outlook, state: State) -> Start | None:
    """Return when an app that waits will start; None for other apps."""
    from replay.simulator.forks.starting import forecast

    with progress_of("simulating"), solver_prints_elsewhere():
        return await asyncio.to_thread(forecast, outlook, state, found.id, found.at)


def _show(found: Explanation, start: Start | None, *, live: bool) -> None:
    from replay.words import moment

    if not live:
        console.print(Text(f"as it was at sequence {found.seq}, {moment(found.at)}", style="dim"))
    console.print(Text(found.name, style="bold").append(f"  {found.id}", style="dim not bold"))
    # A paragraph is folded to the terminal's width.
    console.print(Text(f"{found.text}  {start.text}" if start else found.text), soft_wrap=False)
    lines = _lines(found)
    if lines:
        console.print()
    for label, value in lines:
        console.print(Text(f"  {label:<12}").append(cell(value)))


def _lines(found: Explanation) -> list[tuple[str, str]]:
    from events.quantities import humanize
    from replay.words import moment

    lines: list[tuple[str, str]] = []
    if found.state not in ("live", "ended"):
        return lines
    if found.state == "live":
        each = ", ".join(humanize(name, amount) for name, amount in found.demand.items())
        lines.append(
            ("containers", f"{found.containers} ({found.n_min} to {found.n_max}, weight {found.weight:g}) of {each}")
        )
        if found.share is not None and found.fair_share is not None:
            parts = f"{found.share:.4g} of {found.dominant or 'nothing'}, fair {found.fair_share:.4g}"
            lines.append(("share", parts + (f" ({found.share / found.fair_share:.0%})" if found.fair_share else "")))
        if found.reason:
            lines.append(("reason", f"{found.reason.code}, since {moment(found.reason.since)}"))
            if found.reason.code in _TRY:
                capped = found.reason.code == "overhead" and "max_changes" in found.reason.text
                lines.append(("try", "dorm plan --set max_changes=100" if capped else _TRY[found.reason.code]))
    if found.decision:
        lines += _decision_lines(found.decision)
    if found.revision > 1:
        behind = found.revision_running not in (None, found.revision)
        due = f", and revision {found.revision_running} runs until it is restarted" if behind else ""
        lines.append(("revision", f"{found.revision}{due}"))
    if found.last_change:
        change = found.last_change
        what = f"{change.adjustment} with {change.containers}, generation {change.generation}"
        lines.append(("last change", f"{change.position}, {moment(change.time)}: {what}"))
    if found.speed is not None:
        lines += _speed_lines(found.speed)
    if found.batch is not None:
        lines.append(("batch", _batch_line(found.batch)))
    if found.history:
        last = found.history[-1]
        names = ("wait", "warm_up", "barrier", "pause") if last["live"] else ("stop", "wait", "start")
        phases = [f"{name} {last[f'{name}_s']:.3f} s" for name in names if last[f"{name}_s"] is not None]
        cost = (
            f"; one costs {found.adjust_s:.{1 if found.adjust_s >= 0.1 else 3}f} s of its work"
            if found.adjust_s is not None
            else ""
        )
        lost = f"{counted(found.lost_steps, 'step')} lost" if found.reports_progress else "lost work unknown"
        times = f"{counted(found.adjustments, 'time')}, {lost}"
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
    for one in speed.types:
        rates = [f"{point.containers}: {point.steps_per_s:.3g} steps/s" for point in one.points if point.steps_per_s]
        times = f"{one.times:.2f} times the slowest" if one.times > 1 else "the slowest"
        lines.append((f"on {one.type or 'no type'}", f"{times} ({one.basis}): {', '.join(rates)}"))
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
