"""Users and access: `dorm init`, `user`, `node`, `context` and `views`.

`dorm init` founds a cluster that authenticates its users.  An admin's commands (`acting`) change identities on the log, and
write the NATS servers' configuration where the cluster's folder is.  A node joins by a one-time token and keeps its key in
its data folder; a user gets a file of credentials, for which a context is a name.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.command import command, standalone
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.output import Format, Output, console, show, show_document
from dorm.cli.program_logs import LogJson, Verbose, configure
from dorm.cli.settings import parse_capacity, parse_pairs, parse_ports
from dorm.cli.signals import first_of, run_until_stopped
from dorm.cli.terminal import print_line
from dorm.local.home import DEFAULT_CLUSTER, contexts_file
from events.addresses import is_loopback, joined

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dorm.cli.connect import Target
    from dorm.client.client import Client
    from dorm.security.folder import KeyFolder
    from dorm.security.joining import Admin, Introduction
    from events.nats.access import Credentials
    from events.nats.connection import Connection


# --- the admin of a command -------------------------------------------------------------------------------------------

Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of the cluster, created by `dorm init`; default: that of the context, or of the "
        "running `dorm up`.",
    ),
]


class Acting:
    """An admin at work."""

    def __init__(self, connection: Connection, credentials: Credentials, client: Client, admin: Admin) -> None:
        self.connection = connection
        self.credentials = credentials
        self.client = client
        self.admin = admin
        self.folder: KeyFolder | None = None


@contextlib.asynccontextmanager
async def acting(cx: Cluster, folder: Path | None) -> AsyncIterator[Acting]:
    """Yield the admin of this command.  Raises Fail, SecurityError, CredentialsError, and the log's errors."""
    from dorm.client.client import Client
    from dorm.local.founding import KEYS
    from dorm.security.folder import KeyFolder
    from dorm.security.joining import Admin

    target = cx.target()
    credentials = target.read()
    if credentials is None:
        raise Fail(
            "identities are changed with an admin's credentials: name them with --credentials or --context",
            code="credentials.none",
        )
    at = folder or (Path(target.folder) if target.folder else None)
    keys = KeyFolder(at.absolute() / KEYS) if at is not None else None
    if keys is not None and not keys.exists:
        raise Fail(f"{at} is not the folder of a cluster with identities; see --folder", code="security.no_folder")
    connection = await target.connection("dorm-admin")
    try:
        client = Client(connection.log, connection.bus, target.cluster, connection=connection)
        administration = Acting(connection, credentials, client, Admin(client, keys, clock=time.time_ns))
        administration.folder = keys
        yield administration
    finally:
        await connection.close()


async def apply(administration: Acting) -> None:
    """Write the servers' configuration, and print what remains to be done."""
    reloaded = await administration.admin.apply()
    if reloaded:
        return
    if administration.folder is None:
        print_line(
            "the log has it; on the machine of the cluster's folder, run `dorm user list --apply --folder DIR`, so that the "
            "NATS servers know it too"
        )
    else:
        print_line(
            f"{administration.folder.accounts} is written, and no NATS server of this folder runs here: copy it to each server, and "
            "reload them (`nats-server --signal reload`)"
        )


# --- init -------------------------------------------------------------------------------------------------------------


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
    from dorm.security.joining import admitted
    from events.log.records import until_answered

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
        if encrypted and await asyncio.to_thread(keys.reload):
            await admitted(replace(own, url=near))
        # A server that reads its configuration again answers nothing for a moment.
        await until_answered(lambda: found(keys, own, near, (), clock=time.time_ns), "founding the cluster")
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


# --- users ------------------------------------------------------------------------------------------------------------

users = typer.Typer(
    help="Manage users: who may submit apps, operate the cluster, or change identities.", no_args_is_help=True
)
UserName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the user: letters, digits and any of _ @ + = -.")
]


@users.command("add")
@command()
async def add_user(
    cx: Cluster,
    name: UserName,
    role: Annotated[
        str,
        typer.Option(
            help="reader (only reads), user (submits apps and changes their own), operator (also drains "
            "nodes, changes settings and others' apps) or admin (also changes identities)."
        ),
    ] = "user",
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Owner of the user's apps; default: the user alone.")
    ] = "",
    public_key: Annotated[
        str,
        typer.Option(metavar="KEY", help="The user's public key, from `dorm user key`; default: generate a key here."),
    ] = "",
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the credentials; default: NAME.json.")
    ] = None,
    folder: Folder = None,
) -> None:
    """Add a user, or change a user's role or key; the earlier key becomes invalid.

    The command writes the user's credentials to a file, which is everything that the user needs:
    `dorm context add NAME --credentials FILE`. With --public-key, the private key never leaves the user's machine, and
    the file does not contain it.

    [bold]Examples[/]

      dorm user add alice

      dorm user add olga --role operator --to /root/olga.json

      dorm user add bob --public-key UBZEK6M5QLTGV4PZ6S3D7NQY2H5XCW4JIRNOB7K3F6A2TLGEM5QDVYUS
    """
    import msgspec

    from dorm.security.folder import save_credentials
    from events.kinds import UserAdded
    from events.nats.access import Credentials, CredentialsError, new_seed
    from events.nats.access import public_key as public_of

    seed = b"" if public_key else new_seed()
    try:
        user = msgspec.convert(
            {"name": name, "role": role, "tenant": tenant, "public_key": public_key or public_of(seed)}, UserAdded
        )
    except msgspec.ValidationError as error:
        raise Fail(f"this can't be a user: {error}", USAGE, code="user.malformed") from None
    file = to or Path(f"{name}.json")
    if file.exists():
        raise Fail(f"{file} exists; choose another file with --to", code="credentials.file_exists")

    try:
        async with acting(cx, folder) as administration:
            await administration.admin.add_user(user)
            await apply(administration)
            about = administration.credentials
            if not seed:
                console.print(Text(_without_key(about.cluster, about.url, name, role)))
                return
            made = Credentials(about.cluster, about.url, name, role, seed, about.ca)
            save_credentials(file, made)
            if administration.folder is not None:
                from dorm.security.joining import admitted

                await admitted(made)
            console.print(
                Text(f"{role} {name} is added; the credentials are in {file}: hand them over, and delete them here")
            )

    except CredentialsError as error:
        raise Fail.of(error) from None


def _without_key(cluster: str, url: str, name: str, role: str) -> str:
    return (
        f"{role} {name} is added; on the machine with the key, write it into a file (mode 600) as\n"
        f'{{"cluster": "{cluster}", "url": "{url}", "name": "{name}", "role": "{role}", "seed": "file:KEYFILE", "ca": "…"}}\n'
        "where `ca` is that of your own credentials, if they have one"
    )


@users.command("remove")
@command()
async def remove_user(cx: Cluster, name: UserName, folder: Folder = None) -> None:
    """Remove a user: connections with the user's key end immediately. The user's apps stay; an operator may cancel
    them.

    [bold]Example[/]

      dorm user remove alice
    """

    async with acting(cx, folder) as administration:
        await administration.admin.remove_user(name)
        await apply(administration)
        console.print(Text(f"user {name} is removed"))


@users.command("list")
@command()
async def list_users(
    cx: Cluster,
    apply_: Annotated[
        bool,
        typer.Option("--apply", help="Also write the NATS server's configuration from the log again, and reload it."),
    ] = False,
    output: Output = Format.table,
    folder: Folder = None,
) -> None:
    """List users and nodes with their roles.

    [bold]Example[/]

      dorm user list -o wide
    """

    if apply_:
        async with acting(cx, folder) as administration:
            await apply(administration)
    async with cx.client() as connected:
        known = await connected.look(lambda state: state.known)
    rows = []
    if known is not None:
        rows += [
            {"name": user.name, "role": user.role, "tenant": user.tenant, "public_key": user.public_key}
            for user in known.users.values()
        ]
        rows += [
            {"name": node.node, "role": "node", "tenant": "", "public_key": node.public_key}
            for node in known.nodes.values()
        ]
    if output in (Format.json, Format.yaml):
        show_document(rows, output)
        return
    if known is None:
        console.print(Text("this cluster is open: it knows no users, and everyone who reaches it may do everything"))
        return
    columns = [("NAME", "name"), ("ROLE", "role"), ("TENANT", "tenant")]
    columns += [("KEY", "public_key")] if output == Format.wide else []
    show(rows, columns, output)


@users.command("key")
def user_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the key, which only you can read.")],
) -> None:
    """Create your own key and print its public half, for an admin's `dorm user add --public-key`.

    [bold]Example[/]

      dorm user key alice.nk
    """
    from dorm.security.files import write_private
    from events.nats.access import new_seed, public_key

    if file.exists():
        raise Fail(f"{file} exists; choose another file", code="credentials.file_exists")
    seed = new_seed()
    write_private(file.absolute(), seed + b"\n")
    print_line(public_key(seed))


# --- how an agent gets its key ----------------------------------------------------------------------------------------

_FILE = "node.json"
_LONGEST = 16 * 1024


def read_introduction(token: str | None) -> Introduction | None:
    """Return the token's content, None without a token.  Raises WrongUsage, SecurityError."""
    text = os.environ.get("DORM_TOKEN", "")
    if token is not None:
        try:
            text = sys.stdin.read(_LONGEST) if token == "-" else Path(token).read_text()[:_LONGEST]
        except (OSError, UnicodeDecodeError):
            raise WrongUsage(f"--token: {token[:200]} can't be read", code="token.unreadable") from None
    if not text.strip():
        return None
    from dorm.security.joining import read_token

    return read_token(text, time.time_ns())


async def node_target(given: Target, root: Path, node: str, introduction: Introduction | None) -> Target:
    """Return the cluster of an agent with its credentials: those that its command names, else those of its data
    folder, where it keeps them once it has joined by a token.  Raises WrongUsage, SecurityError, CredentialsError, and the log's errors."""
    from dorm.cli.connect import Target

    file = root / _FILE
    if introduction is not None and not file.exists():
        from dorm.security.joining import join

        own = await join(introduction, file)
        from dorm.security.joining import admitted

        await admitted(own)
        print_line(f"node {own.name} is enrolled in cluster {own.cluster}; its key is in {file}")
    target = given if given.named or not file.exists() else Target("", "", str(file))
    credentials = target.read()
    if credentials is None:
        return target
    if credentials.role != "node":
        raise WrongUsage(
            f"the credentials are those of {credentials}, and an agent needs a node's own: start it with the token that "
            "`dorm node intro` prints",
            code="node.other_credentials",
        )
    if credentials.name != node:
        raise WrongUsage(
            f"the credentials are those of {credentials}, and this node is {node}; name it --name {credentials.name}",
            code="node.other_credentials",
        )
    return Target(
        target.url or credentials.url,
        target.cluster or credentials.cluster,
        target.credentials,
        archives=given.archives,
    )


# --- nodes ------------------------------------------------------------------------------------------------------------

nodes = typer.Typer(
    help="Admit nodes to a cluster that authenticates its users, and remove them.", no_args_is_help=True
)
NodeName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the node: letters, digits and any of _ @ + = -.")
]


@nodes.command("intro")
@command()
async def intro(
    cx: Cluster,
    name: NodeName,
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long the token is valid.")] = "15m",
    capacity: Annotated[
        str | None,
        typer.Option(help="The largest capacity that the node may claim, such as cpu=8,memory=32GiB; default: any."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Label that the node may claim, key=value; may be repeated; default: any.")
    ] = None,
    address: Annotated[
        list[str] | None, typer.Option(help="Address that the node may claim; may be repeated; default: any.")
    ] = None,
    ports: Annotated[str | None, typer.Option(help="Range of ports that the node may claim; default: any.")] = None,
    folder: Folder = None,
) -> None:
    """Admit a node: print a one-time token, and wait until the node's agent has joined with it.

    The agent creates its own key and presents the public half: `dorm agent
    --token FILE`, or with the token in DORM_TOKEN. Claims of the node beyond the
    bounds given here are refused. Ctrl-C revokes the token.

    [bold]Example[/]

      dorm node intro gpu-7 --ttl 15m --capacity cpu=32,memory=256GiB,gpu=2
    """
    import msgspec

    from events.kinds import NodeEnrolled
    from events.quantities import QuantityError, duration

    try:
        ttl_s = duration(ttl)
    except QuantityError as error:
        raise WrongUsage(f"--ttl: {error}", code=error.code) from None
    claims: dict[str, Any] = {"node": name, "capacity": parse_capacity(capacity), "addresses": address or []}
    claims |= {"labels": parse_pairs(label, "label")} if label else {}
    claims |= {"ports": parse_ports(ports)} if ports else {}
    try:
        node = msgspec.convert(claims, NodeEnrolled)
    except msgspec.ValidationError as error:
        raise Fail(f"this can't be a node: {error}", USAGE, code="node.malformed") from None

    from dorm.security.joining import introduce

    async with acting(cx, folder) as administration:
        if administration.folder is None:
            raise Fail(
                "a token is made where the cluster's folder is, since the NATS server has to accept it; see --folder",
                code="security.no_folder",
            )
        joined = await introduce(
            administration.admin,
            administration.folder,
            administration.connection.bus,
            administration.credentials,
            node,
            ttl_s=ttl_s,
            clock=time.time_ns,
            show=lambda introduction: _show(introduction, ttl),
        )
    if not joined:
        raise Fail(f"node {name} did not join within {ttl}; the token is void", code="token.expired")
    console.print(Text(f"node {name} is enrolled"))


def _show(introduction: Introduction, ttl: str) -> None:
    from dorm.security.certificates import fingerprint

    print_line(introduction.token(), flush=True)
    trusts = f"; the authority's fingerprint is {fingerprint(introduction.ca)}" if introduction.ca else ""
    print_line(
        f"valid for {ttl} and one use: put it into a file on {introduction.node}, and run there\n"
        f"  dorm agent --token FILE{trusts}",
        error=True,
        flush=True,
    )


@nodes.command("join")
@standalone
async def join(
    token: Annotated[
        str, typer.Argument(metavar="FILE", help="File with the token of `dorm node intro`; - is standard input.")
    ],
    data: Annotated[
        Path,
        typer.Option(envvar="DORM_DATA", help="Folder of this node's own files; pass the same folder to its agent."),
    ],
) -> None:
    """Enroll this machine with a token, and keep its key for the agent that a service manager starts later.

    `dorm agent --token FILE` does the same at its first start. Running it again
    does nothing.

    [bold]Example[/]

      dorm node join token.txt --data /var/lib/dorm/node
    """
    from dorm.cli.connect import Target

    introduction = read_introduction(token)
    if introduction is None:
        raise Fail(
            "there is no token in it; copy all of the line that `dorm node intro` prints", code="token.malformed"
        )
    await node_target(Target("", ""), data.absolute(), introduction.node, introduction)


@nodes.command("remove")
@command()
async def remove_node(cx: Cluster, name: NodeName, folder: Folder = None) -> None:
    """Expel a node: its connection ends, and its reports no longer count. Its containers end with its lease.

    Drain it first (`dorm drain`), so that its apps continue elsewhere without
    losing work.

    [bold]Example[/]

      dorm node remove gpu-7
    """

    async with acting(cx, folder) as administration:
        await administration.admin.expel(name)
        await apply(administration)
        console.print(Text(f"node {name} is removed"))


# --- contexts ---------------------------------------------------------------------------------------------------------

contexts = typer.Typer(help="Manage contexts: names for clusters and your credentials there.", no_args_is_help=True)
ContextName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@contexts.command("add")
def add_context(
    name: ContextName,
    credentials: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your credentials, which also hold the server's address.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="NATS server; default: that of the credentials.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the cluster; default: that of the credentials.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Add a context, or replace the one with this name.

    [bold]Examples[/]

      dorm context add lab --credentials alice.json --use

      dorm context add test --server nats://10.0.0.9:4222 --cluster test
    """
    from dorm.security.contexts import Context, read_contexts, write_contexts
    from events.nats.access import read_credentials

    path = credentials.expanduser().absolute() if credentials is not None else None
    about = read_credentials(path) if path is not None else None
    address = server or (about.url if about is not None else "")
    if not address:
        raise Fail("a context needs --credentials or --server", USAGE, code="context.no_server")
    if "@" in address:
        raise Fail(
            "a context must not hold a password; use credentials (`dorm user add` creates them)",
            2,
            code="context.password",
        )
    context = Context(
        address,
        cluster or (about.cluster if about is not None else DEFAULT_CLUSTER),
        str(path) if path is not None else "",
    )
    changed = read_contexts(contexts_file()).having(name, context)
    write_contexts(contexts_file(), changed.using(name) if use else changed)
    console.print(Text(f"context {name}: cluster {context.cluster} at {context.url}"), soft_wrap=True)


@contexts.command("use")
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help='Name of the context; "" for none.')],
) -> None:
    """Use a context from now on; --context, --url and their environment variables override it.

    [bold]Example[/]

      dorm context use lab
    """
    from dorm.security.contexts import read_contexts, write_contexts

    write_contexts(contexts_file(), read_contexts(contexts_file()).using(name))
    console.print(Text(f"commands go to {name}" if name else "commands use no context"))


@contexts.command("list")
def list_contexts(output: Output = Format.table) -> None:
    """List contexts.

    [bold]Example[/]

      dorm context list
    """
    from dorm.security.contexts import read_contexts

    known = read_contexts(contexts_file())
    rows: list[dict[str, Any]] = [
        {
            "current": name == known.current,
            "name": name,
            "cluster": context.cluster,
            "url": context.url,
            "credentials": context.credentials,
        }
        for name, context in sorted(known.contexts.items())
    ]
    if output in (Format.json, Format.yaml):
        show_document(rows, output)
        return
    if not rows:
        console.print(Text("there are no contexts; `dorm context add` creates one"))
        return
    shown = [{**row, "current": "*" if row["current"] else ""} for row in rows]
    columns = [
        ("", "current"),
        ("NAME", "name"),
        ("CLUSTER", "cluster"),
        ("URL", "url"),
        ("CREDENTIALS", "credentials"),
    ]
    show(shown, columns, output)


@contexts.command("show")
def show_context(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the context; default: the one in use.")
    ] = None,
) -> None:
    """Show a context and your identity there. Keys are never printed.

    [bold]Example[/]

      dorm context show lab
    """
    from dorm.security.contexts import read_contexts
    from events.nats.access import read_credentials

    known = read_contexts(contexts_file())
    wanted = name or known.current
    if not wanted:
        raise Fail("no context is in use; name one, or choose one with `dorm context use`", code="context.none")
    context = known.find(wanted)
    who = str(read_credentials(Path(context.credentials))) if context.credentials else "nobody: the cluster is open"
    show_document(
        {
            "name": wanted,
            "cluster": context.cluster,
            "url": context.url,
            "identity": who,
            "credentials": context.credentials,
        },
        Format.yaml,
    )


@contexts.command("remove")
def remove_context(name: ContextName) -> None:
    """Remove a context; the credentials file stays.

    [bold]Example[/]

      dorm context remove lab
    """
    from dorm.security.contexts import read_contexts, write_contexts

    write_contexts(contexts_file(), read_contexts(contexts_file()).without(name))
    console.print(Text(f"context {name} is removed"))


# --- views ------------------------------------------------------------------------------------------------------------


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

        target = cx.target()
        file = key or target.seal_key()
        if file is None or not target.credentials:
            text = "views need the masters' credentials and their key: name them with --credentials and --key"
            raise Fail(text, USAGE, code="key.not_found")
        secret = pseudonyms_of(await asyncio.to_thread(read_key, file))
        connection = await target.connection("dorm-views", patient=True)
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
