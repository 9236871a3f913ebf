"""`dorm master`: one master against a NATS server of one's own."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from dorm.cli.connect import ClusterName, Url, where
from dorm.cli.errors import run
from dorm.cli.logs import LogJson, Verbose, configure
from dorm.cli.settings import complete_policy, parse_params, policy_change
from dorm.cli.signals import run_until_stopped


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and the cluster")(master)


def master(
    url: Url = None,
    cluster: ClusterName = None,
    policy: Annotated[
        str | None, typer.Option(help="Allocation policy, from now on.", autocompletion=complete_policy)
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="Parameter of the policy, such as theta1=0.2; may be repeated.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What it seals the log with; made where there is none. Default: in the data folder."
        ),
    ] = None,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Run a master: it folds the log and decides.

    Apps run on when it stops, and the next one goes on from the log.  A second master takes over from the first, which
    then stops by itself.

    [bold]Example[/]

      dorm master --url nats://10.0.0.1:4222 --cluster lab
    """
    configure(verbose, log_json)
    change = policy_change(policy, parse_params(param) or None)

    async def work() -> None:
        from dorm.client import Client
        from dorm.home import key_file
        from dorm.local import BUILD
        from dorm.master import Master
        from dorm.sealing import open_key
        from events.jetstream import Connection

        address, name = where(url, cluster)
        seal_key = await asyncio.to_thread(open_key, key or key_file(name))
        connection = await Connection.open(address, name, name="dorm-master", create=True)
        try:
            if change is not None:
                await Client(connection.log, connection.bus, name).change_policy(change)
            leader = Master(
                connection.log,
                connection.bus,
                name,
                name=f"{socket.gethostname()}-{secrets.token_hex(4)}",
                clock=time.time_ns,
                build=BUILD,
                key=seal_key,
            )
            await run_until_stopped(leader.run())
        finally:
            await connection.close()

    run(work())
