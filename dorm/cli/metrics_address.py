"""The option `--metrics` of everything that runs a part of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.errors import WrongUsage

if TYPE_CHECKING:
    from dorm.metrics.address import Address

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="DORM_METRICS",
        help="Serve metrics for Prometheus at /metrics, and /healthz and /readyz, on this address; a "
        "port alone means loopback. Default: off.",
    ),
]
MetricsOfUp = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="DORM_METRICS",
        help="Serve metrics for Prometheus at /metrics, and /healthz and /readyz, on this address, or "
        "off. Default: 127.0.0.1:9475, or a free port.",
    ),
]


def metrics_address(text: str | None) -> Address | None:
    """Return where to serve metrics, None for nowhere.  Raises WrongUsage."""
    from dorm.metrics.address import MetricsError, parse_address

    try:
        return parse_address(text) if text is not None else None
    except MetricsError as error:
        raise WrongUsage.of(error) from None
