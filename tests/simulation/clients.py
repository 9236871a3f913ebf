"""Customers: each submits its apps with the real client, and repeats with the same id until it knows the answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from dorm.client.errors import NoAnswer, Refused, Unsettled
from events.log.records import LogUnavailable
from tests.simulation.world.shells import start_client

if TYPE_CHECKING:
    from dorm.client.client import Client
    from tests.simulation.history import History
    from tests.simulation.machines.apps import AppPlan
    from tests.simulation.world.process import Host, Process

_AGAIN_S = 1.0


class Customer:
    """One user, whose remaining submissions outlive its process."""

    def __init__(self, history: History, host: Host, user: str, plans: list[AppPlan]) -> None:
        self.history = history
        self.host = host
        self.user = user
        self.waiting = {plan.name: plan for plan in plans}
        """Neither acknowledged to this customer nor refused yet."""
        self._hurry = asyncio.Event()

    @property
    def done(self) -> bool:
        return not self.waiting

    def hurry(self) -> None:
        """Submit everything that is left, and restart soon if the process has died."""
        self._hurry.set()

    def start(self) -> None:
        """Start a process that submits the rest."""
        process = start_client(self.host, self.user)
        process.on_end(self._ended)
        for plan in self.waiting.values():
            process.spawn(self._submit(process.client, plan))

    def _ended(self, process: Process) -> None:
        pause = 0.2 if self._hurry.is_set() else self.history.down_for.pop(self.host.name, 0.5)
        self.history.world.after(pause, self._restart)

    def _restart(self) -> None:
        if not self.history.over:
            self.start()

    async def _submit(self, client: Client, plan: AppPlan) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(plan.submit_at):
                await self._hurry.wait()
        while True:
            try:
                await client.submit(plan.document(), id=f"{self.user}.{plan.name}", answer_timeout=5.0)
            except (LogUnavailable, Unsettled):
                await asyncio.sleep(_AGAIN_S)
                continue
            except (NoAnswer, Refused):
                pass
            self.waiting.pop(plan.name, None)
            return
