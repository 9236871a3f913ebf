"""`dorm sweep edit`: how many apps of a sweep run at once."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import Cluster
from dorm.cli.output import console
from dorm.cli.swept.lines import SweepName


@command(user=True)
async def edit_sweep(
    cx: Cluster,
    sweep: SweepName,
    parallel: Annotated[
        int, typer.Option("--parallel", "-k", min=0, help="Run at most this many apps at a time; 0: no limit.")
    ],
) -> None:
    """Change how many apps of a sweep run at a time.

    After an increase, more apps start with the next decision. After a decrease,
    running apps keep running, and others start once enough have ended. The limit
    also applies to apps that a `dorm sweep run` is still submitting. `dorm edit
    APP` changes one app of a sweep.

    [bold]Examples[/]

      dorm sweep edit lr --parallel 8

      dorm sweep edit lr -k 0
    """

    from dorm.client.sweeps.limiting import set_parallel

    async with cx.client() as connected:
        before = await set_parallel(connected, sweep, parallel)
    console.print(Text(f"{sweep}: {_words(parallel)} at once from now on (before: {_words(before)})"))


def _words(limit: int) -> str:
    return f"at most {limit}" if limit else "as many as there is room for"
