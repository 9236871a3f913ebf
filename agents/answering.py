"""All that this node is asked: about itself, for container output, and to let people into its containers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agents.reporting.logs import answer_questions
from agents.reporting.status import answer_if_allowed
from agents.sessions.serving import Sessions
from events import subjects

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.checkpoint_folder import CheckpointFolder
    from agents.desired import Desired
    from agents.reporting.outbox import Outbox
    from agents.reporting.status import StatusAnswerer
    from agents.runtime.interface import Key, Runtime
    from events.log.interface import Bus, EventLog


async def answer_all(
    bus: Bus,
    cluster: str,
    runtime: Runtime,
    desired: Desired,
    status: StatusAnswerer,
    folder: CheckpointFolder,
    log: EventLog,
    outbox: Outbox,
    clock: Callable[[], int],
    inside: Callable[[Key, tuple[str, ...]], tuple[str, ...]],
) -> None:
    """Answer until cancelled.  `inside` returns how a command runs in a container's environment.
    Raises LogUnavailable when the connection is closed."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer_questions(bus, cluster, runtime, desired, folder))
        tasks.create_task(answer_if_allowed(bus, subjects.ask_agents(cluster), status))
        tasks.create_task(Sessions(cluster, runtime, desired, log, outbox, clock, inside).serve(bus))
