"""Programs that run until they are stopped, as services do, and keep a service manager informed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dorm.cli.signals import run_until_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dorm.health.checks import Health


async def run_service(work: Coroutine[Any, Any, Any], health: Health, reload: Callable[[], None] | None = None) -> None:
    """Run until the work ends or a signal comes, then cancel it cleanly.  `reload`: what SIGHUP requests instead of an end.
    Raises what `work` raises."""
    from dorm.health.systemd import ServiceManager, notifying

    manager = ServiceManager.of_environment(os.environ)
    async with notifying(manager, health):
        await run_until_stopped(work, manager.stopping, reload)
