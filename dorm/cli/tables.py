"""Apps, sweeps, nodes and one app in full as tables: the same for now (`ps`, `nodes`, `describe`) as for any moment
(`dorm state`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from dorm.cli.connect import complete
from dorm.cli.output import Format, ago, cell, console, counted, show
from dorm.core.failures import SHARED
from events.instants import shown
from events.quantities import CPU, MEMORY, humanize
from events.spec.groups import as_text
from events.spec.notify import ON_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dorm.core.query.sweeps import SweepRow
    from dorm.core.query.views import AppRow, NodeRow
    from dorm.core.state import State


# --- apps and nodes ---------------------------------------------------------------------------------------------------

_APPS = [
    ("NAME", "name"), ("PHASE", "phase"), ("SIZE", "size"), ("NODES", "nodes"), ("STEP", "step"), ("LOSS", "loss"),
    ("PROGRESS", "progress"), ("RESIZED", "adjustments"), ("AGE", "age"),
]  # fmt: skip
_NOTE = ("NOTE", "note")
_APPS_WIDE = [
    ("ID", "id"),
    ("USER", "user"),
    ("GEN", "generation"),
    ("RATE", "samples_per_s"),
    ("FAILURES", "failures"),
]
_NODES = [
    ("NODE", "name"), ("CONDITION", "condition"), ("ADDRESS", "address"), ("RUNTIME", "runtime"),
    ("CONTAINERS", "containers"),
]  # fmt: skip
_NODES_WIDE = [("VOLUMES", "volumes"), ("LABELS", "labels"), ("CHECKPOINTS", "checkpoints")]
_CONTAINERS = [
    ("SLOT", "slot"), ("NODE", "node"), ("STATE", "state"), ("ADDRESS", "address"), ("PORT", "port"),
    ("EXIT", "exit_code"), ("REASON", "reason"), ("NOTE", "message"),
]  # fmt: skip
_FAILED_HERE = [("APP", "name"), ("WHEN", "when"), ("CAUSE", "failure"), ("TIMES", "tries"), ("WHY", "why")]
_ADJUSTMENTS = [
    ("FROM", "from_generation"), ("TO", "to_generation"), ("SIZE", "containers"), ("STOP s", "stop_s"),
    ("WAIT s", "wait_s"), ("START s", "start_s"), ("WORK s", "work_s"), ("TOTAL s", "total_s"), ("CHECKPOINT", "checkpoint"),
    ("LOST", "lost_steps"), ("KILLED", "killed"),
]  # fmt: skip


def show_apps(rows: Sequence[AppRow], output: Format, sweeps: Sequence[SweepRow] = ()) -> None:
    """Print apps, and sweeps as one line each."""
    plain = [
        {
            **row,
            "size": f"{row['containers']}/{row['n_max']}",
            "age": ago(row["age_s"]),
            "step": reported_step(row["step"], row["loss"], row["loss_is"]),
            "loss": row["loss_is"] or row["loss"],
            "progress": f"{ago(row['progress_age_s'])} ago" if row["progress_age_s"] is not None else None,
        }
        for row in map(msgspec.to_builtins, rows)
    ]
    plain += [
        {
            "name": row.name, "user": row.user, "phase": next(iter(row.phases)), "size": row.containers,
            "age": ago(row.age_s), "note": f"sweep of {row.count}: {phases_of(row)}" + (f" ({row.waits})" if row.waits else ""),
        }
        for row in sweeps
    ]  # fmt: skip
    show(plain, _APPS, output, wide=_APPS_WIDE, note=_NOTE)


def reported_step(step: int, loss: float | None, loss_is: str) -> int | None:
    """Return the step of an app, None if it has reported no progress."""
    return step if step or loss_is or loss is not None else None


def phases_of(row: SweepRow) -> str:
    """Return how many apps of a sweep are in which phase: `4 running, 12 waiting`."""
    return ", ".join(f"{count} {phase}" for phase, count in row.phases.items())


def show_nodes(rows: Sequence[NodeRow], output: Format) -> None:
    """Print nodes, with a column for each resource: the reserved part of the capacity."""
    resources = dict.fromkeys(name for row in rows for name in row.capacity)
    columns = [*_NODES, *((name.upper(), f"of {name}") for name in resources)]
    plain = [_with_shares(msgspec.to_builtins(row)) for row in rows]
    show(plain, columns, output, wide=_NODES_WIDE, note=_NOTE)


def show_node(d: dict[str, Any], output: Format) -> None:
    """Print one node in full; `d` is what `dorm.core.query.views.describe_node` returns."""
    resources = [(name.upper(), f"of {name}") for name in d["capacity"]]
    show([_with_shares(d)], [*_NODES, *resources], output, wide=_NODES_WIDE, note=_NOTE)
    if d["trouble"]:
        console.print(Text(d["trouble"]))
    failed = [{**failure, "when": when(failure["at"])} for failure in d["failed"]]
    _titled("apps that failed here lately", failed, _FAILED_HERE)
    show_containers(d["containers_now"], of_apps=True)


def show_pause(state: State) -> None:
    """Print that scheduling is paused, if it is."""
    from dorm.core.query.views import paused_text

    if text := paused_text(state):
        console.print(Text(f"\n{text}; nothing new is decided until `dorm resume`"))


def _with_shares(row: dict[str, Any]) -> dict[str, Any]:
    shares = {f"of {name}": share(name, row["used"][name], amount) for name, amount in row["capacity"].items()}
    return {**row, **shares}


def share(name: str, used: int, of: int) -> str:
    """Return `1.5/4`, for a column named like the resource."""
    return f"{_bare(name, used)}/{_bare(name, of)}"


def _bare(name: str, amount: int) -> str:
    """Format an amount, without the unit if the heading implies it."""
    return f"{amount / 1000:g}" if name == CPU else humanize(name, amount) if name == MEMORY else str(amount)


def show_containers(rows: Sequence[dict[str, Any]], *, of_apps: bool = False) -> None:
    """Print containers; `of_apps` adds the app and generation of each: for everything on a node."""
    owner = [("APP", "app"), ("GEN", "generation")] if of_apps else []
    _titled("containers", rows, [*owner, *_CONTAINERS])


def show_app(d: dict[str, Any]) -> None:
    """Print one app in full; `d` is what `dorm.core.query.views.describe` returns."""
    lines = [
        ("id", d["id"]), ("user", d["user"]), ("phase", d["phase"]), ("note", d["note"]),
        ("containers", f"{d['containers']} on {counted(d['nodes'], 'node')} (n_min {d['n_min']}, n_max {d['n_max']}, weight {d['weight']:g})"),
        ("sweep", _sweep(d["spec"].get("group"))), ("notify", _notify(d["spec"].get("notify"))),
        ("of each", ", ".join(d["demand"].values())), ("require", " ".join(d["require"].splitlines())),
        ("workdir", _workdir(d["workdir"])), ("environment", d["environment"]),
        ("volumes", ", ".join(f"{name} ({how})" for name, how in d["volumes"].items())),
        ("placement", d["placement"]), ("gang", f"{d['gang']}, each whole on one node" if d["gang"] > 1 else ""),
        ("generation", d["generation"]), ("revision", _revision(d)), ("elastic", _elastic(d)), ("resizable", _resizable(d)),
        ("progress", _progress(d)), ("skipped", _skipped(d["skipped_lines"])),
        ("checkpoint", "none" if d["checkpoint"] is None else f"step {d['checkpoint']}"),
        ("doubtful", _doubt(d["doubt"])),
        ("age", ago(d["age_s"])), ("served", f"{d['served_s'] / 3600:.2f} container-hours"), ("failures", _failures(d)), ("failed on", _failed_on(d["failed_on"])), ("avoids", d["avoids"]), ("hold", _hold(d["hold"])), ("runtime", _runtime(d["runtime"])), ("held", d["held"]),
        ("asked", d["asked"]), ("batch", _batch(d["batch"])), ("plan", _plan(d["plan"])), ("policy", _policy_failure(d["policy_failure"])),
        ("adjustments", _adjusted(d)),
        ("kept until", when(d["kept_until"]) if d["kept_until"] else ""),
    ]  # fmt: skip
    console.print(Text(d["name"], style="bold"))
    for label, value in lines:
        if value != "":
            console.print(Text(f"  {label:<12}").append(cell(value)))
    show_containers(d["containers_now"])
    done = d["adjustments_done"]
    live = [("PAUSE s", "pause_s")] if any(row["live"] for row in done) else []
    _titled("adjustments", [_in_seconds(row) for row in done], [*_ADJUSTMENTS, *live])


def _sweep(group: dict[str, Any] | None) -> str:
    """Return `lr, 3 of 20: seed=2` for an app of a sweep."""
    if not group:
        return ""
    parameters = ", ".join(f"{name}={as_text(value)}" for name, value in group.get("parameters", {}).items())
    place = f"{group['name']}, {group.get('index', 0) + 1} of {group.get('count', 1)}"
    return f"{place}: {parameters}" if parameters else place


def _notify(notify: dict[str, Any] | None) -> str:
    """Return the URL that is called about it, and the events."""
    if not notify:
        return ""
    return f"{notify['url']} when {', '.join(notify.get('on') or ON_DEFAULT)}"


def when(ns: int) -> str:
    """Return `2026-11-24 08:00:00 UTC`."""
    return shown(ns)


def _progress(d: dict[str, Any]) -> str:
    """Return `step 120 of 500, loss 0.31, 950 samples/s, 3s ago`."""
    loss = d["loss_is"] or (f"{d['loss']:.6g}" if d["loss"] is not None else "")
    if not (d["step"] or d["steps"] or loss or d["reports_progress"]):
        return "none reported"
    parts = [
        f"step {d['step']}" + (f" of {d['steps']}" if d["steps"] else ""), f"loss {loss}" if loss else "",
        f"{d['samples_per_s']:.4g} samples/s" if d["samples_per_s"] is not None else "",
        f"{ago(d['progress_age_s'])} ago" if d["progress_age_s"] is not None else "",
    ]  # fmt: skip
    return ", ".join(part for part in parts if part)


def _adjusted(d: dict[str, Any]) -> str:
    """Return `3, 12 steps lost`; the lost work of an app that reports no progress is unknown."""
    if d["adjustments"] and not d["reports_progress"]:
        return f"{d['adjustments']}, lost work unknown: it reports no progress"
    return f"{d['adjustments']}, {d['lost_steps']} steps lost" if d["adjustments"] or d["lost_steps"] else "0"


def _resizable(d: dict[str, Any]) -> str:
    """Return `auto`, and why it is not resized now."""
    return f"{d['resizable']}: {d['kept_whole']}" if d["kept_whole"] else str(d["resizable"])


def _revision(d: dict[str, Any]) -> str:
    """Return `3, of image and env by ann; generation 4 runs with 2`, and the next step; "" for what was submitted."""
    parts = []
    if d["revisions"]:
        last = d["revisions"][-1]
        parts.append(f"{last['number']}, of {', '.join(last['changed'])} by {last['by']}")
        running = d["revision_running"]
        if d["next_spec"] is not None and running is not None:
            parts.append(f"generation {d['generation']} runs with revision {running} until it is restarted")
    if d["restart"] is not None:
        fresh = " without its checkpoint" if d["restart"]["fresh"] else ""
        parts.append(f"{d['restart']['by']} requested a restart{fresh}")
    return "; ".join(parts)


def _doubt(doubt: dict[str, Any] | None) -> str:
    """Return why the checkpoint may be incomplete, and what to do."""
    return "; ".join(part for part in (doubt["text"], doubt["advice"]) if part) if doubt else ""


def _skipped(skipped: dict[str, Any] | None) -> str:
    """Return what of the progress file could not be used."""
    if not skipped:
        return ""
    lines = counted(skipped["lines"], "line")
    return (
        f"{lines} of slot {skipped['slot']}'s progress file could not be used, "
        f"first {skipped['example']!r}: {skipped['reason']}"
    )


def _workdir(workdir: dict[str, Any] | None) -> str:
    """Return `3f2a91c04b7e: 200 files, 1.2 MiB, commit 9c1f03e with changes` for an app that ships a folder."""
    if not workdir:
        return ""
    changes = " with changes" if workdir["changed"] else ""
    commit = f", commit {workdir['commit'][:12]}{changes}" if workdir["commit"] else ""
    return f"{workdir['hash'][:12]}: {counted(workdir['files'], 'file')}, {humanize(MEMORY, workdir['bytes'])}{commit}"


def _batch(batch: dict[str, Any] | None) -> str:
    """Return `144 of 48 to 1200: with a noise of …` for an app that accepts several batch sizes."""
    return f"{batch['now']} of {batch['least']} to {batch['most']}: {batch['why']}" if batch else ""


def _hold(hold: dict[str, Any] | None) -> str:
    """Return `by ann since 2026-11-21 12:00:00 UTC: wrong data; `dorm release` ends it`."""
    if not hold:
        return ""
    from replay.words import moment

    who = f"by {'the operator ' if hold['operator'] else ''}{hold['by']} since {moment(hold['at'])}"
    return who + (f": {hold['reason']}" if hold["reason"] else "")


def _runtime(runtime: dict[str, float] | None) -> str:
    """Return `12m of at most 2h`."""
    return f"{ago(runtime['ran_s'])} of at most {ago(runtime['max_s'])}" if runtime else ""


def _plan(plan: dict[str, Any] | None) -> str:
    """Return `until 2026-11-21 12:00:00 UTC, made at 118: worth 40 at a cost of 3.2`."""
    if not plan or not plan["slots"]:
        return ""
    from replay.words import moment

    worth = f"worth {plan['worth']:.3g} at a cost of {plan['cost']:.3g}"
    return f"until {moment(plan['slots'][-1]['at'])}, made at {plan['seq']}: {worth}"


def _policy_failure(failure: dict[str, Any] | None) -> str:
    """Return why the policy in force decides nothing at present."""
    if not failure:
        return ""
    reason = " ".join(failure["reason"].split())
    return f"{failure['policy']} gives no usable answer, so all apps keep what they have: {reason} ({failure['code']})"


def _elastic(d: dict[str, Any]) -> str:
    """Return `live, membership 3, epoch 12` for an app that is resized while it runs."""
    if not d["elastic"]:
        return ""
    epoch = f", epoch {d['epoch']}" if d["epoch"] else ""
    return f"{d['elastic']}, membership {d['membership'] or '-'}{epoch}"


def _failures(d: dict[str, Any]) -> str:
    """Return `7 (retries: 1 of 3, out_of_memory 2 of 2)`: all failures, and those that count since it last worked for
    long.  The failure that ended an app costs no retry."""
    failures = d["failures"] + (d["phase"] == "failed" and d["generation"] > 0)
    used = [f"{'' if cause == SHARED else f'{cause} '}{count}" for cause, count in d["retries_used"].items()]
    return f"{failures} (retries: {', '.join(used)})" if used else str(failures)


def _failed_on(pairs: Sequence[dict[str, Any]]) -> str:
    """Return `node-1 at 2026-11-21 12:00:00 UTC (no such file), node-2 …`: where it failed lately at its start."""
    named = []
    for pair in pairs:
        times = f", {pair['tries']} times" if pair["tries"] > 1 else ""
        why = f" ({pair['why']})" if pair["why"] else ""
        named.append(f"{pair['node']} at {when(pair['at'])}{times}{why}")
    return ", ".join(named)


def _in_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:.3f}" if name.endswith("_s") and value is not None else value for name, value in row.items()}


def _titled(title: str, rows: Sequence[dict[str, Any]], columns: list[tuple[str, str]]) -> None:
    if rows:
        console.print(Text(f"\n{title}", style="bold"))
        show(rows, columns, Format.table)


# --- sweeps -----------------------------------------------------------------------------------------------------------

SWEEPS = [
    ("SWEEP", "name"), ("APPS", "apps"), ("PHASES", "said"), ("AT ONCE", "limit"), ("CONTAINERS", "containers"), ("AGE", "age"),
]  # fmt: skip


def sweep_lines(rows: Iterable[SweepRow]) -> list[dict[str, Any]]:
    """Return the cells for the columns of `SWEEPS`."""
    return [
        {
            **msgspec.to_builtins(row),
            "apps": str(row.count) if row.submitted == row.count else f"{row.submitted}/{row.count}",
            "said": phases_of(row),
            "limit": row.parallel or None,
            "age": ago(row.age_s),
        }
        for row in rows
    ]


def complete_sweep(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of sweeps for tab completion."""
    from dorm.core.query.sweeps import sweeps

    return complete(ctx, incomplete, lambda state: [name for _, name in sweeps(state)])


def with_parameters(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose `parameters` are columns of their own, before the others; a parameter with the name of another
    column becomes `param.NAME`."""
    rest = {name: value for name, value in row.items() if name != "parameters"}
    return {(f"param.{name}" if name in rest else name): value for name, value in row["parameters"].items()} | rest


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of apps and sweeps for tab completion."""
    from dorm.core.query.sweeps import sweeps

    def names(state: State) -> list[str]:
        return [*(app.name for app in state.apps.values()), *(name for _, name in sweeps(state))]

    return complete(ctx, incomplete, names)


def grouped(
    state: State, rows: Sequence[AppRow], names: Sequence[str], user: str, *, each: bool
) -> tuple[list[AppRow], list[SweepRow]]:
    """Return the lines of `dorm ps`: with names, those of these apps, and of the apps of these sweeps, also of ended ones; with
    `each`, all apps; else the apps of no sweep, and each sweep with apps that have not ended.  Raises NotFound."""
    from dorm.client.finding import find_app
    from dorm.client.sweeps import find_sweep, is_sweep
    from dorm.core.query.sweeps import sweep_row, sweeps
    from dorm.core.query.views import app_row

    now = time.time_ns()
    if names:
        shown = {row.id: row for row in rows}
        named = {
            app.id: app
            for name in names
            for app in (find_sweep(state, name, user) if is_sweep(state, name, user) else [find_app(state, name, user)])
        }
        return [shown.get(app.id) or app_row(app, now) for app in named.values()], []
    if each:
        return list(rows), []
    live = [apps for apps in sweeps(state).values() if not all(app.ended for app in apps)]
    of = {app.id for apps in live for app in apps}
    return [row for row in rows if row.id not in of], [sweep_row(apps, now) for apps in live]


NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[APP|SWEEP...]",
        help="List only these apps, and the apps of these sweeps.",
        autocompletion=complete_name,
        show_default=False,
    ),
]
SweepName = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of the sweep.", autocompletion=complete_sweep)]
