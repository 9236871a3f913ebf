"""Options that the commands about webhooks share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.connect import where
from dorm.cli.errors import WrongUsage

if TYPE_CHECKING:
    from dorm.webhooks.addresses import Network
    from dorm.webhooks.keys import Keys

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="File that the keys are derived from, the same as the deliverer's; made where there is none. Default: webhooks.key in the cluster's data folder.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NETWORK",
        help="Deliver into this network too (10.1.0.0/16, loopback, private); may be repeated. Default: public addresses only.",
    ),
]


def networks(texts: list[str] | None) -> tuple[Network, ...]:
    """Raises WrongUsage."""
    from dorm.webhooks.addresses import NetworkError, parse_networks

    try:
        return parse_networks(texts or ())
    except NetworkError as error:
        raise WrongUsage.of(error) from None


def keys_of(file: Path | None, url: str | None, cluster: str | None) -> Keys:
    """Return the keys of the cluster that a command goes to.  Raises WebhookKeyError."""
    from dorm.local.home import home, read_running
    from dorm.webhooks.keys import FILE_NAME, open_keys

    address, name = where(url, cluster)
    running = read_running()
    folder = home() / name
    if running is not None and (running.url, running.cluster) == (address, name) and running.data:
        folder = Path(running.data)
    return open_keys(file or folder / FILE_NAME, name)
