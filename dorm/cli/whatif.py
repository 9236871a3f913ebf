"""`dorm whatif`: a log continued in the simulator, unchanged and with something changed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app
from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.output import Format, Output, console, counted, show, show_document, solver_prints_elsewhere
from dorm.cli.plan import Drained, NodeChanges, parse_nodes
from dorm.cli.settings import complete_policy, complete_setting, parse_pairs, parse_params
from dorm.cli.source import File, log_of, parse_moment, progress_of
from events.instants import comparable_span as length

if TYPE_CHECKING:
    from dorm.core.query.assumed import Assumed
    from events.kinds import AppUpdated
    from replay.simulator.forks.whatif import Figures, Outcome, WhatIf, WhatIfApp

_COLUMNS = [
    ("APP", "name"), ("WORK", "work_from"), ("SPEED", "speed_from"), ("REALLY", "really"), ("UNCHANGED", "unchanged"), ("CHANGED", "changed"),
    ("DIFFERENCE", "difference"), ("WAIT", "wait"), ("ADJUSTED", "adjusted"),
]  # fmt: skip


@command()
async def whatif(
    cx: Cluster,
    specs: Annotated[
        list[Path] | None, typer.Argument(metavar="SPEC", help="Spec files of apps to submit at the fork.")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="SEQ|TIME|-10m",
            help="Moment of the fork: a sequence, a time or a duration before the log's last record; " "default: its end.",
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="POLICY", autocompletion=complete_policy, help="Use this policy.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", autocompletion=complete_setting,
            help="Change a setting, as in `dorm policy set`: theta2=0.3, quiet=2s, node_grace=60s. May be " "repeated.",
        ),
    ] = None,
    nodes: NodeChanges = None,
    drain: Drained = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="APP:KEY=VALUE",
            autocompletion=complete_app,
            help="Change n_min, n_max or weight of an app: digits-mlp:n_max=8,weight=2. May be repeated.",
        ),
    ] = None,
    cancel: Annotated[
        list[str] | None,
        typer.Option(metavar="APP", autocompletion=complete_app, help="Remove this app."),
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long to simulate, such as 12h; default: twice the log's time after the fork, or a day.",
        ),
    ] = None,
    kept: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Write the log of the changed simulation to this archive.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    file: File = None,
    output: Output = Format.table,
) -> None:  # fmt: skip
    """Continue the log from a moment, unchanged and with a change, and compare.

    The behavior of apps comes from the log: their speeds, how long their
    adjustments take, and, if they have ended, how much work they had. WORK and
    SPEED state the source: known, declared by the owner, measured, alike (from
    similar apps), or a guess. Later events that are not decisions (submissions,
    cancellations, nodes) are repeated.

    The line "backtest" is the error of the unchanged simulation against what
    really happened: no result is more accurate than that, and a difference within
    it means nothing. For a fork at the log's end, the backtest starts from an
    earlier moment, with what was known then.

    JSON has backtest, really, unchanged and changed (figures over window_s
    seconds), completion_difference_s (changed minus unchanged) and whether it is
    within_error, apps (each with its basis and its three outcomes), assumed and
    assumptions (as text). Times are UTC nanoseconds, lengths are seconds.

    [bold]Examples[/]

      dorm whatif --from -2h --set theta2=0.3

      dorm whatif --from -2h --set quiet=5s --set quiet_limit=20s

      dorm whatif --from 2026-11-21T09:00 --nodes +4,like=node-1

      dorm whatif second.yaml --edit digits-mlp:n_max=8

      dorm whatif --from 120 --policy static --file incident.dorm -o json

      dorm whatif --nodes -node-2 --horizon 12h --log without.dorm
    """
    moment = parse_moment(begin)
    horizon_s = _horizon(horizon)
    parsed = [parse_nodes(text) for text in nodes or []]
    pairs = _pairs(policy, change)
    others = _assumed(parsed, drain, edit, cancel, specs)

    async def work() -> WhatIf:
        from dorm.cli.changes import settings_at
        from dorm.core.query.assumed import UnknownSetting
        from replay.simulator.forks.whatif import whatif as played

        async with log_of(file, cx) as log:
            assumed = others if not pairs else replace(others, settings=await settings_at(log, moment, pairs))
            with progress_of("reading") as reading, progress_of("simulating") as playing:
                try:
                    return await played(
                        log, moment, assumed,
                        now=time.time_ns() if file is None and moment is None else 0,
                        horizon_s=horizon_s, keep=kept, force=force, reading=reading, playing=playing,
                    )  # fmt: skip
                except UnknownSetting as error:
                    raise Fail.of(error, USAGE) from None

    with solver_prints_elsewhere():
        simulated = await work()
    if output in (Format.json, Format.yaml):
        show_document(simulated, output)
    else:
        _show(simulated, output)


def _horizon(text: str | None) -> float | None:
    from events.errors import code_of
    from events.quantities import duration

    try:
        seconds = None if text is None else duration(text)
    except ValueError as error:
        raise WrongUsage(f"horizon: {error}", code=code_of(error)) from None
    if seconds == 0:
        raise WrongUsage("horizon: 0 s is too short; write 12h, for example", code="usage.horizon.zero")
    return seconds


def _pairs(policy: str | None, change: list[str] | None) -> list[str]:
    """Return all settings as `dorm policy set` takes them.  Raises WrongUsage."""
    given = parse_pairs(change, "setting")
    if policy is None:
        return change or []
    if given.get("policy", policy) != policy:
        raise WrongUsage("--policy and --set policy=… name two policies; give one of them", code="usage.conflict")
    return [f"policy={policy}", *(pair for pair in change or [] if pair.partition("=")[0] != "policy")]


def _assumed(
    nodes: list[Any],
    drain: list[str] | None,
    edit: list[str] | None,
    cancel: list[str] | None,
    specs: list[Path] | None,
) -> Assumed:
    """Return the assumptions except settings.  Raises WrongUsage, and SpecError for a spec file."""

    from dorm.core.query.assumed import Assumed, NewNodes
    from dorm.local.spec_files import load_spec

    return Assumed(
        joins=tuple(node for node in nodes if isinstance(node, NewNodes)),
        removed=tuple(node for node in nodes if isinstance(node, str)),
        drained=tuple(drain or []),
        cancelled=tuple(cancel or []),
        updated=tuple(parse_edit(text) for text in edit or []),
        specs=tuple(load_spec(path) for path in specs or []),
    )


def parse_edit(text: str) -> AppUpdated:
    """Parse `digits-mlp:n_max=8,weight=2`.  Raises WrongUsage."""
    import msgspec

    from events.kinds import AppUpdated

    app, colon, pairs = text.partition(":")
    if not app or not colon or not pairs:
        raise WrongUsage(
            f"edit {text!r}: write APP:n_max=8, or APP:n_min=2,n_max=8,weight=2", code="usage.edit.malformed"
        )
    given = parse_params(pairs.split(","))
    unknown = [key for key in given if key not in ("n_min", "n_max", "weight")]
    if unknown:
        raise WrongUsage(
            f"edit {text!r}: unknown field {unknown[0]}; use n_min, n_max and weight", code="usage.edit.malformed"
        )
    try:
        return msgspec.convert({"app": app, **given, "kind": "AppUpdated"}, AppUpdated)
    except msgspec.ValidationError as error:
        raise WrongUsage(f"edit {text!r}: {error}", code="usage.edit.malformed") from None


# --- for people ---------------------------------------------------------------------------------------------------------


def _show(simulated: WhatIf, output: Format) -> None:
    from replay.simulator.forks.backtest import in_words
    from replay.words import moment

    console.print(Text(f"forked at sequence {simulated.seq}, {moment(simulated.at)}", style="dim"))
    console.print(Text(f"if: {'; '.join(simulated.assumed) or 'nothing is changed'}"))
    console.print(Text(f"backtest: {in_words(simulated.backtest)}"), soft_wrap=False)
    if simulated.backtest is not None and simulated.backtest.far_off:
        console.print(Text("The simulation of what happened is far off; do not rely on this.", style="yellow"))
    console.print()
    courses = [("really", simulated.really), ("unchanged", simulated.unchanged), ("changed", simulated.changed)]
    rows = [_figures(simulated, name, figures) for name, figures in courses if figures is not None]
    show(
        rows,
        [
            ("", "course"), ("COMPLETED", "completed"), ("MEAN COMPLETION", "completion"), ("MEAN WAIT", "wait"),
            ("UTILIZATION", "utilization"), ("FAIRNESS LOSS", "fairness"), ("ADJUSTMENTS", "adjustments"),
            ("TIME LOST", "lost"),
        ],
        Format.table,
    )  # fmt: skip
    if simulated.changed is not None:
        console.print(Text(_verdict(simulated)), soft_wrap=False)
    console.print()
    apps = simulated.apps if output is Format.wide else simulated.apps[:_MOST_APPS]
    shown = {
        heading
        for heading, figures in zip(("REALLY", "CHANGED"), (simulated.really, simulated.changed), strict=True)
        if figures
    }
    left_out = {"REALLY", "CHANGED"} - shown
    if "CHANGED" in left_out:
        left_out.add("DIFFERENCE")
    columns = [column for column in _COLUMNS if column[0] not in left_out]
    show([_row(app, simulated) for app in apps], columns, Format.table)
    if len(apps) < len(simulated.apps):
        console.print(Text(f"and {counted(len(simulated.apps) - len(apps), 'more app')} (-o wide)", style="dim"))
    console.print()
    last = "unchanged" if simulated.changed is None else "changed"
    notes = [
        f"figures are of the {length(simulated.window_s)} after the fork",
        f"WAIT and ADJUSTED are of the {last} run",
        *simulated.assumptions,
    ]
    console.print(Text("; ".join(notes), style="dim"), soft_wrap=False)


_MOST_APPS = 30


def _figures(simulated: WhatIf, course: str, figures: Figures) -> dict[str, Any]:
    return {
        "course": course,
        "completed": figures.completed,
        "completion": _span(figures.mean_completion_s),
        "wait": _span(figures.mean_wait_s),
        "utilization": None
        if figures.utilization is None
        else f"{figures.utilization:.3f} of {simulated.utilization_max}",
        "fairness": None if figures.fairness_loss is None else f"{figures.fairness_loss:.4f}",
        "adjustments": figures.adjustments,
        "lost": None if figures.adjustment_time_share is None else f"{figures.adjustment_time_share:.2%}",
    }


def _verdict(simulated: WhatIf) -> str:
    """Return the change's effect on completion, and whether it exceeds the error."""
    difference_s = simulated.completion_difference_s
    if difference_s is None:
        return "changed − unchanged: no app completes in each of the runs"
    base_s = simulated.unchanged.mean_completion_s
    part = f" ({difference_s / base_s:+.2%})".replace("%", " %").replace("-", "−") if base_s else ""
    text = f"changed − unchanged: mean completion {_signed(difference_s)}{part}"
    if simulated.within_error is None or simulated.backtest is None or simulated.backtest.completion_error_s is None:
        return f"{text}; with no backtest, whether that is more than the error is not known"
    error = length(simulated.backtest.completion_error_s)
    return f"{text}, {'within' if simulated.within_error else 'more than'} the backtest's error (±{error})"


def _signed(seconds: float) -> str:
    return "none" if abs(seconds) < 0.005 else f"{'+' if seconds > 0 else '−'}{length(abs(seconds))}"


def _span(seconds: float | None) -> str | None:
    return None if seconds is None else length(seconds)


def _row(app: WhatIfApp, simulated: WhatIf) -> dict[str, Any]:
    last = app.changed if simulated.changed is not None else app.unchanged
    return {
        "name": app.name,
        "work_from": app.work_from,
        "speed_from": app.speed_from,
        "really": _end(app.really),
        "unchanged": _end(app.unchanged),
        "changed": _end(app.changed),
        "difference": _difference(app),
        "wait": _span(last.wait_s) if last else None,
        "adjusted": last.adjustments if last else None,
    }


def _difference(app: WhatIfApp) -> str | None:
    """Return changed less unchanged; None for an app that did not end in the same way in both."""
    changed, unchanged = app.changed, app.unchanged
    if (
        changed is None
        or unchanged is None
        or changed.how != unchanged.how
        or changed.completion_s is None
        or unchanged.completion_s is None
    ):
        return None
    return _signed(changed.completion_s - unchanged.completion_s)


def _end(outcome: Outcome | None) -> str | None:
    """Return `34 min`, `cancelled after 3 min`."""
    if outcome is None:
        return None
    if outcome.completion_s is None:
        return "not ended"
    after = _span(outcome.completion_s)
    return str(after) if outcome.how == "completed" else f"{outcome.how} after {after}"
