"""Commands about nodes: list them, empty one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from dorm.cli.connect import ClusterName, Url, User, client, complete_node
from dorm.cli.errors import Fail, WrongUsage, run
from dorm.cli.output import Format, Output, console, counted, progress_console, show
from dorm.cli.tables import show_nodes

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.state import State

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=complete_node)]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel="Nodes and the cluster")(nodes)
    app.command(rich_help_panel="Nodes and the cluster")(drain)


def nodes(output: Output = Format.table, url: Url = None, cluster: ClusterName = None) -> None:
    """List nodes: what each has, what is promised to containers, and the whole cluster's utilization.

    [bold]Example[/]

      dorm nodes -o wide
    """
    from dorm.core.query.views import node_rows, summary

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

    run(work())


def drain(
    node: NodeName,
    undo: Annotated[bool, typer.Option("--undo", help="Use the node again.")] = False,
    reason: Annotated[str, typer.Option(help="Why; it is written to the log.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until the node is empty; shows what is left.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="With --wait: how long to wait, then exit with 1.")
    ] = 3600.0,
    url: Url = None,
    cluster: ClusterName = None,
    user: User = None,
) -> None:
    """Empty a node by adjustments: its apps checkpoint and go on elsewhere.

    An app that has no room elsewhere is stopped, and waits.  The node takes nothing new until `--undo`, whether or not
    somebody waited.

    [bold]Examples[/]

      dorm drain node-2 --reason "new disk"

      dorm drain node-2 --wait --timeout 600 && ssh node-2 sudo reboot

      dorm drain node-2 --undo
    """

    async def work() -> None:
        async with client(url, cluster, user=user) as connected:
            await connected.drain(node, drain=not undo, reason=reason)
            if wait:
                await _until_empty(connected, node, timeout)
            else:
                how = "being drained; `dorm drain --wait` waits until it is empty"
                console.print(Text(f"{node} is {'used again' if undo else how}"))

    if undo and wait:
        raise WrongUsage("--wait is for draining; a node is used again at once", code="usage.conflict")
    run(work())


def _left(state: State, node: str) -> list[str]:
    """Return what is left on a node, and what each app there waits for."""
    from dorm.core.query.views import leaving

    return [f"{one.name}: {counted(one.containers, 'container')}, {one.next}" for one in leaving(state, node)]


async def _until_empty(connected: Client, node: str, timeout: float) -> None:
    """Show what is left on the node until it is empty."""
    from dorm.cli.apps.waiting import NOBODY, Leaderless, telling_who_is_missing

    begun = time.monotonic()
    shown: list[str] = []
    gone = ""
    leaderless = Leaderless()
    try:
        async with asyncio.timeout(timeout), telling_who_is_missing(connected, leaderless):
            with progress_console.status(f"{node} is being drained") as status:
                async for state, _ in connected.watch():
                    known = state.nodes.get(node)
                    if known is None or (known.condition == "up" and not known.draining):
                        raise Fail(f"{node} is used again: somebody has undone the drain", code="node.used_again")
                    shown = _left(state, node)
                    if not shown:
                        gone = "" if known.condition == "up" else f" ({known.condition})"
                        break
                    status.update(Text("\n".join(shown)))
        console.print(Text(f"{node} is empty{gone} after {time.monotonic() - begun:.1f} s"))
    except TimeoutError:
        if not shown:  # The time was over before the first look was.
            shown = _left(await connected.state(), node)
        why = "; ".join([NOBODY, *shown] if leaderless.now else shown)
        raise Fail(
            f"{node} is not empty after {timeout:g} s, and stays drained: {why}", code="node.not_empty"
        ) from None
