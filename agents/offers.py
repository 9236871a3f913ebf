"""All that this node offers, as its agent announces it (`NodeJoined.offers`).

    volumes, environments, Pythons     `agents.volumes.offers`
    secrets, by user and name          what is in the folder now (`agents.runtime.secrets`)
    its only tenant                    `Runtime.serves`
    why it takes nothing new           `agents.fitness`

Masters place an app where all that it needs is offered, so an app that can't start here is not tried here.  What is announced
is out of date for a moment after each change; a container that comes in that moment fails, and the agent looks again at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import structlog

from agents.runtime import secrets

if TYPE_CHECKING:
    from pathlib import Path

    from agents.fitness import Fitness
    from agents.runtime.interface import Runtime
    from agents.volumes.offers import Offers
    from events.kinds import NodeOffers

_log = structlog.get_logger(__name__)


class NodesOffers:
    """The offers of one node.  `folder` is that of its secrets, None if it has none."""

    def __init__(self, node: str, volumes: Offers, fitness: Fitness, runtime: Runtime, folder: Path | None) -> None:
        self._node = node
        self._volumes = volumes
        self._fitness = fitness
        self._runtime = runtime
        self._folder = folder
        self._announced: NodeOffers | None = None
        self._scan: asyncio.Task[dict[str, list[str]] | None] | None = None
        self._secrets: dict[str, list[str]] | None = None if folder is not None else {}

    async def announce(self) -> NodeOffers:
        """Return what to announce."""
        found = await self._with_others(await self._volumes.announce())
        self._announced = found
        return found

    async def changed(self) -> bool:
        """Return whether the present offers differ from the last announcement."""
        before = self._announced
        if before is None:
            return False
        return await self._volumes.changed() or await self._with_others(before) != before

    async def _with_others(self, offers: NodeOffers) -> NodeOffers:
        await self._look_at_secrets()
        return msgspec.structs.replace(
            offers, secrets=self._secrets, tenant=self._runtime.serves, unfit=await self._fitness.reasons()
        )

    async def _look_at_secrets(self) -> None:
        """Scan the folder in a thread, of which there is never more than one."""
        if self._folder is None:
            return
        if self._scan is None:
            self._scan = asyncio.create_task(asyncio.to_thread(secrets.found, self._folder))
        scan = self._scan
        await asyncio.wait([scan], timeout=_PATIENCE_S)
        if scan.done() and scan is self._scan:
            self._scan = None
            self._secrets = scan.result()


_PATIENCE_S = 2.0
"""Seconds that a caller waits for a scan."""
