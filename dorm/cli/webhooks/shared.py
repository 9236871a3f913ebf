"""Options of the commands about webhooks: a file of keys, and networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dorm.cli.connect import Cluster
from dorm.cli.errors import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dorm.webhooks.addresses import Network
    from dorm.webhooks.keys import Keys

    Work = Callable[..., Coroutine[Any, Any, None]]

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="File from which the keys are derived, the same as the deliverer's; created if it does "
        "not exist. Default: webhooks.key in the cluster's data folder, or in the folder of `dorm deploy keys`.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NETWORK",
        help="Also deliver to this network (10.1.0.0/16, loopback, private); may be repeated. "
        "Default: public addresses only.",
    ),
]


def networks(texts: list[str] | None) -> tuple[Network, ...]:
    """Raises WrongUsage."""
    from dorm.webhooks.addresses import NetworkError, parse_networks

    try:
        return parse_networks(texts or ())
    except NetworkError as error:
        raise WrongUsage.of(error) from None


def keys_of(file: Path | None, cx: Cluster) -> Keys:
    """Return the keys of the cluster that a command goes to.  Raises WebhookKeyError."""
    from dorm.local.home import home, read_running
    from dorm.webhooks.keys import FILE_NAME, open_keys

    found = cx.target()
    running = read_running()
    folder = home() / found.cluster
    if running is not None and (running.url, running.cluster) == (found.url, found.cluster) and running.data:
        folder = Path(running.data)
    deployed = Path(found.folder, "security", FILE_NAME)
    if found.folder and deployed.exists():  # `dorm deploy keys` made it.
        return open_keys(file or deployed, found.cluster)
    return open_keys(file or folder / FILE_NAME, found.cluster)
