"""`dorm init`: a cluster that knows its users."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import standalone
from dorm.cli.errors import USAGE, Fail
from dorm.cli.output import console
from dorm.local.home import DEFAULT_CLUSTER
from events.addresses import is_loopback, joined


@standalone
async def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of keys, configuration and the server's data.")],
    cluster: Annotated[
        str, typer.Option(metavar="NAME", envvar="DORM_CLUSTER", help="Name of the cluster.")
    ] = DEFAULT_CLUSTER,
    host: Annotated[
        str, typer.Option(help="Address on which the NATS server listens; 0.0.0.0 for all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = 4222,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Name or address at which others reach the server, for its certificate; may be repeated."),
    ] = None,
    admin: Annotated[str | None, typer.Option(help="Name of the first admin; default: your login name.")] = None,
    tls: Annotated[
        bool | None,
        typer.Option(
            "--tls/--no-tls", help="Encrypt connections; default: yes, unless the server listens only on loopback."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the context that is created for you; default: the cluster's."),
    ] = None,
) -> None:
    """Create a cluster that authenticates its users: keys, the NATS server's configuration, and its streams.

    The server admits only users and nodes that an admin has added, and each may
    do what its role allows. DIR holds the keys; keep all of it on the server's
    machine, accessible only to the admin. Run the command again to renew the
    server's certificate, which a running server uses at once, or to complete an
    interrupted run; it keeps existing keys.

    [bold]Examples[/]

      dorm init ./lab --cluster lab

      dorm init /var/lib/dorm/lab --cluster lab --host 0.0.0.0 --name 10.0.0.1
    """
    from dorm.client.client import login_name
    from events.subjects import check_cluster, token

    try:
        check_cluster(cluster)
    except ValueError as error:
        raise Fail(str(error), USAGE, code="cluster.name.malformed") from None
    reached = [*(name or []), *([host] if not _all(host) else [])]
    if not reached:
        raise Fail(
            "use --name to give the address or name at which others reach this server", USAGE, code="security.host"
        )
    encrypted = tls if tls is not None else not is_loopback(host)
    scheme = "tls" if encrypted else "nats"
    root = folder.absolute()
    hosts = [*reached, "localhost", "127.0.0.1", "::1"] if encrypted else []

    from dorm.local.founding import KEYS, found, make_keys
    from dorm.local.nats_server import EmbeddedServer, in_use
    from dorm.security.files import private_folder
    from dorm.security.folder import KeyFolder

    await asyncio.to_thread(private_folder, root)
    keys = KeyFolder(root / KEYS)
    before = await asyncio.to_thread(keys.admin)
    who = token(admin or before or login_name())
    own = await asyncio.to_thread(
        make_keys, keys, cluster, f"{scheme}://{joined(reached[0], port)}", who, hosts, time.time_ns()
    )
    near_host = ("::1" if ":" in host else "127.0.0.1") if _all(host) else host
    near = f"{scheme}://{joined(near_host, port)}"
    if await asyncio.to_thread(in_use, host, port):  # Its server runs already, and reads the renewed certificate.
        if encrypted:
            await asyncio.to_thread(keys.reload)
        await found(keys, own, near, (), clock=time.time_ns)
    else:
        server = EmbeddedServer(root, host=host, port=port, more=keys.server_settings())
        await server.start()
        try:
            await found(keys, own, near, (), clock=time.time_ns)
        finally:
            await server.stop()
    remember(context or cluster, own.url, cluster, keys.file_of(who), root)
    for line in (
        f"cluster {cluster!r} authenticates its users; {who} is its admin, with the context {context or cluster!r}",
        f"  the server   nats-server -c {root / 'nats.conf'}",
        f"  a master     dorm master --credentials {keys.file_of('master')}",
        f"  a user       dorm user add NAME --context {context or cluster}",
        f"  a node       dorm node intro NAME --context {context or cluster}",
    ):
        console.print(Text(line), soft_wrap=True)


def remember(name: str, url: str, cluster: str, credentials: Path, folder: Path) -> None:
    """Write down a context for the admin of a new cluster; which one is in use stays as it is."""
    from dorm.local.home import contexts_file
    from dorm.security.contexts import Context, read_contexts, write_contexts

    contexts = read_contexts(contexts_file())
    write_contexts(contexts_file(), contexts.having(name, Context(url, cluster, str(credentials), str(folder))))


def _all(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
