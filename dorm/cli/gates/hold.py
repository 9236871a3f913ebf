"""`dorm hold`: keep apps from running until they are released."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.apps.commands import undone_by_restart
from dorm.cli.command import command
from dorm.cli.connect import AppNames, Cluster
from dorm.cli.output import console


@command(user=True)
async def hold(
    cx: Cluster,
    apps: AppNames,
    reason: Annotated[str, typer.Option(help="The reason, for the log; `dorm ps` shows it.")] = "",
) -> None:
    """Hold apps: they get no containers until `dorm release`.

    A running app saves a checkpoint, gives its containers back, and resumes from
    there when it is released. A held app keeps its name, its place in the order
    of arrival and its retries, and reserves no share of the cluster. You can hold
    your own apps; an operator can hold all, and only operators release what an
    operator holds.

    [bold]Examples[/]

      dorm hold digits-mlp --reason "the data set is wrong"

      dorm hold sweep-1 sweep-2

      dorm submit app.yaml --hold
    """

    from dorm.client import gates

    async with cx.client() as connected:
        for name in dict.fromkeys(apps):
            found = await gates.hold(connected, name, reason)
            gives = "it gives its containers back" if found.current is not None else "it waits"
            text = f"{found.name} is held: {gives} until `dorm release {found.name}`{undone_by_restart(found)}"
            console.print(Text(text))
