"""Commands about nodes: list them, empty one."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url, User, client, complete_node
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, console, counted, show
from dorm.cli.tables import show_nodes

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=complete_node)]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and the cluster")(nodes)
    app.command(rich_help_panel="Nodes and the cluster")(drain)


def nodes(output: Output = Format.table, url: Url = None, cluster: ClusterName = None) -> None:
    """List nodes: what each has, what is promised to containers, and the whole cluster's utilization.

    [bold]Example[/]

      dorm nodes -o wide
    """
    from dorm.core.views import node_rows, summary

    async def work() -> None:
        async with client(url, cluster) as connected:
            state = await connected.state()
        rows = node_rows(state)
        if output in (Format.json, Format.yaml):
            show(rows, [], output)
            return
        if not rows:
            console.print(Text("no node has joined yet; start one with `dorm agent`"))
            return
        show_nodes(rows, output)
        total = summary(state)
        console.print(
            Text(
                f"\nutilization {total.utilization:.2f} of {total.utilization_max}, fairness loss "
                f"{total.fairness_loss:.2f}, {counted(total.apps, 'app')}, "
                f"{counted(total.adjustments, 'adjustment')}, {counted(total.decisions, 'decision')}"
            )
        )

    run(work())


def drain(
    node: NodeName,
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
    reason: Annotated[str, typer.Option(help="Why; it is written to the log.")] = "",
    url: Url = None,
    cluster: ClusterName = None,
    user: User = None,
) -> None:
    """Empty a node by adjustments: its apps checkpoint and go on elsewhere.

    [bold]Examples[/]

      dorm drain node-2 --reason "new disk"

      dorm drain node-2 --undo
    """

    async def work() -> None:
        async with client(url, cluster, user=user) as connected:
            await connected.drain(node, drain=not undo, reason=reason)
            console.print(Text(f"{node} is {'used again' if undo else 'being drained; watch it with `dorm nodes`'}"))

    run(work())
