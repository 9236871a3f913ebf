"""`dorm restart`: start an app again."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dorm.cli.apps.commands import undone_by_restart
from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.output import console


@command(user=True)
async def restart(
    cx: Cluster,
    app: AppName,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore the checkpoint: run the start command, from step 0.")
    ] = False,
    fall_back: Annotated[
        bool,
        typer.Option(
            "--fall-back", help="Set a doubtful checkpoint aside, and resume from the one before; also from now on."
        ),
    ] = False,
    reason: Annotated[str, typer.Option(help="The reason, for the log.")] = "",
) -> None:
    """Start an app again from its last checkpoint, with its retries reset.

    A running app saves a checkpoint, stops, and starts again in its place. An app
    that pauses after a failure is retried now. A failed or cancelled app resumes
    under its name, as long as the cluster keeps it (`dorm ps --all`). A completed
    app cannot be restarted; submit it again.

    --fresh deletes nothing: the files of the old checkpoints stay in the app's
    folder until it overwrites them. --fall-back deletes nothing either: what
    `dorm checkpoints` shows as doubtful is moved to `.doubtful` in that folder. It
    sets `on_doubtful: fall_back` in the spec.

    [bold]Examples[/]

      dorm restart digits-mlp

      dorm restart digits-mlp --fresh --reason "wrong seed"

      dorm restart digits-mlp --fall-back
    """

    from dorm.client import steering

    async with cx.client() as connected:
        before = await connected.app(app)
        was, at = before.phase, before.checkpoint
        found = await steering.restart(connected, app, fresh=fresh, fall_back=fall_back, reason=reason)
    whence = f"from its checkpoint at step {at}" if at is not None and not fresh else "from the start"
    undone = undone_by_restart(before)
    if was == "running" and not fresh:
        whence = "from the start" if undone else "from the checkpoint that it saves now"
        whence += ", or from the start if it reports none" if at is None and not undone else ""
    text = f"{found.name} was {was}, and starts again {whence}; `dorm ps` shows when it runs{undone}"
    console.print(Text(text))
