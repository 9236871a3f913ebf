"""`dorm scale`: how many containers an app has."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.apps.commands import undone_by_bounds
from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.errors import WrongUsage
from dorm.cli.output import console


@command(user=True)
async def scale(
    cx: Cluster,
    app: AppName,
    containers: Annotated[
        int | None, typer.Argument(metavar="[N]", min=1, help="Exactly this many containers.")
    ] = None,
    n_min: Annotated[
        int | None, typer.Option("--n-min", min=1, help="The smallest number of containers with which it can run.")
    ] = None,
    n_max: Annotated[
        int | None, typer.Option("--n-max", min=1, help="The largest number of containers that it can use.")
    ] = None,
) -> None:
    """Change how many containers an app may have; the next decision applies it.

    N fixes the size: n_min and n_max are both N, so the app waits while the
    cluster has no room for all of them. With different bounds, the policy chooses
    a number between them. `dorm update` also changes the weight.

    [bold]Examples[/]

      dorm scale digits-mlp 4

      dorm scale digits-mlp --n-max 8
    """
    if containers is not None and (n_min is not None or n_max is not None):
        raise WrongUsage("N is both n_min and n_max; give N or the bounds", code="usage.conflict")
    if containers is None and n_min is None and n_max is None:
        raise WrongUsage("say how many: N, --n-min or --n-max", code="usage.nothing_to_do")

    async with cx.client() as connected:
        changed = await connected.update(app, n_min=n_min or containers, n_max=n_max or containers)
        bounds = f"n_min {changed.n_min}, n_max {changed.n_max}{undone_by_bounds(changed)}"
        console.print(Text(f"{changed.name}: {bounds}"))
