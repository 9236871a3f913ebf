"""`dorm nodes`: list nodes, take them out for maintenance and back, forget them, trust them again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.operating.requests import NodeNames, Reason, Selector, chosen, until_empty
from dorm.cli.output import Format, Output, console, counted, show
from dorm.cli.tables import show_nodes, show_pause

app = typer.Typer(invoke_without_command=True)


@app.callback()
@command()
async def nodes(cx: Cluster, ctx: typer.Context, output: Output = Format.table) -> None:
    """List nodes: the resources of each, what is reserved for containers, and the cluster's utilization.

    A node is up, draining (empty, or being emptied), in maintenance, unmounted
    (its checkpoint folder is not the cluster's), unfit (it takes nothing new,
    such as with a full disk or a failing health program, and a line says why),
    suspect (the same, because different apps failed there), lost, or it has left.

    [bold]Examples[/]

      dorm nodes -o wide

      dorm nodes maintenance node-2 --reason "new disk" --wait

      dorm nodes up node-2

      dorm nodes forget node-9

      dorm nodes trust node-3
    """
    from dorm.core.query.views import node_rows, summary

    if ctx.invoked_subcommand is not None:
        return

    async with cx.client() as connected:
        state = await connected.state()
    rows = node_rows(state)
    if output in (Format.json, Format.yaml):
        show(rows, [], output)
        return
    if not rows:
        console.print(Text("no node has joined yet; start one with `dorm agent`"))
        return
    show_nodes(rows, output)
    for row in rows:
        if row.trouble:
            console.print(Text(row.trouble))
    total = summary(state)
    console.print(
        Text(
            f"\nutilization {total.utilization:.2f} of {total.utilization_max}, fairness loss "
            f"{total.fairness_loss:.2f}, {counted(total.apps, 'app')}, "
            f"{counted(total.adjustments, 'adjustment')}, {counted(total.decisions, 'decision')}"
        )
    )
    show_pause(state)


@app.command()
@command(user=True)
async def maintenance(
    cx: Cluster,
    nodes: NodeNames = None,
    selector: Selector = None,
    reason: Reason = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the nodes are empty, and show what remains.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --wait: exit with 1 after this time.")
    ] = 3600.0,
) -> None:
    """Take nodes out of service for work on their machines: they are drained, and may be silent.

    They stay out of service until `dorm nodes up`, even across restarts. Lists,
    metrics and `dorm doctor` do not count a silent node in maintenance as lost.

    [bold]Examples[/]

      dorm nodes maintenance node-2 --reason "new disk" --wait && ssh node-2 sudo poweroff

      dorm nodes maintenance --selector rack=b7
    """

    async with cx.client() as connected:
        found = await chosen(connected, nodes, selector)
        for node in found:
            await connected.drain(node, reason=reason, maintenance=True)
        if wait:
            await until_empty(connected, found, timeout)
            return
        for node in found:
            console.print(Text(f"{node} is in maintenance; `dorm nodes up {node}` ends it"))


@app.command()
@command(user=True)
async def up(
    cx: Cluster,
    nodes: NodeNames = None,
    selector: Selector = None,
    reason: Reason = "",
) -> None:
    """Use nodes again after maintenance or a drain.

    [bold]Example[/]

      dorm nodes up node-2
    """

    async with cx.client() as connected:
        for node in await chosen(connected, nodes, selector):
            await connected.drain(node, drain=False, reason=reason)
            known = (await connected.state()).nodes[node]
            then = "" if known.condition == "up" else f", once its agent is heard again ({known.condition} now)"
            console.print(Text(f"{node} is used again{then}"))


@app.command()
@command(user=True)
async def forget(
    cx: Cluster,
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of the nodes.")],
    reason: Reason = "",
) -> None:
    """Forget nodes that do not come back, so that they are no longer listed.

    You can forget only a node on which nothing can run any more: it has left, or
    its lease has ended after it was lost. Its past stays on the log. If its agent
    comes back, it joins as a new node; `dorm node remove` keeps it out.

    [bold]Example[/]

      dorm nodes forget node-9 --reason "scrapped"
    """

    from dorm.client import operating

    async with cx.client() as connected:
        for node in dict.fromkeys(nodes):
            await operating.forget(connected, node, reason)
            console.print(Text(f"{node} is forgotten"))


@app.command()
@command(user=True)
async def trust(
    cx: Cluster,
    nodes: NodeNames = None,
    selector: Selector = None,
    reason: Reason = "",
) -> None:
    """Use suspect nodes again, and forget which apps failed there.

    A node is suspect when different apps failed on it at their start, while apps
    run on other nodes. It takes nothing new until one app, which is tried there
    now and then, runs well; this command does not wait for that. Apps that
    avoid the node, because they failed there, may be placed there again.

    [bold]Example[/]

      dorm nodes trust node-3 --reason "the data disk is mounted again"
    """

    from dorm.client import operating

    async with cx.client() as connected:
        for node in await chosen(connected, nodes, selector):
            known = (await connected.state()).nodes.get(node)
            await operating.trust(connected, node, reason)
            suspect = known is not None and known.suspect is not None
            console.print(
                Text(f"{node} is trusted, and used again" if suspect else f"the failures on {node} are forgotten")
            )
