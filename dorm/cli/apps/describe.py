"""`dorm describe`: everything about one app."""

from __future__ import annotations

import time

import typer

from dorm.cli.apps.commands import PANEL
from dorm.cli.connect import AppName, ClusterName, Url, client
from dorm.cli.errors import run
from dorm.cli.output import Format, Output, show_document
from dorm.cli.tables import show_app


def register(app: typer.Typer) -> None:
    app.command("describe", rich_help_panel=PANEL)(describe_app)


def describe_app(app: AppName, output: Output = Format.table, url: Url = None, cluster: ClusterName = None) -> None:
    """Describe one app: where its containers are, what its adjustments cost, how it ended.

    [bold]Example[/]

      dorm describe digits-mlp
    """
    from dorm.client.finding import find_app
    from dorm.core.query.views import describe

    async def work() -> None:
        async with client(url, cluster) as connected:
            state = await connected.state()
            found = find_app(state, app, connected.user)
            document = describe(found, time.time_ns(), state, await connected.reported(found.id))
        if output in (Format.json, Format.yaml):
            show_document(document, output)
        else:
            show_app(document)

    run(work())
