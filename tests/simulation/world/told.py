"""What the shells log, as lines of a world's story instead of on standard error."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.world.world import World


class _Silent:
    """A structlog logger that formats nothing: nobody reads most stories."""

    world: World

    def __init__(self, *_: object, **__: object) -> None: ...

    def bind(self, **_: object) -> _Silent:
        return self

    def debug(self, event: str, **values: Any) -> None:
        self.world.trace(event, **values)

    info = warning = error = exception = debug


@contextlib.contextmanager
def logs_to(world: World) -> Iterator[None]:
    """While it is open, whatever is logged becomes a line of the story."""
    before = structlog.get_config() if structlog.is_configured() else None
    wrapper = type("Silent", (_Silent,), {"world": world})
    structlog.configure(wrapper_class=wrapper, processors=[], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)
