"""`dorm node intro|join|remove`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dorm.cli.command import command, standalone
from dorm.cli.connect import Cluster
from dorm.cli.errors import USAGE, Fail, WrongUsage
from dorm.cli.output import console
from dorm.cli.settings import parse_capacity, parse_pairs, parse_ports
from dorm.cli.terminal import say
from dorm.cli.trust.shared import Folder, acting, apply

if TYPE_CHECKING:
    from dorm.security.introductions import Introduction

app = typer.Typer(help="Admit nodes to a cluster that authenticates its users, and remove them.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the node: letters, digits and any of _ @ + = -.")]


@app.command("intro")
@command()
async def intro(
    cx: Cluster,
    name: Name,
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

    async with acting(cx, folder) as one:
        if one.folder is None:
            raise Fail(
                "a token is made where the cluster's folder is, since the NATS server has to accept it; see --folder",
                code="security.no_folder",
            )
        joined = await introduce(
            one.admin,
            one.folder,
            one.connection.bus,
            one.credentials,
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

    say(introduction.token(), flush=True)
    trusts = f"; the authority's fingerprint is {fingerprint(introduction.ca)}" if introduction.ca else ""
    say(
        f"valid for {ttl} and one use: put it into a file on {introduction.node}, and run there\n"
        f"  dorm agent --token FILE{trusts}",
        error=True,
        flush=True,
    )


@app.command("join")
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
    from dorm.cli.trust.joining import node_target, read_introduction

    introduction = read_introduction(token)
    if introduction is None:
        raise Fail(
            "there is no token in it; copy all of the line that `dorm node intro` prints", code="token.malformed"
        )
    await node_target(Target("", ""), data.absolute(), introduction.node, introduction)


@app.command("remove")
@command()
async def remove(cx: Cluster, name: Name, folder: Folder = None) -> None:
    """Expel a node: its connection ends, and its reports no longer count. Its containers end with its lease.

    Drain it first (`dorm drain`), so that its apps continue elsewhere without
    losing work.

    [bold]Example[/]

      dorm node remove gpu-7
    """

    async with acting(cx, folder) as one:
        await one.admin.expel(name)
        await apply(one)
        console.print(Text(f"node {name} is removed"))
