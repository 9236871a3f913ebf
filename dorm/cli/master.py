"""`dorm master`: a process that folds the log and decides, with all that runs next to it; `dorm masters`: which one leads."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.options import Archives, Keep, Metrics, RotateAge, RotateSize, metrics_address, rotation_settings
from dorm.cli.output import Format, Output, ago, console, print_table, show_document
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.settings import complete_policy, parse_params, policy_change
from dorm.cli.signals import exit_despite_threads, run_service
from events.log.records import LogError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from dorm.cli.connect import Target
    from dorm.client.client import Client
    from dorm.client.masters import Leader
    from dorm.core.state import State
    from dorm.health.checks import Health
    from dorm.local.companions import ViewsProcess
    from dorm.master.master import Master
    from dorm.metrics.address import Address
    from dorm.metrics.server import SolveTimer
    from events.kinds import PolicyChanged
    from events.log.leadership import Held, Leadership
    from events.nats.connection import Connection


# --- master -----------------------------------------------------------------------------------------------------------

AcceptLog = Annotated[
    bool,
    typer.Option(
        "--accept-log",
        help="Accept the log as it is, although earlier records are missing or changed; use it once, after a loss.",
    ),
]
_LEASE_S = 2.0
_REPLICATED_LEASE_S = 15.0
"""NATS servers take 4 to 6 seconds to elect another leader, which must not depose a healthy master."""


@command(before="policy")
async def master(
    cx: Cluster,
    policy: Annotated[
        str | None, typer.Option(help="Allocation policy from now on.", autocompletion=complete_policy)
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="Parameter of the policy, such as theta1=0.2; may be repeated.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Key that seals the log; created if it does not exist. Default: in the data folder."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this master, to which a random suffix is added; default: this host's name."),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            max=600.0,
            metavar="SECONDS",
            help="Seconds of silence after which another master takes over; default: 2, or 15 if several "
            "servers hold the log.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of NATS servers that hold the log (1, 3 or 5); default: 3 if there are that many.",
        ),
    ] = None,
    accept_log: AcceptLog = False,
    archives: Archives = None,
    rotate_size: RotateSize = None,
    rotate_age: RotateAge = None,
    keep: Keep = None,
    policy_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            envvar="DORM_POLICY_LIMIT",
            help="How long a policy may compute an answer; after that, every app keeps what it has. "
            "Default: 60s for a plug-in, 5m for Dorm's own.",
        ),
    ] = None,
    metrics: Metrics = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Run a master, which folds the log and makes decisions while it leads.

    If there are several masters, one leads. The others follow the log and take
    over immediately when it stops, or when it has been silent for its lease. Apps
    keep running without a master, and the next one continues from the log. A
    master waits for NATS servers that do not answer yet. It stops gracefully on
    Ctrl-C, on SIGTERM, or when its terminal is closed.

    [bold]Examples[/]

      dorm master --url nats://10.0.0.1:4222 --cluster lab

      dorm master --url nats://10.0.0.1,nats://10.0.0.2,nats://10.0.0.3 --lease 10

      dorm master --cluster lab --metrics 0.0.0.0:9475

      dorm master --cluster lab --archives /srv/dorm --rotate-size 10GiB
    """
    from dorm.health.checks import Health
    from dorm.local.announced import BUILD, plugins
    from dorm.local.cluster import lease_apart

    configure(verbose, log_json)
    change = policy_change(policy, parse_params(param) or None)
    identity = _identity(name)
    _limit(policy_limit)
    serve_at = metrics_address(metrics)
    health = Health(BUILD, "the master waits for the NATS servers")
    rotation_settings(archives, rotate_size, rotate_age, keep, spool=Path())  # Refuses wrong values before it connects.

    made: list[Master] = []

    async def work() -> None:
        from dorm.client.client import Client
        from dorm.health.parts import master_checks
        from dorm.health.status import answering_status
        from dorm.local.home import key_file, metrics_file, witness_file
        from dorm.master.computing import LIMIT_S
        from dorm.master.master import Master
        from dorm.master.sealing import open_key
        from dorm.metrics.server import SolveTimer
        from dorm.plugins.limits import limit_s
        from dorm.policies.registry import built_in
        from dorm.rotation.service import open_checked, rotating_while_leading
        from dorm.workdir.keeping import keeping_while_leading
        from events.log.records import until_answered

        target = cx.target().as_process("master")
        if change is not None and target.credentials:
            text = "a master changes no policy where users are known; an operator does, with `dorm policy set`"
            raise Fail(text, USAGE, code="identity.role.too_low")
        cluster_name = target.cluster
        file = key or target.seal_key() or key_file(cluster_name)
        seal_key = await asyncio.to_thread(open_key, file)
        if archives:
            await open_checked(archives, cluster_name)
        connection = await target.connection("dorm-master", create=True, replicas=replicas, patient=True)
        stack, timer = contextlib.AsyncExitStack(), SolveTimer()
        rotation = rotation_settings(archives, rotate_size, rotate_age, keep, spool=file.parent / "rotation")
        try:
            client = Client(connection.log, connection.bus, cluster_name)
            first = change if change is None or change.policy is None or built_in(change.policy) else None
            if first is not None:
                await until_answered(lambda: client.change_policy(first), "changing the policy")
            await _check_copies(connection)
            replicated = await until_answered(connection.leadership.replicas, "looking up the lease of the masters") > 1
            running = Master(
                connection.log,
                connection.bus,
                cluster_name,
                name=identity,
                clock=time.time_ns,
                build=BUILD,
                key=seal_key,
                leadership=connection.leadership,
                apart=lease_apart(lambda: target.connection("dorm-lease", patient=True), connection),
                lease_s=lease or (_REPLICATED_LEASE_S if replicated else _LEASE_S),
                witness=witness_file(file),
                accept_log=accept_log,
                plugins=plugins,
                solve=timer,
                policy_limit_s=limit_s(LIMIT_S),
            )
            made.append(running)
            health.watch(master_checks(running, connection.log))
            apart = await target.connection("dorm-rotation", patient=True)
            stack.push_async_callback(apart.close)
            await stack.enter_async_context(rotating_while_leading(running, apart, rotation, seal_key))
            await stack.enter_async_context(keeping_while_leading(running, connection.log.files))
            answering = answering_status(
                connection.bus,
                cluster_name,
                running,
                connection.log,
                build=BUILD,
                clock=time.time_ns,
                folders=[file.parent],
            )
            await stack.enter_async_context(answering)
            if target.credentials:
                await stack.enter_async_context(_views(target, file, lambda: running.state))
            if serve_at is not None:
                await stack.enter_async_context(
                    _metrics(connection, running, timer, serve_at, metrics_file(file), health)
                )
            if change is None or first is not None:
                await running.run()
            else:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_plug_in(client, running, change))
                    await running.run()
        finally:
            await stack.aclose()
            await connection.close()

    await run_service(work(), health)
    if any(each.computing.busy for each in made):
        exit_despite_threads()


def _views(target: Target, key: Path, state: Callable[[], State]) -> AbstractAsyncContextManager[ViewsProcess]:
    from dorm.local.companions import ViewsProcess

    path = str(Path(target.credentials).expanduser())
    return ViewsProcess(state, target.url, target.cluster, credentials=path, key=key)


def _metrics(
    connection: Connection, master: Master, timer: SolveTimer, address: Address, file: Path, health: Health
) -> AbstractAsyncContextManager[None]:
    from dorm.metrics.follower import Follower
    from dorm.metrics.server import MetricsServer, of_master, serving

    follower = Follower(connection.log, file=file, clock=time.time_ns, room=connection.stream.room)
    server = MetricsServer(address, [follower.metrics, of_master(master, timer)], health=health)
    return serving(server, follower, master.settled)


async def _plug_in(client: Client, master: Master, change: PolicyChanged) -> None:
    """Change to a plug-in policy once a master leads: the log accepts none that the leading master has not announced."""
    import structlog

    from dorm.client.errors import Refused
    from events.log.records import until_answered

    await master.settled.wait()
    try:
        await until_answered(lambda: client.change_policy(change), "changing the policy")
    except Refused as error:
        structlog.get_logger(__name__).error("the policy is not changed", reason=str(error), code=error.code)


def _limit(text: str | None) -> None:
    from events.quantities import QuantityError

    if text is None:
        return
    from dorm.plugins import limits

    try:
        limits.set_limit(limits.checked(text))
    except QuantityError as error:
        raise WrongUsage(f"--policy-limit: {error}", code="policy.limit.malformed") from None


async def _check_copies(connection: Connection) -> None:
    """Check the log's copies; a server that forbids a master to change streams is logged and does not keep it from leading."""
    import structlog

    log = structlog.get_logger(__name__)
    try:
        await connection.uncompress()
        if danger := await connection.endangered():
            log.warning("the log's copies are in danger", what=danger)
    except LogError as error:
        log.warning("whether the log's copies are compressed is not known", reason=str(error))


def _identity(name: str | None) -> str:
    """Return a name that is unique to this process: ids of rounds and the lease depend on it."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise Fail("--name: use 1 to 64 letters, digits, '.', '-' and '_'", USAGE, code="master.name.malformed")
    return f"{name or socket.gethostname()}-{secrets.token_hex(4)}"


# --- masters ----------------------------------------------------------------------------------------------------------

_SHORTEST_S = 8.0
"""A longer lease than this is watched for half of its duration, in which its holder renews it twice."""
_LOOK_S = 0.1


@command()
async def masters(cx: Cluster, output: Output = Format.table) -> None:
    """Show which master leads, since when, and whether it responds; and which masters follow, and how far behind.

    Masters that follow write nothing to the log, so they are asked; a master that does not answer within a second is
    not listed.  The command warns if the log's copies on several NATS servers are at risk, as they may be on a cluster
    that an earlier release created.

    [bold]Example[/]

      dorm masters -o json
    """

    from dorm.client.client import Client
    from dorm.client.masters import answering, row_of
    from dorm.core.query.views import paused_text

    connection = await cx.target().connection("dorm-client")
    async with Client(connection.log, connection.bus, connection.cluster, connection=connection) as connected:
        first = await connection.leadership.look()
        every, _ = await asyncio.gather(answering(connection), watch_lease(connection.leadership, first))
        state = await connected.state()
        # Looked up again: the lease precedes the election, so its holder may not be on the log yet.
        held = await connection.leadership.look()
        danger = await _danger(connection)
        row = row_of(state, held, await connection.leadership.written_at(), time.time_ns(), seen=held != first)
    row = msgspec.structs.replace(row, danger=danger, masters=every, paused=paused_text(state))
    if output in (Format.json, Format.yaml):
        show_document(row, output)
    else:
        _print(row)
        _print_followers(row)
        if row.paused:
            console.print(Text(f"\n{row.paused}; nothing new is decided until `dorm resume`"))
        if danger:
            console.print(Text(f"\nwarning: {danger}"), soft_wrap=True)


async def _danger(connection: Connection) -> str:
    """Return the danger to the log's copies.  Some users may not query streams: unknown is not healthy."""
    try:
        return await connection.endangered()
    except LogError as error:
        return f"whether the log's copies are compressed is not known: {error}"


async def watch_lease(leadership: Leadership, first: Held | None) -> None:
    """Wait until the lease changes, or should have: the leading master renews it several times before it expires."""
    if first is None or not first.holder:
        return
    loop = asyncio.get_running_loop()
    until = loop.time() + min(first.ttl_s, max(_SHORTEST_S, first.ttl_s / 2))
    while loop.time() < until:
        await asyncio.sleep(min(_LOOK_S, first.ttl_s))
        if await leadership.look() != first:
            return


def _print(row: Leader) -> None:
    if (
        row.condition == "unknown"
        and row.masters is not None
        and not any(master.condition == "leads" for master in row.masters)
    ):
        if not row.masters:
            then = "start one with `dorm master`"
        elif len(row.masters) == 1:
            then = f"{row.masters[0].name} runs, and its log says why it does not lead"
        else:
            then = f"{len(row.masters)} masters run, and their logs say why none leads"
        who = f"{row.last} was elected last, {ago(row.age_s)} ago" if row.last else "nobody ever led"
        console.print(Text(f"nobody leads, and there is no lease: {who}; {then}"))
        return
    if row.condition in ("gone", "silent"):
        from replay.words import moment

        since = ago(max(0.0, time.time() - row.led_until / 1e9))
        who = f"{row.last} led until {moment(row.led_until)}, {since} ago" if row.last else "nobody ever led"
        console.print(Text(f"no master leads ({row.condition}): {who}; start one with `dorm master`"))
        return
    elected = row.condition != "taking over" and bool(row.leader)
    shown = {
        "leader": row.leader or None,
        "condition": row.condition,
        "epoch": row.epoch if elected else None,
        "age": ago(row.age_s) if elected else None,
        "lease_s": row.lease_s,
    }
    columns = [("LEADER", "leader"), ("CONDITION", "condition"), ("EPOCH", "epoch"), ("SINCE", "age")]
    print_table([shown], [*columns, ("LEASE s", "lease_s")])
    if row.condition == "taking over" and row.last:
        console.print(Text(f"\n{row.last} was elected last, {ago(row.age_s)} ago"))


def _print_followers(row: Leader) -> None:
    if row.masters is None:
        console.print(Text("\nwhich masters follow is not known: they may not be asked with these credentials"))
        return
    following = [msgspec.to_builtins(master) for master in row.masters if master.name != row.leader]
    if following:
        console.print()
        print_table(following, [("FOLLOWER", "name"), ("BEHIND", "lag"), ("FOLDED", "seq"), ("BUILD", "build")])
