"""`dorm release`: let held apps continue."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppNames, Cluster
from dorm.cli.output import console


@command(user=True)
async def release(
    cx: Cluster,
    apps: AppNames,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
) -> None:
    """Release held apps: they wait for containers again, and resume from their checkpoints.

    [bold]Examples[/]

      dorm release digits-mlp

      dorm release sweep-1 sweep-2 --reason "the data set is repaired"
    """

    from dorm.client import gates

    async with cx.client() as connected:
        for name in dict.fromkeys(apps):
            found = await gates.release(connected, name, reason)
            console.print(Text(f"{found.name} is released; `dorm ps` shows when it runs"))
