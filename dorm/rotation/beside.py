"""Runs the rotation of a cluster's log next to its master, over a separate connection."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dorm.rotation.policy import Policy
from dorm.rotation.rotator import Rotator
from dorm.rotation.service import RotationService, rotating
from events.archive.place import open_store
from events.archive.whole import WholeLog
from events.nats.places import WEBHOOK

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from dorm.master.master import Master
    from events.chain import SealKey
    from events.nats.connection import Connection


class Settings(msgspec.Struct, frozen=True):
    """The operator's settings of rotation."""

    spool: Path
    """A folder with room for one archive, which is written there before it goes into its store."""
    place: str = ""
    """The store: a folder, or s3://BUCKET/PREFIX; "" for none, and then nothing is rotated."""
    policy: Policy = Policy()


def rotating_beside(
    master: Master, connection: Connection, settings: Settings, key: SealKey
) -> AbstractAsyncContextManager[None]:
    """Rotate the log while the body runs and this master leads.  Raises StoreError for an invalid place."""
    cluster = connection.cluster
    log = WholeLog(connection.stream, cluster, place=settings.place)
    rotator = None
    if settings.place:
        rotator = Rotator(
            log,
            cluster,
            open_store(settings.place, cluster),
            key,
            name=master.name,
            spool=settings.spool,
            clock=time.time_ns,
            leads=lambda: master.leads,
        )

    async def room() -> int:
        return (await connection.stream.room()).taken

    async def needed() -> int | None:
        return await connection.places.needed_from(WEBHOOK)

    service = RotationService(
        log,
        cluster,
        rotator,
        settings.policy,
        name=master.name,
        clock=time.time_ns,
        leads=lambda: master.leads,
        state=lambda: master.state,
        room=room,
        needed=needed,
    )
    return rotating(service)


async def open_checked(place: str, cluster: str) -> None:
    """Check once whether a place can be used, so that a wrong one is refused at the start.  Raises StoreError."""
    store = await asyncio.to_thread(open_store, place, cluster)
    try:
        await store.names()
    finally:
        await store.close()
