"""`dorm plan`: what the next decision would be, without doing anything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app, complete_node
from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.output import Format, Output, console, counted, show, show_document, solver_prints_elsewhere
from dorm.cli.settings import complete_setting, parse_capacity, parse_pairs
from dorm.cli.source import At, File, log_of, parse_at, progress_of
from dorm.core.query.assumed import NewNodes

if TYPE_CHECKING:
    from dorm.core.query.assumed import Figures, Plan, PlannedApp

CHANGES = 3
"""Exit code: some app would have other containers than now."""
_MOST_NODES = 10_000
_COLUMNS = [
    ("APP", "name"), ("NOW", "before"), ("THEN", "after"), ("KIND", "kind"), ("PAUSE", "pause"), ("NODES", "nodes"),
]  # fmt: skip


def complete_change(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete `--nodes`: `-NODE` by name, `+COUNT,like=NODE` by the part that is being typed."""
    begin, like, name = incomplete.rpartition("like=")
    if like:
        return [begin + like + node for node in complete_node(ctx, name)]
    if incomplete.startswith("+"):
        return []
    return [f"-{node}" for node in complete_node(ctx, incomplete.removeprefix("-"))]


NodeChanges = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CHANGE",
        autocompletion=complete_change,
        help="Add nodes: +3,cpu=8 or +3,like=NODE; or remove one: -NODE. May be repeated.",
    ),
]
Drained = Annotated[
    list[str] | None, typer.Option(metavar="NODE", autocompletion=complete_node, help="Drain this node.")
]
Undrained = Annotated[
    list[str] | None,
    typer.Option(metavar="NODE", autocompletion=complete_node, help="Use this drained node again."),
]


@command()
async def plan(
    cx: Cluster,
    specs: Annotated[list[Path] | None, typer.Argument(metavar="SPEC", help="Spec files of apps to submit.")] = None,
    nodes: NodeChanges = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", autocompletion=complete_node, help="Remove this node; the same as --nodes -NODE."),
    ] = None,
    drain: Drained = None,
    undrain: Undrained = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=complete_setting,
            help="Change a setting, as in `dorm policy set`: theta2=0.3, policy=NAME. May be repeated.",
        ),
    ] = None,
    cancel: Annotated[
        list[str] | None,
        typer.Option(metavar="APP", autocompletion=complete_app, help="Cancel this app."),
    ] = None,
    hold: Annotated[
        list[str] | None,
        typer.Option(metavar="APP", autocompletion=complete_app, help="Hold this app."),
    ] = None,
    release: Annotated[
        list[str] | None,
        typer.Option(metavar="APP", autocompletion=complete_app, help="Release this held app."),
    ] = None,
    restart: Annotated[
        list[str] | None,
        typer.Option(metavar="APP", autocompletion=complete_app, help="Restart this app."),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="Number of decisions to plan, each after the adjustments of the previous one."
        ),
    ] = 1,
    at: At = None,
    file: File = None,
    output: Output = Format.table,
) -> None:
    """Show the next decision without making it.

    You can ask for the cluster as it is, or after an assumed change. Exit codes:
    0 no app would change, 3 some would, 1 the question has no answer (a spec that
    would be refused, no such node), 2 wrong usage (an unknown parameter, for
    example).

    JSON has assumed (as text), changes (yes or no), apps (containers and nodes
    before and after, kind, adjust_s, reason), the cluster's figures before and
    after, and rounds (changed apps, budget, status of each).

    [bold]Examples[/]

      dorm plan

      dorm plan app.yaml

      dorm plan --nodes +3,cpu=8,memory=32GiB,label.gpu_type=h100

      dorm plan --drain node-2 --set theta2=0.3 --rounds 5

      dorm plan second.yaml --nodes -node-2 --cancel digits-mlp -o json
    """
    from dorm.local.spec_files import load_spec

    moment = parse_at(at)
    parsed = [parse_nodes(text) for text in nodes or []]
    parse_pairs(change, "setting")
    checked = tuple(load_spec(path) for path in specs or [])

    from dorm.cli.changes import settings_in
    from dorm.core.query.assumed import Assumed, UnknownSetting
    from dorm.core.query.plans import plan as planned
    from replay.travel.travel import state_at

    assumed = Assumed(
        joins=tuple(assumption for assumption in parsed if isinstance(assumption, NewNodes)),
        removed=(*(assumption for assumption in parsed if isinstance(assumption, str)), *(without or [])),
        drained=tuple(drain or []),
        undrained=tuple(undrain or []),
        cancelled=tuple(cancel or []),
        held=tuple(hold or []),
        released=tuple(release or []),
        restarted=tuple(restart or []),
        specs=checked,
    )
    async with log_of(file, cx) as log:
        with progress_of("folding") as report:
            state = await state_at(log, moment, progress=report)
    if change:
        assumed = replace(assumed, settings=settings_in(state, change))
    live = file is None and moment is None
    try:
        with solver_prints_elsewhere():
            result = planned(state, max(state.time, time.time_ns()) if live else state.time, assumed, rounds=rounds)
    except UnknownSetting as error:
        raise Fail.of(error, USAGE) from None
    if output in (Format.json, Format.yaml):
        show_document(result, output)
    else:
        _show(result, output)
    if result.changes:
        raise typer.Exit(CHANGES)


def parse_nodes(text: str) -> NewNodes | str:
    """Parse `+3,cpu=8,memory=32GiB,label.zone=a`, `+2,like=node-1`, or `-node-2` (which returns the name).

    Raises WrongUsage."""
    from dorm.core.query.assumed import NewNodes

    if text.startswith("-") and len(text) > 1:
        return text[1:]
    count, _, rest = text.removeprefix("+").partition(",")
    if not text.startswith("+") or not count.isascii() or not count.isdigit() or not rest:
        raise WrongUsage(
            f"nodes {text!r}: write +3,cpu=8,memory=32GiB, +3,like=NODE, or -NODE for one that is gone",
            code="usage.nodes.malformed",
        )
    if not 1 <= int(count[:9]) <= _MOST_NODES:
        raise WrongUsage(f"nodes {text!r}: between 1 and {_MOST_NODES:,} nodes", code="usage.nodes.malformed")
    labels: dict[str, str] = {}
    amounts: list[str] = []
    like = ""
    for part in rest.split(","):
        name, sign, value = part.partition("=")
        if name.startswith("label.") and sign and len(name) > len("label."):
            labels[name.removeprefix("label.")] = value
        elif name == "like" and value:
            like = value
        else:
            amounts.append(part)
    capacity = (parse_capacity(",".join(amounts)) if amounts else None) or {}
    if not capacity and not like:
        raise WrongUsage(
            f"nodes {text!r}: say what they have, such as cpu=8, or like=NODE", code="usage.nodes.malformed"
        )
    return NewNodes(count=int(count), capacity=capacity, labels=labels, like=like)


def _show(plan: Plan, output: Format) -> None:
    if plan.assumed:
        console.print(Text(f"if: {'; '.join(plan.assumed)}", style="dim"))
    if plan.paused:
        console.print(Text(f"{plan.paused}; this is what `dorm resume` would decide", style="yellow"), soft_wrap=True)
    shown = [app for app in plan.apps if app.kind or app.end or app.reason or output is Format.wide]
    if shown:
        show([_row(app) for app in shown], _COLUMNS, output, note=("NOTE", "note"))
        console.print()
    same = len(plan.apps) - len(shown)
    changed = sum(1 for app in plan.apps if app.kind)
    rest = f"; {counted(same, 'other app')} {'keeps' if same == 1 else 'keep'} what {'it has' if same == 1 else 'they have'}"
    headline = f"{counted(changed, 'app')} would change" if plan.changes else "no app would change"
    console.print(Text(headline + (rest if same else "")))
    before, after = plan.before, plan.after
    show(
        [_figures("now", before), _figures("then", after)],
        [
            ("", "when"),
            ("NODES", "nodes"),
            ("UTILIZATION", "utilization"),
            ("FAIRNESS LOSS", "fairness"),
            ("WAITING", "waiting"),
        ],
        Format.table,
    )
    for number, decision in enumerate(plan.rounds, 1):
        which = f"decision {number}: " if len(plan.rounds) > 1 else ""
        budget = f" of at most {decision.overhead_budget}" if decision.overhead_budget >= 0 else ""
        console.print(
            Text(
                f"{which}{counted(decision.changed, 'app')} changed, {decision.overhead}{budget} against θ2; solver: {decision.status}"
            ),
        )


def _row(app: PlannedApp) -> dict[str, Any]:
    from replay.words import begins_again

    pause = "" if app.adjust_s is None else f"{app.adjust_s:.1f} s" if app.measured else f"~{app.adjust_s:.0f} s"
    places = app.nodes_after or app.nodes_before
    notes = [begins_again(app.lost_s)] if app.lost_s else []
    notes += [app.end] if app.end else [f"{app.reason.text} ({app.reason.code})"] if app.reason else []
    return {
        "name": app.name,
        "before": app.before,
        "after": app.after,
        "kind": app.kind or "-",
        "pause": pause,
        "nodes": ", ".join(
            f"{node} {_way(app, node)}" for node in sorted({**app.nodes_before, **app.nodes_after})
        ) if places else "-",
        "note": "; ".join(notes),
    }  # fmt: skip


def _way(app: PlannedApp, node: str) -> str:
    """Return `2` if the count stays, `2->1` if it changes."""
    before, after = app.nodes_before.get(node, 0), app.nodes_after.get(node, 0)
    return str(before) if before == after else f"{before}->{after}"


def _figures(when: str, figures: Figures) -> dict[str, Any]:
    budget = f" of {figures.fairness_budget:.4g}" if figures.fairness_budget >= 0 else ""
    return {
        "when": when,
        "nodes": figures.nodes,
        "utilization": f"{figures.utilization:.4f} of {figures.utilization_max}",
        "fairness": f"{figures.fairness_loss:.4f}{budget}",
        "waiting": figures.waiting,
    }
