"""Sends the shells' logs to a world's story instead of standard error."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.world.world import World


class _Silent:
    """A structlog logger that formats nothing, because most stories are never read."""

    world: World

    def __init__(self, *_: object, **__: object) -> None: ...

    def bind(self, **_: object) -> _Silent:
        return self

    def debug(self, event: str, **values: Any) -> None:
        self.world.trace(event, **values)

    info = warning = error = exception = debug


@contextlib.contextmanager
def logs_to(world: World) -> Iterator[None]:
    """A context in which all logs become lines of the story."""
    before = structlog.get_config() if structlog.is_configured() else None
    wrapper = type("Silent", (_Silent,), {"world": world})
    structlog.configure(wrapper_class=wrapper, processors=[], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
