"""All that this node offers, as its agent announces it (`NodeJoined.offers`).

    volumes, environments, Pythons     `Offers`
    secrets, by user and name          what is in the folder now (`agents.runtime.secrets`)
    its only tenant                    `Runtime.serves`
    why it takes nothing new           `agents.fitness`

Masters place an app where all that it needs is offered, so an app that can't start here is not tried here.  What is
announced is out of date for a moment after each change; a container that comes in that moment fails, and the agent
looks again at once.

A folder whose file system is not mounted looks like an empty one.  So an absent folder counts as missing, and so does
an empty one that is offered for reading.  A mount whose server does not answer holds the thread that looks at it;
there is never more than one such thread, and a folder that does not answer in time counts as missing as well.

How a container sees a volume is the runtime's affair (`agents.runtime`): an engine mounts it, and so does the
supervisor of a plain process if it may; otherwise a process gets a link.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec
import structlog

from agents.runtime import secrets
from agents.runtime.interface import Mount, Refused
from events.kinds import NodeOffers, VolumeOffer
from events.spec import volumes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agents.config import OfferedVolume
    from agents.fitness import Fitness
    from agents.runtime.interface import Runtime
    from events.spec import AppSpec


# --- volumes, environments, Pythons -----------------------------------------------------------------------------------

_log = structlog.get_logger(__name__)
_PATIENCE_S = 2.0
"""The timeout, in seconds, of a look at all folders."""


class Offers:
    """The offers of one node: volumes by name, and versions of Python if its containers have no other."""

    def __init__(self, volumes: Mapping[str, OfferedVolume], node: str, pythons: Sequence[str] = ()) -> None:
        self._volumes = volumes
        self._pythons = list(pythons)
        self._node = node
        self._missing: dict[str, bool] = {}
        self._at = ""
        """The volume that is being looked at."""
        self._looking: asyncio.Task[None] | None = None
        self._announced: NodeOffers | None = None

    async def announce(self) -> NodeOffers:
        """Return what to announce."""
        await self._look()
        offers = self._found()
        for name, offer in offers.volumes.items():
            before = self._announced.volumes.get(name) if self._announced is not None else None
            if offer.missing and not (before is not None and before.missing):
                path = self._volumes[name].path
                _log.error("the folder of a volume is missing", node=self._node, volume=name, folder=str(path))
        self._announced = offers
        return offers

    async def changed(self) -> bool:
        """Return whether the present offers differ from the last announcement."""
        if not self._volumes or self._announced is None:
            return False
        await self._look()
        return self._found() != self._announced

    def mounts(self, spec: AppSpec, folder: str) -> tuple[Mount, ...]:
        """Return the volumes of an app's container, without a look at the folders.  `folder` is its private directory
        if a container can't see a volume at the path that its spec names, "" if it can."""
        return tuple(
            Mount(
                name=volume.name,
                source=str(offered.path),
                target=f"{folder}/volumes/{volume.name}" if folder else volume.place,
                read_only=volume.read_only,
            )
            for volume in volumes_of(spec.volumes)
            if (offered := self._volumes.get(volume.name)) is not None
        )

    async def check(self, spec: AppSpec, owner: str) -> None:
        """Look whether an app of this owner gets its volumes here.  Raises Refused: the configuration may have changed since
        the master decided, and the agent goes by its own."""
        wanted = volumes_of(spec.volumes)
        if wanted:
            await self._look()
        for volume in wanted:
            offered = self._volumes.get(volume.name)
            if offered is None:
                raise _refused(f"node {self._node} does not offer the volume {volume.name}", "volumes.not_offered")
            if offered.tenants and owner not in offered.tenants:
                raise _refused(
                    f"node {self._node} does not offer the volume {volume.name} to {owner}", "volumes.not_allowed"
                )
            if not volume.read_only and not offered.writable:
                raise _refused(
                    f"node {self._node} offers the volume {volume.name} for reading only", "volumes.read_only"
                )
            if self._missing.get(volume.name, True):
                raise _refused(
                    f"the folder of the volume {volume.name} is missing on node {self._node}: mount {offered.path} there",
                    "volumes.missing",
                )

    def _found(self) -> NodeOffers:
        return NodeOffers(
            volumes={
                name: VolumeOffer(
                    writable=volume.writable, tenants=list(volume.tenants), missing=self._missing.get(name, True)
                )
                for name, volume in self._volumes.items()
            },
            environments=True,
            pythons=self._pythons,
        )

    async def _look(self) -> None:
        if not self._volumes:
            return
        looking = self._looking
        if looking is None or looking.done():
            looking = self._looking = asyncio.create_task(asyncio.to_thread(self._look_at_all))
        await asyncio.wait([looking], timeout=_PATIENCE_S)  # Others may wait for the same look.
        if not looking.done():
            self._missing[self._at] = True

    def _look_at_all(self) -> None:
        for name, volume in self._volumes.items():
            self._at = name
            self._missing[name] = not is_there(volume)


def is_there(volume: OfferedVolume) -> bool:
    """Return whether a volume's folder is there and, where it is for reading, holds anything.  Blocks."""
    try:
        with os.scandir(volume.path) as entries:
            return volume.writable or next(entries, None) is not None
    except OSError:
        return False


def _refused(text: str, code: str) -> Refused:
    return Refused("device", text, code=code)


# --- all that the node offers -----------------------------------------------------------------------------------------


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
        offers = await self._with_others(await self._volumes.announce())
        self._announced = offers
        return offers

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
