"""`dorm views`: serves plain users their views of the log."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.signals import first_of, run_until_stopped


@command(before="key")
async def views(
    cx: Cluster,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The masters' key (seal.nk); default: in the folder of the credentials."),
    ] = None,
    while_stdin_is_open: Annotated[
        bool, typer.Option("--while-stdin-is-open", hidden=True, help="End when standard input ends.")
    ] = False,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Serve plain users their view of the log: everything about their own tenant, and of others what explains its share.

    `dorm up` and `dorm master` start one of these processes as soon as the
    cluster knows a user of the role `user`. If many users follow the log, run
    more of them, on any machine that has the masters' credentials and key: each
    request goes to one of them. It waits for NATS servers that do not answer yet,
    and ends on Ctrl-C or SIGTERM.

    [bold]Examples[/]

      dorm views --credentials /var/lib/dorm/lab/security/master.json
    """
    configure(verbose, log_json)

    async def work() -> None:
        from dorm.master.sealing import pseudonyms_of, read_key
        from replay.tenants.answering import serve
        from replay.tenants.projection import key_of

        found = cx.target()
        file = key or found.seal_key()
        if file is None or not found.credentials:
            text = "views need the masters' credentials and their key: name them with --credentials and --key"
            raise Fail(text, USAGE, code="key.not_found")
        secret = pseudonyms_of(await asyncio.to_thread(read_key, file))
        connection = await found.connection("dorm-views", patient=True)
        try:
            serving = serve(connection.log, connection.bus, connection.cluster, key_of(secret))
            if while_stdin_is_open:
                await first_of(serving, _stdin_closed())
            else:
                await serving
        finally:
            await connection.close()

    await run_until_stopped(work())


async def _stdin_closed() -> None:
    """Wait until the program that started this one has ended."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass
