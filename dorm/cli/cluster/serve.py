"""`dorm serve`: the HTTP API and the dashboard."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import console
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.service import run_service
from dorm.cli.signals import first_of
from events.addresses import split

if TYPE_CHECKING:
    from dorm.api.options import Options
    from dorm.cli.connect import Target

_SWITCH_S = 0.001
"""Seconds after which a thread that computes leaves the interpreter to the loop: Python's own 5 ms are a part of an answer's
time on a busy process."""


_COLLECT = (10_000, 20, 50)
"""Thresholds of the garbage collector: with Python's own, a busy API is collected a hundred times a second."""


@command(user=True, before="verbose")
async def serve(
    cx: Cluster,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]", envvar="DORM_LISTEN", help="Address to listen on; port 0 takes any free one."
        ),
    ] = "127.0.0.1:4280",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Also answer requests for this host name, such as a proxy's; may be repeated."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt connections with this certificate (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")] = None,
    tls_clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Accept client certificates of this authority (PEM) as proof of the user that they name.",
        ),
    ] = None,
    while_stdin_is_open: Annotated[bool, typer.Option("--while-stdin-is-open", hidden=True)] = False,
    verbose: Verbose = 0,
    log_json: LogJson = False,
) -> None:
    """Serve the HTTP API and the dashboard of a cluster.

    The server folds the log like any other reader and asks the master for
    nothing. Any number of these processes can run next to each other, and none
    can harm the cluster. The API is at /v1, described by /v1/openapi.json; the
    dashboard is at /.

    On a cluster that authenticates its users, each request needs a token (dorm
    token add) or a certificate. On an open cluster, everyone who reaches the API
    may do everything that it offers, so it listens only on this machine by
    default. It waits for NATS servers that do not answer yet, and ends on Ctrl-C
    or SIGTERM. New connections use a renewed certificate within seconds, or at
    once after SIGHUP.

    [bold]Examples[/]

      dorm serve

      dorm serve --listen 127.0.0.1:0 --url nats://10.0.0.1:4222 --cluster lab

      curl -s http://127.0.0.1:4280/v1/apps | jq '.items[].name'

      curl -H "Authorization: Bearer $TOKEN" https://lab.example:4280/v1/apps

      curl -N http://127.0.0.1:4280/v1/events/stream
    """
    from dorm.api.options import Options
    from dorm.health.checks import Health

    configure(verbose, log_json)
    host, port = address_of(listen)
    if tls_cert is None and (tls_key is not None or tls_clients is not None):
        raise WrongUsage("--tls-key and --tls-clients need --tls-cert", code="usage.conflict")
    options = Options(
        host=host,
        port=port,
        allow_hosts=tuple(allow_host or ()),
        user=cx.user,
        certificate=tls_cert,
        key=tls_key,
        clients=tls_clients,
    )

    health = Health(f"dorm {version('dorm')}", "the API waits for the NATS servers")
    renewed = asyncio.Event()

    async def work() -> None:
        from dorm.api.resources.health import checks_of
        from dorm.api.serving import serving

        found = cx.target().as_process("api")
        connection = await found.connection("dorm-api", patient=True)
        seen = msgspec.structs.replace(options, pseudonyms=await asyncio.to_thread(_secret, found))
        try:
            async with serving(connection, seen, renewed=renewed) as server:
                server.services.follower.on_ready.append(lambda _state: _keep_for_good())
                health.watch(checks_of(server.services))
                announce(server.url, connection.cluster, options)
                if while_stdin_is_open:
                    await first_of(server.run(), _stdin_closed())
                else:
                    await server.run()
        finally:
            await connection.close()

    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_COLLECT)
    await run_service(work(), health, renewed.set)


def _secret(found: Target) -> bytes:
    """Return what pseudonyms in users' views are made from: of the masters' key, if it is here, as `dorm views` does."""
    from dorm.master.sealing import pseudonyms_of, read_key

    key = found.seal_key()
    if key is not None and os.access(key, os.R_OK):
        return pseudonyms_of(read_key(key))
    credentials = found.read()
    return credentials.seed if credentials is not None else b""


def _keep_for_good() -> None:
    """Exempt all present objects from garbage collection.  A full collection looks at every object that the modules
    and the state consist of, and stops all threads for a tenth of a second meanwhile."""
    gc.collect()
    gc.freeze()


async def _stdin_closed() -> None:
    """Wait until the program that started this one has ended."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(4096):
        pass


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[ADDRESS]:PORT`, `HOST` or `:PORT`.  Raises Fail."""
    from dorm.api.options import DEFAULT_PORT

    try:
        host, port = split(text)
    except ValueError:
        raise Fail(
            f"{text[:80]!r} is not an address to listen on; write 127.0.0.1:4280 or [::1]:4280",
            2,
            code="api.listen.malformed",
        ) from None
    return host or "127.0.0.1", DEFAULT_PORT if port is None else port


def announce(url: str, cluster: str, options: Options) -> None:
    """Print its address, and the consequences if others reach it."""
    from dorm.api.identity import warning

    console.print(Text(f"cluster {cluster!r} is at {url}: the dashboard at /, the API at /v1"), soft_wrap=True)
    if not options.loopback:
        console.print(Text(f"warning: {warning(options.host)}", style="yellow"), soft_wrap=True)
