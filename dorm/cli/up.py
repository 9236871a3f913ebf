"""`dorm up`: a whole cluster on this machine, kept running, its data kept between runs.

The first Ctrl-C lets every app save a checkpoint, the second stops everything at once.  Signals are handled from the start,
so that no server is left behind whenever one comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import standalone
from dorm.cli.errors import INTERRUPTED, Fail, WrongUsage
from dorm.cli.master import AcceptLog
from dorm.cli.options import (
    Archives,
    Keep,
    MetricsOfUp,
    RotateAge,
    RotateSize,
    metrics_address,
    rotation_settings,
    seconds_of,
)
from dorm.cli.output import console, progress_console
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.settings import (
    VolumeOption,
    complete_policy,
    load_cluster_file,
    parse_capacity,
    parse_params,
    volumes_of_option,
)
from dorm.cli.signals import Stops, exit_despite_threads, first_of, receives_ctrl_c, stops
from dorm.cli.webhooks import networks
from dorm.local.home import DEFAULT_CLUSTER, Running, forget_running, home, write_running
from events.addresses import loopback
from events.kinds import PolicyChanged
from events.quantities import humanize
from events.runtimes import RUNTIMES
from events.runtimes import RuntimeChoice as RuntimeChoice

if TYPE_CHECKING:
    from dorm.local.cluster import LocalCluster, LocalOptions, Starting
    from dorm.local.companions import ApiProcess

POLICY = "dorm-speed"
"""The policy of a new cluster, unless another one is named."""
_API_PORT = 4280
"""The port that `dorm serve` uses."""


@standalone
async def up(
    agents: Annotated[
        int | None, typer.Option(min=1, max=100, help="Number of nodes to run on this machine; default: 1.")
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(
            help="Resources of each node, such as cpu=4,memory=8GiB; default: this machine's, divided equally."
        ),
    ] = None,
    runtime: Annotated[RuntimeChoice | None, typer.Option(help="auto uses Docker if an engine answers.")] = None,
    docker: Annotated[
        str | None, typer.Option(envvar="DOCKER_HOST", help="Docker engine; default: this machine's.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(envvar="DORM_DATA", help="Folder for the log, checkpoints and container files.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the NATS server; 0 takes any free one; default 4222.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(envvar="DORM_CLUSTER", help="Name of the cluster.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder of checkpoints; default: in the data folder.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Allocation policy from now on.", autocompletion=complete_policy)
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="Parameter of the policy, such as theta1=0.2; may be repeated.")
    ] = None,
    api: Annotated[
        int | None,
        typer.Option(
            "--api",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port of the API and the dashboard; 0, or a port that is taken, selects a free one; default: 4280.",
        ),
    ] = None,
    no_api: Annotated[bool, typer.Option("--no-api", help="Do not start the API and the dashboard.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="Cluster file with these settings; options on the command line override it.")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Authenticate users and nodes by their keys (`dorm user`, `dorm node`); the default for new clusters.",
        ),
    ] = False,
    open_to_all: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Create an open cluster, without authentication: every program on this machine may do everything.",
        ),
    ] = False,
    trust_apps: Annotated[
        bool,
        typer.Option(
            "--trust-apps",
            help="Without Docker: also run apps of other users, which can read each other's files, and yours.",
        ),
    ] = False,
    volume: VolumeOption = None,
    accept_log: AcceptLog = False,
    archives: Archives = None,
    rotate_size: RotateSize = None,
    rotate_age: RotateAge = None,
    keep: Keep = None,
    metrics: MetricsOfUp = None,
    webhooks_allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NETWORK",
            help="Also deliver webhooks to this network (10.1.0.0/16, loopback, private); may be repeated.",
        ),
    ] = None,
    start_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long the start may take, until everything listens; default: 2m. A busy machine needs more.",
        ),
    ] = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C: NATS server, master, agents.

    The command prints the address once all parts answer: the NATS server, a
    master that leads, the agents, and the dashboard. If that takes long, it says
    what it waits for; after --start-limit, it names the missing part and its log.

    A new cluster authenticates its users. You are its admin: your commands find
    your credentials, and `dorm user add` admits other users. With --open, a new
    cluster does not authenticate its users, and accepts messages from any NATS
    client.

    On the first Ctrl-C, every app saves a checkpoint and stops; the next `dorm
    up` resumes them. A second Ctrl-C stops everything immediately: you lose the
    work since the last checkpoints, but no submissions. The cluster also stops
    gracefully when its terminal is closed; start it with nohup to keep it
    running.

    [bold]Examples[/]

      dorm up

      dorm up --agents 3 --capacity cpu=2,memory=2GiB

      dorm up --open

      dorm up --runtime process --data ./cluster --policy static --param count=2

      dorm up --agents 20 --start-limit 10m
    """
    from agents.config import ConfigError, check_folder
    from dorm.local.cluster import START_LIMIT_S, LocalOptions

    configure(verbose, log_json, quiet_level=logging.WARNING)
    if trust and open_to_all:
        raise WrongUsage(
            "--trust and --open exclude each other; a new cluster knows its users without either", code="usage.conflict"
        )
    networks(webhooks_allow)
    limit_s = seconds_of("--start-limit", start_limit) or START_LIMIT_S
    file = load_cluster_file(config)
    # Parameters belong to one policy: another one on the command line drops those of the file.
    kept = file.params if policy in (None, file.policy) else None
    file = msgspec.structs.replace(file, policy=policy or file.policy, params=parse_params(param) or kept)
    name = cluster or file.cluster or DEFAULT_CLUSTER
    folder_of_checkpoints = checkpoints or (Path(file.checkpoints) if file.checkpoints else None)
    from dorm.metrics.address import Address

    folder = (data or home() / name).absolute()
    try:
        check_folder(folder)
        check_folder(folder_of_checkpoints)
    except ConfigError as error:
        raise WrongUsage.of(error) from None
    place = archives or str(folder / "archives")
    options = LocalOptions(
        data=folder,
        rotation=rotation_settings(place, rotate_size, rotate_age, keep, spool=folder / "rotation"),
        cluster=name,
        port=port if port is not None else (file.port if file.port is not None else 4222),
        agents=agents or file.agents or 1,
        capacity=parse_capacity(capacity) or file.resources(),
        runtime=runtime.value if runtime else file.runtime or "auto",
        docker_url=docker,
        checkpoints=folder_of_checkpoints.absolute() if folder_of_checkpoints else None,
        accept_log=accept_log,
        trust=trust,
        trust_apps=trust_apps,
        metrics=metrics_address(metrics) if metrics is not None else Address(loopback()),
        metrics_else_any_port=metrics is None,
        webhooks=tuple(webhooks_allow or ()),
        server_start_s=limit_s,
        volumes={**file.offered(), **volumes_of_option(volume)},
    )
    api_port = None if no_api else _API_PORT if api is None else api
    await _up(options, open_to_all, file.change(), api_port, limit_s)


async def _up(
    options: LocalOptions, open_to_all: bool, change: PolicyChanged | None, api_port: int | None, limit_s: float
) -> None:
    from dorm.local.cluster import LocalCluster, Starting

    starting = Starting(limit_s, lambda text: progress_console.print(Text(text), soft_wrap=True))
    trust, fresh = await asyncio.to_thread(users_of, options.data, options.trust, open_to_all)
    change = _founding(change) if fresh else change
    cluster = LocalCluster(msgspec.structs.replace(options, trust=trust), starting)
    # Signals are handled from the start: no server is left behind, whenever one comes.
    with stops() as events:
        async with contextlib.AsyncExitStack() as stack:
            if await first_of(starting.within(stack.enter_async_context(cluster)), events.first.wait()):
                raise Fail("stopped before the cluster was up", INTERRUPTED, code="interrupted")
            api = _api(cluster, api_port)
            running = Running(
                url=cluster.server.url,
                cluster=options.cluster,
                pid=os.getpid(),
                data=str(options.data),
                credentials=str(cluster.keys.file_of(cluster.admin)) if cluster.keys is not None else "",
                dashboard=api.url if api is not None else "",
            )
            other = await asyncio.to_thread(write_running, running)
            stack.callback(forget_running, running)
            if change is not None:
                await cluster.client.change_policy(change)
            late: list[Path] = []
            if api is not None:
                await stack.enter_async_context(api)
                await first_of(_answering(starting, cluster, api, late), events.first.wait())
            _print_greeting(cluster, running, other, fresh, late)
            await first_of(cluster.failed(), events.first.wait())
            await _stop(cluster, events)
    if cluster.master.computing.busy:
        exit_despite_threads()


def users_of(data: Path, trust: bool, open_to_all: bool) -> tuple[bool, bool]:
    """Return whether the cluster in this folder knows its users, as a new one does unless it is to be open; and whether it has
    no log yet.  Raises Fail if the folder holds a cluster of the other kind, which it stays."""
    from dorm.local.founding import has_log, knows_users

    server = data / "nats"
    known, fresh = knows_users(server), not has_log(server)
    if known and open_to_all:
        raise Fail(
            f"{data} holds a cluster that authenticates its users, and always will; create an open one in another folder with --data",
            code="data.known_cluster",
        )
    if trust and not known and not fresh:
        raise Fail(
            f"{data} holds an open cluster, which cannot authenticate users later; choose another folder with --data",
            code="data.open_cluster",
        )
    return known or (fresh and not open_to_all), fresh


def _api(cluster: LocalCluster, port: int | None) -> ApiProcess | None:
    """Return the process of the API and the dashboard, which is yet to be started; None without a port."""
    from dorm.local.companions import ApiProcess

    if port is None:
        return None
    credentials = cluster.keys.file_of("api") if cluster.keys is not None else None
    name, log = cluster.options.cluster, cluster.options.data / "api.log"
    return ApiProcess(cluster.server.url, name, log, port, credentials=credentials, user=cluster.admin)


async def _answering(starting: Starting, cluster: LocalCluster, api: ApiProcess, late: list[Path]) -> None:
    """Wait until the dashboard answers.  The cluster works without it, so if it takes too long, only its log is added to
    `late`."""
    from dorm.local.cluster import StartTooSlow

    log = cluster.options.data / "api.log"
    starting.awaits("the dashboard", log)
    try:
        await first_of(starting.within(api.answering()), cluster.failed())
    except StartTooSlow:
        late.append(log)


def _founding(change: PolicyChanged | None) -> PolicyChanged:
    """Return the change with which a new cluster starts.

    It gets the policy that serves most clusters best, unless another one is named.  The fold's default stays what it was,
    because logs without a change of policy were decided by it."""
    change = change if change is not None else PolicyChanged()
    return change if change.policy is not None else msgspec.structs.replace(change, policy=POLICY)


def _print_greeting(
    cluster: LocalCluster, running: Running, other: Running | None, fresh: bool, late: list[Path]
) -> None:
    """`late`: the log of the dashboard if it does not answer yet."""
    options = cluster.options
    each = ", ".join(humanize(name, amount) for name, amount in cluster.agents[0].config.capacity.items())
    plural = "s" if options.agents > 1 else ""
    served = (f"  metrics     {cluster.metrics_url}",) if cluster.metrics_url else ()
    for line in (
        f"cluster {options.cluster!r} is up: {options.agents} node{plural} of {each}",
        f"  containers  {cluster.runtime_note}",
        f"  log         {cluster.server.url}",
        f"  data        {options.data}",
        *([f"  dashboard   {_dashboard(cluster, running, late)}"] if running.dashboard else []),
        *served,
        *(_open_to_all(fresh) if cluster.keys is None else []),
        f"run a command with `dorm run {_image_of(cluster)}-- python train.py`, look at it with `dorm ps`;",
        f"{_how_to_stop()} stops everything gracefully",
    ):
        console.print(Text(line), soft_wrap=True)
    if other is not None:
        reach = f"DORM_URL={cluster.server.url} DORM_CLUSTER={options.cluster}"
        if running.credentials:
            reach = f"DORM_CREDENTIALS={running.credentials}"
        console.print(
            Text(f"commands go to the cluster at {other.url}, which runs too; to reach this one:\n  export {reach}")
        )


def _dashboard(cluster: LocalCluster, running: Running, late: list[Path]) -> str:
    if late:
        return f"{running.dashboard} does not answer yet; its log: {late[0]}"
    return running.dashboard if cluster.keys is None else f"{running.dashboard} (`dorm dashboard` opens it)"


def _image_of(cluster: LocalCluster) -> str:
    """Return what `dorm run` needs if containers are made from images."""
    return "" if not RUNTIMES[cluster.runtime_name].images else "--image IMAGE "


def _open_to_all(fresh: bool) -> list[str]:
    """Return what to say about a cluster that knows no users; a cluster that was just requested so needs no such
    line."""
    hint = "" if fresh else "; `dorm up` in a new folder (--data) creates one that authenticates its users"
    return [f"  users       open: every program on this machine may do everything{hint}"]


def _how_to_stop() -> str:
    return "Ctrl-C" if receives_ctrl_c() else f"kill {os.getpid()}"


async def _stop(cluster: LocalCluster, events: Stops) -> None:
    state = await cluster.client.state()
    running = sum(1 for app in state.live_apps() if app.current is not None)
    if running:
        apps = "1 app checkpoints" if running == 1 else f"{running} apps checkpoint"
        console.print(Text(f"\nstopping: {apps} first; {_how_to_stop()} again stops at once"))
    stopping = asyncio.create_task(cluster.stop())
    second = await first_of(_outcome(stopping), events.second.wait())
    if second:
        await cluster.stop_now()
        console.print(Text("stopped at once; the next `dorm up` resumes from the last checkpoints"))
    else:
        console.print(Text("stopped; the next `dorm up` resumes from here"))


async def _outcome(stopping: asyncio.Task[bool]) -> None:
    if not await stopping:
        console.print(
            Text("some containers did not stop in time; they keep running, and the next `dorm up` adopts them")
        )
