"""`dorm demo`: three nodes, five training apps that contend, and a replay of what happened.

Everything is real: an embedded NATS server, the master, three agents, and NumPy programs that train on handwritten
digits over TCP, in Docker if an engine answers, else as plain processes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import secrets
import shlex
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from dorm.cli.command import standalone
from dorm.cli.errors import INTERRUPTED, Fail
from dorm.cli.events import in_words
from dorm.cli.output import ago, cell, console, counted, table
from dorm.cli.program_logs import Verbose, configure
from dorm.cli.signals import first_of, stops
from dorm.cli.up import RuntimeChoice
from dorm.core.costs import cost_s
from dorm.core.query.views import app_rows, sizes, summary
from dorm.local.home import home
from dorm.local.spec_files import load_document, load_spec
from events.addresses import family_of, loopback
from events.kinds import Round
from events.positions import logged
from events.runtimes import RUNTIMES, WITHOUT_ENGINE, WantedRuntime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from dorm.core.state import App, State
    from dorm.local.cluster import LocalCluster
    from events.kinds import Event
    from events.spec import CheckedSpec

_CAPACITY = {"cpu": 1000, "memory": 2 * 2**30}
SAMPLES = Path(__file__).parents[2] / "compose" / "apps"
_ARRIVALS: tuple[tuple[float, str, int, dict[str, Any]], ...] = (
    (0.0, "logistic.yaml", 170, {}),
    (3.0, "elastic_mlp.yaml", 30, {}),
    (5.0, "mlp.yaml", 110, {}),
    (9.0, "factorize.yaml", 90, {}),
    (15.0, "logistic.yaml", 120, {"name": "digits-urgent", "weight": 3}),
)
"""Seconds after the start, spec file, steps (or epochs) instead of those in the file, and changes to it: less than the
samples do by themselves, so that everything is over within a minute.  The elastic app is there while others come, so it is
resized live."""
_WORK = ("--steps", "--epochs")
_LONGEST_S = 240.0
_PORTS = range(22_000, 26_800, 300)
"""First ports of the ranges of concurrent demos, one each."""
_SHOWN = ("AppAccepted", "Resized", "GenerationReleased", "AppCompleted", "AppFailed", "GenerationFailed", "NodeJoined")


@standalone
async def demo(
    runtime: Annotated[RuntimeChoice, typer.Option(help="auto uses Docker if an engine answers.")] = RuntimeChoice.auto,
    docker: Annotated[str | None, typer.Option(envvar="DOCKER_HOST", help="Docker engine.")] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print one line for each event instead of a live table.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Watch five training apps share three nodes. It takes a minute and leaves nothing running.

    [bold]Examples[/]

      dorm demo

      dorm demo --runtime process --plain
    """
    configure(verbose, False, quiet_level=logging.ERROR, lasts=False)
    await _demo(runtime, docker, plain or not console.is_terminal)


async def _demo(runtime: RuntimeChoice, docker: str | None, plain: bool) -> None:
    from dorm.local.cluster import LocalCluster, LocalOptions

    if importlib.util.find_spec("sklearn") is None:
        raise Fail(
            "the demo's apps train on data that scikit-learn ships; install it with "
            f"`{shlex.join([sys.executable, '-m', 'pip', 'install', 'scikit-learn'])}`",
            code="package.missing",
        )
    chosen = await _runtime_with_image(runtime, docker)
    with _own_folder() as data, _own_ports() as ports:
        options = LocalOptions(
            data=data,
            cluster=f"demo-{secrets.token_hex(3)}",
            agents=3,
            capacity=_CAPACITY,
            runtime=chosen,
            docker_url=docker,
            report_interval_s=1.0,
            progress_interval_s=0.5,
            ports=ports,
        )
        cluster = LocalCluster(options)
        try:
            async with cluster:
                await _show_demo(cluster, plain)
        finally:
            await cluster.remove_containers()


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """Create a folder for this run, removed after it."""
    from agents.runtime.removing import delete

    home().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="demo-", dir=home()))
    try:
        yield folder
    finally:
        delete(folder)


@contextlib.contextmanager
def _own_ports() -> Iterator[tuple[int, int]]:
    """Reserve a range that no other demo on this machine has: its last port is held, unused, until this one ends."""
    host = loopback()
    first = os.getpid() % len(_PORTS)
    for low in [*_PORTS[first:], *_PORTS[:first]]:
        with socket.socket(family_of(host)) as guard:
            try:
                guard.bind((host, low + _PORTS.step - 1))
            except OSError:
                continue
            yield low, low + _PORTS.step - 2
            return
    raise Fail(
        f"no ports are free for a demo from {_PORTS.start} to {_PORTS.stop - 1}: {len(_PORTS)} demos run at most",
        code="port.none_free",
    )


async def _show_demo(cluster: LocalCluster, plain: bool) -> None:
    from dorm.local.companions import ApiProcess

    console.print(
        Text(f"3 nodes of 1 core and 2 GiB each, containers as {cluster.runtime_note}; log at {cluster.server.url}")
    )
    began = time.monotonic()
    try:
        async with ApiProcess(cluster.server.url, cluster.options.cluster, cluster.options.data / "api.log", 0) as api:
            console.print(Text(f"dashboard at {api.url} while it runs"))
            with stops() as events:
                interrupted = await first_of(_play(cluster, plain), events.first.wait())
        if interrupted:
            raise Fail("interrupted; everything was stopped", INTERRUPTED, code="interrupted")
        await _show_results(cluster, time.monotonic() - began)
    finally:
        await cluster.stop_now()


async def _runtime_with_image(runtime: RuntimeChoice, docker: str | None) -> WantedRuntime:
    """Return Docker once the sample apps' image exists; else processes, reporting why."""
    from compose.image import ImageUnavailable, ensure_samples_image
    from dorm.local.runtimes import choose_runtime

    choice = await choose_runtime(runtime.value, docker)
    if not RUNTIMES[choice.name].images:
        return choice.name
    try:
        with console.status("looking for the sample apps' image") as status:
            built = await ensure_samples_image(docker, progress=lambda step: status.update(Text(step)))
    except ImageUnavailable as error:
        if runtime is not RuntimeChoice.auto:
            raise Fail(f"the sample apps' image can't be built: {error}", code=error.code) from None
        console.print(Text(f"using {RUNTIMES[WITHOUT_ENGINE].words}: the sample apps' image can't be built ({error})"))
        return WITHOUT_ENGINE
    console.print(Text(f"image {built.ref} ({built.origin})"))
    return choice.name


async def _play(cluster: LocalCluster, plain: bool) -> None:
    """Submit the apps one after the other and show what happens until all have ended."""
    async with asyncio.timeout(_LONGEST_S), asyncio.TaskGroup() as tasks:
        submitting = tasks.create_task(_submit(cluster))
        failing = tasks.create_task(cluster.failed())
        try:
            await (_print_events(cluster, submitting) if plain else _draw(cluster, submitting))
        finally:
            failing.cancel()


async def _submit(cluster: LocalCluster) -> None:
    began = asyncio.get_running_loop().time()
    for after, file, work, changes in _ARRIVALS:
        await asyncio.sleep(max(0.0, began + after - asyncio.get_running_loop().time()))
        spec = await asyncio.to_thread(_spec, SAMPLES / file, work, changes)
        await cluster.client.submit(spec, answer_timeout=30.0)


def _spec(path: Path, work: int, changes: dict[str, Any]) -> CheckedSpec:
    """Return the sample with this much work in its commands."""
    document = load_document(path)
    commands = {field: list(document[field]) for field in ("command", "resume") if field in document}
    for command in commands.values():
        for option in _WORK:
            if option in command:
                command[command.index(option) + 1] = str(work)
    return load_spec(path, {**commands, **changes})


def _all_ended(state: State, submitting: asyncio.Task[None]) -> bool:
    return submitting.done() and all(app.ended for app in state.apps.values())


async def _print_events(cluster: LocalCluster, submitting: asyncio.Task[None]) -> None:
    """Print one line for each event of interest."""
    first = 0
    async for record in cluster.client.records(follow=True):
        first = first or record.time
        for event in (each.event for each in logged(record)):
            if type(event).__name__ in _SHOWN:
                seconds = (record.time - first) / 1e9
                console.print(
                    Text(f"{seconds:6.1f}s  {type(event).__name__:<19} {in_words(event)}"), soft_wrap=True
                )  # fmt: skip
        if _all_ended(await cluster.client.state(), submitting):
            return


async def _draw(cluster: LocalCluster, submitting: asyncio.Task[None]) -> None:
    """Draw a live table."""
    recent: list[Text] = []
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        async for state, events in cluster.client.watch():
            for event in events:
                _remember(recent, event)
            live.update(_picture(state, recent))
            if _all_ended(state, submitting):
                return


def _remember(recent: list[Text], event: Event) -> None:
    facts = event.events if isinstance(event, Round) else [event]
    recent.extend(
        Text(f"{type(fact).__name__:<19} {in_words(fact)}"[: console.width - 2])
        for fact in facts
        if type(fact).__name__ in _SHOWN
    )
    del recent[:-6]


def _picture(state: State, recent: list[Text]) -> RenderableType:
    rows = []
    nodes = sorted(state.nodes)
    for row in app_rows(state, state.time):
        app = state.apps[row.id]
        placed = sizes(app)
        where = {f"on:{node}": "█" * placed.get(node, 0) or "·" for node in nodes}
        rows.append(
            {
                "name": row.name, "phase": row.phase, "size": f"{row.containers}/{row.n_max}", **where,
                "step": row.step, "loss": row.loss, "rate": row.samples_per_s, "adjustments": row.adjustments,
                "age": ago(row.age_s),
            }
        )  # fmt: skip
    columns = [("APP", "name"), ("PHASE", "phase"), ("SIZE", "size")]
    columns += [(node.upper(), f"on:{node}") for node in nodes]
    columns += [("STEP", "step"), ("LOSS", "loss"), ("SAMPLES/S", "rate"), ("RESIZED", "adjustments"), ("AGE", "age")]
    total = summary(state)
    line = Text(
        f"\nutilization {total.utilization:.2f} of {total.utilization_max}   fairness loss {total.fairness_loss:.2f}   "
        f"decisions {total.decisions}   log at {total.seq} records\n"
    )
    return Group(table(rows, columns), line, *recent)


def _paused(app: App) -> str:
    """Return the cost of the app's adjustments, by kind: those that it was live through, and restarts."""
    text = ""
    for live, kind in ((True, "live"), (False, "by restart")):
        costs = [cost for record in app.history if record.live == live and (cost := cost_s(record)) is not None]
        if costs:
            middle = statistics.median(costs)
            text += f" ({kind}: {f'{1000 * middle:.0f} ms' if middle < 1 else f'{middle:.1f} s'} each)"
    return text


async def _show_results(cluster: LocalCluster, seconds: float) -> None:
    """Show results, and prove them from the log: it is folded and decided again."""
    from replay.audit.audit import verify
    from replay.export.export import export

    state = await cluster.client.state()
    exported, archive = cluster.options.data / "demo.dorm", home() / "demo.dorm"
    await export(cluster.client.log, exported)
    await asyncio.to_thread(exported.replace, archive)  # whole at any time, whichever demo ended last
    await cluster.stop()
    report = await verify(cluster.client.log)
    console.print()
    failed = False
    for row in app_rows(state, time.time_ns()):
        failed |= row.phase != "completed"
        line = Text(f"{row.name:<18}").append(cell(row.phase))
        loss = "none" if row.loss is None else f"{row.loss:.10f}"
        adjustments = counted(row.adjustments, "adjustment")
        adjustments += _paused(state.apps[row.id])
        console.print(line.append(f"  final loss {loss} at step {row.step}, {adjustments}, {row.age_s:.1f} s"))
    total = summary(state)
    adjustments, decisions = counted(total.adjustments, "adjustment"), counted(total.decisions, "decision")
    console.print(Text(f"{adjustments} and {decisions} in {seconds:.0f} s"))
    if report.divergence is not None or failed:
        raise Fail(
            "the replay differs: " + str(report.divergence) if report.divergence else "an app did not complete",
            code="replay.differs" if report.divergence else "app.failed",
        )
    console.print(
        Text(
            f"the log was replayed and gave the same state and the same decisions "
            f"({report.events} events, {report.decisions_checked} decisions solved again)"
        )
    )
    console.print(Text("\nthe run is kept; look at it again with"))
    for command in (
        f"dorm replay timeline --file {archive} -o demo.html   # partitions over time, as a page",
        f"dorm story digits-urgent --file {archive}   # what happened to one app, and why",
        f"dorm events --file {archive}   # everything",
        f"dorm replay verify --file {archive}   # make every decision again",
    ):
        console.print(Text(f"  {command}", style="dim"), soft_wrap=True)
