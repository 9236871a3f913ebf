"""`dorm top APP`: usage of the containers of one app, rank by rank."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dorm.cli.output import ago, cell, console
from dorm.cli.terminal import one_line
from dorm.client.finding import find_app
from dorm.core.query.views import app_row
from events.log.records import LogError
from events.quantities import CPU, MEMORY, SECOND, humanize

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from dorm.api.reports import Report, Reports, Used
    from dorm.client.client import Client
    from dorm.core.progress import Newest
    from dorm.core.state import App, State

    Keys = Callable[[Callable[[str], None]], AbstractContextManager[None]]

_LOOK_S: Final = 1.0
_AT_ONCE: Final = 16
"""Nodes whose heartbeats are read at a time."""


async def print_app(connected: Client, name: str) -> None:
    """Print one picture.  Raises NotFound."""
    from dorm.api.reports import Reports

    state = await connected.state()
    found = find_app(state, name, connected.user)
    reports = await _reports(Reports(connected.bus, connected.cluster), state, found)
    console.print(picture(found, reports, await connected.reported(found.id), max(state.time, time.time_ns())))


async def watch_app(connected: Client, name: str, keys: Keys) -> None:
    """Draw pictures in a terminal until q; `keys` passes on the typed keys.  Raises NotFound."""
    from dorm.api.reports import Reports

    kept = Reports(connected.bus, connected.cluster)
    done = asyncio.Event()
    id = find_app(await connected.state(), name, connected.user).id
    reports: dict[str, Report] = {}
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        keys(lambda key: done.set() if key == "q" else None),
    ):
        while not done.is_set():
            with contextlib.suppress(LogError):  # An outage is reported on stderr; the ages on the screen grow.
                state = await connected.state()
                if id in state.apps:
                    found, newest = state.apps[id], await connected.reported(id)
                    reports = await _reports(kept, state, found)
                    live.update(picture(found, reports, newest, max(state.time, time.time_ns())), refresh=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await done.wait()


async def _reports(kept: Reports, state: State, app: App) -> dict[str, Report]:
    """Return the last report of each node that has a container of the app."""
    generation = app.generations.get(app.generation)
    containers = list(generation.all_containers()) if generation is not None and not app.ended else []
    started = {(app.id, app.generation, one.slot): one.started_at for one in containers}
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(node: str) -> tuple[str, Report | None]:
        async with room:
            return node, await kept.of(node, state.nodes[node].identity, started)

    nodes = dict.fromkeys(one.node for one in containers if one.node in state.nodes)
    return {node: report for node, report in await asyncio.gather(*map(ask, nodes)) if report is not None}


def picture(app: App, reports: dict[str, Report], newest: Newest, now: int) -> Group:
    """Return the app's lines.  `now` is UTC ns."""
    row = app_row(app, now, newest)
    head = Text(one_line(app.name), style="bold").append(f"  {app.id} of {one_line(app.user)}  ", style="not bold")
    head.append(cell(row.phase))
    progress = [f"generation {row.generation}", f"step {row.step}"]
    progress += (
        [f"loss {row.loss:.6g}" if row.loss is not None else f"loss {row.loss_is}"]
        if row.loss is not None or row.loss_is
        else []
    )
    progress += [f"{row.samples_per_s:.4g} samples/s"] if row.samples_per_s is not None else []
    progress += (
        [f"reported {ago(row.progress_age_s)} ago"] if row.progress_age_s is not None else ["no progress reported"]
    )
    lines: list[Any] = [head, Text("  ".join(progress))]
    if row.note:
        lines.append(Text(one_line(row.note), style="yellow"))
    return Group(*lines, Text(), _table(app, reports, now))


def _table(app: App, reports: dict[str, Report], now: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("RANK", "SLOT", "NODE", "STATE", "CPU", "MEMORY", "AGE"):
        table.add_column(
            heading, justify="right" if heading in ("RANK", "SLOT", "CPU", "MEMORY", "AGE") else "left", no_wrap=True
        )
    generation = app.generations.get(app.generation)
    if generation is None:
        return table
    ranks = {slot: rank for rank, slot in enumerate(sorted(generation.containers))}
    demand = app.demand
    for one in sorted(generation.all_containers(), key=lambda one: one.slot):
        report = reports.get(one.node) if one.state == "running" else None
        used = _used(report, app, one.slot)
        table.add_row(
            str(ranks.get(one.slot, "-")),
            str(one.slot),
            one_line(one.node),
            one.state,
            _of(CPU, used.cpu if used is not None else None, demand.get(CPU)),
            _of(MEMORY, used.memory if used is not None else None, demand.get(MEMORY)),
            ago(max(0, now - report.time) / SECOND) if report is not None and used is not None else "-",
        )
    return table


def _used(report: Report | None, app: App, slot: int) -> Used | None:
    if report is None:
        return None
    return next(
        (one for one in report.containers if (one.app, one.generation, one.slot) == (app.id, app.generation, slot)),
        None,
    )


def _of(name: str, used: int | None, demand: int | None) -> str:
    """Return `0.42 of 1 cores`, `-` while nothing is known."""
    if used is None:
        return "-"
    amount = f"{used / 1000:.2f}" if name == CPU else humanize(name, used)
    if not demand:
        return f"{amount} cores" if name == CPU else amount
    return f"{amount} of {humanize(name, demand)}"
