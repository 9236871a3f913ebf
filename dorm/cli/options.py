"""Options that several commands share: sizes and times, `--metrics`, where archives are and when the log is rotated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dorm.cli.errors import WrongUsage
from events.quantities import MEMORY, QuantityError, duration, resource

if TYPE_CHECKING:
    from dorm.metrics.address import Address
    from dorm.rotation.service import Settings


# --- sizes and times --------------------------------------------------------------------------------------------------


def bytes_of(option: str, text: str | None) -> int | None:
    """Raises WrongUsage."""
    try:
        return None if text is None else resource(MEMORY, text)
    except QuantityError as error:
        raise WrongUsage(f"{option}: {error}", code="log.limit.malformed") from None


def seconds_of(option: str, text: str | None) -> float | None:
    """Raises WrongUsage."""
    try:
        return None if text is None else duration(text)
    except QuantityError as error:
        raise WrongUsage(f"{option}: {error}", code=error.code) from None


# --- metrics ----------------------------------------------------------------------------------------------------------

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


# --- archives and rotation --------------------------------------------------------------------------------------------

Archives = Annotated[
    str | None,
    typer.Option(
        "--archives",
        metavar="PLACE",
        envvar="DORM_ARCHIVES",
        help="Store for the log's past: a folder that survives this machine, or s3://BUCKET/PREFIX "
        "(keys and endpoint from AWS_* variables).",
    ),
]
RotateSize = Annotated[
    str | None,
    typer.Option(
        "--rotate-size", metavar="SIZE", help="Rotate the log when its stream reaches this size, such as 10GiB."
    ),
]
RotateAge = Annotated[
    str | None,
    typer.Option(
        "--rotate-age", metavar="DURATION", help="Rotate the log when its stream reaches back this far, such as 30d."
    ),
]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="DURATION", help="Keep records younger than this in the stream; default: 1d."),
]


def rotation_settings(
    archives: str | None, size: str | None, age: str | None, keep: str | None, *, spool: Path
) -> Settings:
    """Return the settings.  Raises WrongUsage for values that can't be, and for a rotation without a place."""
    from dorm.rotation.rotation_due import KEEP_S, Policy
    from dorm.rotation.service import Settings
    from events.archive.place import check_place
    from events.archive.stores import StoreError

    try:
        place = check_place(archives) if archives else ""
    except StoreError as error:
        raise WrongUsage.of(error) from None
    if not place and (size or age):
        raise WrongUsage(
            "--rotate-size and --rotate-age need a place for the archives: name one with --archives",
            code="usage.conflict",
        )
    policy = Policy(
        size=bytes_of("--rotate-size", size),
        age_s=seconds_of("--rotate-age", age),
        keep_s=KEEP_S if keep is None else seconds_of("--keep", keep) or 0.0,
    )
    return Settings(spool=spool, place=place, policy=policy)
