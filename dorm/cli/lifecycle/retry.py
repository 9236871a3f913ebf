"""`dorm retry`: do not wait for the pause after a failure to end."""

from __future__ import annotations

from rich.text import Text

from dorm.cli.command import command
from dorm.cli.connect import AppName, Cluster
from dorm.cli.output import console


@command(user=True)
async def retry(cx: Cluster, app: AppName) -> None:
    """Retry an app now that pauses after a failure, for example when the cause has been fixed.

    Its failures still count: the next pause is as long as it would have been. For
    an app that has ended, use `dorm restart` or submit it again.

    [bold]Example[/]

      dorm retry digits-mlp
    """

    from dorm.client import operating

    async with cx.client() as connected:
        found = await operating.retry(connected, app)
    console.print(Text(f"{found.name} is retried now; `dorm ps` shows when it runs"))
