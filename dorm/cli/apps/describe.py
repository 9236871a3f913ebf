"""`dorm describe`: everything about one app or node."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dorm.cli.command import command
from dorm.cli.connect import Cluster, complete_app_or_node
from dorm.cli.output import Format, Output, show_document
from dorm.cli.tables import show_app, show_node


@command()
async def describe_app(
    cx: Cluster,
    name: Annotated[
        str,
        typer.Argument(
            metavar="APP|NODE", help="Name or id of the app, or name of the node.", autocompletion=complete_app_or_node
        ),
    ],
    output: Output = Format.table,
) -> None:
    """Describe one app: where its containers are, what its adjustments cost, how it ended, where it failed lately.

    Of a node: its resources and containers, which apps failed there lately, and
    why it is suspect, if it is. A name that an app and a node share is the app's.

    [bold]Examples[/]

      dorm describe digits-mlp

      dorm describe node-3
    """
    from dorm.client.finding import find_app
    from dorm.core.query.views import describe, describe_node

    async with cx.client() as connected:
        state = await connected.state()
        node = state.nodes.get(name)
        if node is not None and state.find_app(name) is None:
            of_node = describe_node(state, node, time.time_ns())
            if output in (Format.json, Format.yaml):
                show_document(of_node, output)
            else:
                show_node(of_node, output)
            return
        found = find_app(state, name, connected.user)
        document = describe(found, time.time_ns(), state, await connected.reported(found.id))
    if output in (Format.json, Format.yaml):
        show_document(document, output)
    else:
        show_app(document)
