"""Options that are sizes and times."""

from __future__ import annotations

from dorm.cli.errors import WrongUsage
from events.quantities import MEMORY, QuantityError, duration, resource


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
