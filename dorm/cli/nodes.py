"""Operating nodes: `dorm nodes`, `drain`, and scheduling as a whole (`dorm pause`, `resume`)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_node
from dorm.cli.errors import Fail, WrongUsage
from dorm.cli.output import Format, Output, console, counted, progress_console, show
from dorm.cli.settings import parse_pairs
from dorm.cli.tables import show_nodes, show_pause

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.state import State


# --- drain, pause, resume ---------------------------------------------------------------------------------------------

NodeNames = Annotated[
    list[str] | None, typer.Argument(metavar="NODE...", help="Names of the nodes.", autocompletion=complete_node)
]
Selector = Annotated[
    list[str] | None,
    typer.Option(
        "--selector",
        "-l",
        metavar="LABEL=VALUE",
        help="Select nodes by this label instead of by name; if repeated, nodes must have all the labels.",
    ),
]
Reason = Annotated[str, typer.Option(help="The reason, for the log.")]


async def chosen(connected: Client, nodes: list[str] | None, selector: list[str] | None) -> list[str]:
    """Return the nodes that a command names, or selects by their labels.  Raises WrongUsage, Fail."""
    if bool(nodes) == bool(selector):
        raise WrongUsage("name nodes, or select them with --selector LABEL=VALUE", code="usage.conflict")
    if nodes:
        return list(dict.fromkeys(nodes))
    wanted = parse_pairs(selector, "--selector")
    state = await connected.state()
    matching = [name for name, node in sorted(state.nodes.items()) if wanted.items() <= node.labels.items()]
    if not matching:
        labels = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise Fail(f"no node has {labels}; `dorm nodes -o wide` shows labels", code="node.not_found")
    return matching


@command(user=True)
async def drain(
    cx: Cluster,
    nodes: NodeNames = None,
    selector: Selector = None,
    undo: Annotated[bool, typer.Option("--undo", help="Use the nodes again.")] = False,
    reason: Reason = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the nodes are empty, and show what remains.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --wait: exit with 1 after this time.")
    ] = 3600.0,
) -> None:
    """Empty nodes: their apps save checkpoints and continue on other nodes.

    An app that has no room elsewhere stops and waits. The nodes get nothing new
    until `--undo`, even after --wait has ended. For work on a machine that may be
    silent meanwhile, use `dorm nodes maintenance`.

    [bold]Examples[/]

      dorm drain node-2 --reason "new disk"

      dorm drain node-2 --wait --timeout 600 && ssh node-2 sudo reboot

      dorm drain --selector rack=b7 --reason "rack b7 moves" --wait

      dorm drain node-2 --undo
    """
    if undo and wait:
        raise WrongUsage("--wait is for draining; a node is used again at once", code="usage.conflict")

    async with cx.client() as connected:
        selected = await chosen(connected, nodes, selector)
        for node in selected:
            await connected.drain(node, drain=not undo, reason=reason)
        if wait:
            await until_empty(connected, selected, timeout)
            return
        how = "being drained; `dorm drain --wait` waits until it is empty"
        for node in selected:
            console.print(Text(f"{node} is {'used again' if undo else how}"))


def _left(state: State, nodes: list[str]) -> list[str]:
    """Return the apps left on the nodes, and the reason why each of them waits."""
    from dorm.core.query.views import leaving, paused_text

    left = [
        (f"{node}: " if len(nodes) > 1 else "") + f"{app.name}: {counted(app.containers, 'container')}, {app.next}"
        for node in nodes
        for app in leaving(state, node)
    ]
    return [*left, paused_text(state)] if left and state.paused else left


async def until_empty(connected: Client, nodes: list[str], timeout: float) -> None:
    """Show the remaining apps on the nodes until they are empty.  Raises Fail."""
    from dorm.cli.wait import NOBODY, Leaderless, reporting_missing_master

    begun = time.monotonic()
    shown: list[str] = []
    leaderless = Leaderless()
    names = ", ".join(nodes)
    are = "are" if len(nodes) > 1 else "is"
    try:
        async with asyncio.timeout(timeout), reporting_missing_master(connected, leaderless):
            with progress_console.status(f"{names} {are} being drained") as status:
                async for state, _ in connected.watch():
                    _still_drained(state, nodes)
                    shown = _left(state, nodes)
                    if not shown:
                        break
                    status.update(Text("\n".join(shown)))
        gone = [f"{node} ({state.nodes[node].condition})" for node in nodes if state.nodes[node].condition != "up"]
        console.print(Text(f"{names} {are} empty after {time.monotonic() - begun:.1f} s"))
        if gone:
            console.print(Text(f"not up: {', '.join(gone)}"))
    except TimeoutError:
        if not shown:  # The time was over before the first look was.
            shown = _left(await connected.state(), nodes)
        why = "; ".join([NOBODY, *shown] if leaderless.now else shown)
        raise Fail(
            f"{names} {are} not empty after {timeout:g} s, and stays drained: {why}", code="node.not_empty"
        ) from None


def _still_drained(state: State, nodes: list[str]) -> None:
    for node in nodes:
        known = state.nodes.get(node)
        if known is None or (known.condition == "up" and not known.draining):
            raise Fail(f"{node} is used again: someone has undone the drain", code="node.used_again")


@command(user=True)
async def pause(cx: Cluster, reason: Reason = "") -> None:
    """Pause scheduling: there are no new decisions until `dorm resume`.

    Apps keep running. Submissions are accepted and wait, earlier decisions are
    carried out, and apps that end release their room. An app that fails
    meanwhile, or whose node is lost, waits as well.

    [bold]Example[/]

      dorm pause --reason "the shared folder moves"
    """

    from dorm.client import operating

    async with cx.client() as connected:
        await operating.pause(connected, reason)
    console.print(Text("scheduling is paused: nothing new is decided until `dorm resume`"))


@command(user=True)
async def resume(cx: Cluster, reason: Reason = "") -> None:
    """Resume scheduling after `dorm pause`.

    [bold]Example[/]

      dorm resume
    """

    from dorm.client import operating

    async with cx.client() as connected:
        await operating.resume(connected, reason)
    console.print(Text("scheduling is resumed"))


# --- nodes, and their maintenance -------------------------------------------------------------------------------------

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
        selected = await chosen(connected, nodes, selector)
        for node in selected:
            await connected.drain(node, reason=reason, maintenance=True)
        if wait:
            await until_empty(connected, selected, timeout)
            return
        for node in selected:
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
