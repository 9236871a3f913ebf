"""Answer questions about how this agent is: facts about the process and its machine, which no event states."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from agents.runtime import process_limits
from events.log.records import LogError
from events.logger import Logger
from events.requests import AgentStatus, Disk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from agents.config import NodeConfig
    from agents.desired import Desired
    from agents.gpus import Gpus
    from agents.reporting.vitals import Vitals
    from events.log.interface import Bus

_DISKS_S = 2.0
"""Seconds within which file systems have to answer: a file server that hangs must not silence the agent."""
_MOST_DELAYS = 16
_log = Logger(__name__)


class StatusAnswerer:
    """The answerer of one node.  `vitals` looks at the agent, `root` is its private folder, `clock` returns UTC ns, and
    `detected` says in words where the capacity comes from."""

    def __init__(
        self,
        vitals: Callable[[], Vitals],
        config: NodeConfig,
        desired: Desired,
        root: Path,
        build: str,
        runtime: str,
        clock: Callable[[], int],
        gpus: Gpus,
        detected: str = "",
    ) -> None:
        self._vitals = vitals
        self._folders = [root, config.checkpoints]
        self._desired = desired
        self._build = build
        self._runtime = runtime
        self._clock = clock
        self._gpus = gpus
        self._detected = detected

    async def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        del question
        disks = await disks_of(self._folders)
        left = await asyncio.to_thread(process_limits.left, os.getpid())
        now = self._vitals()
        status = AgentStatus(
            node=now.node,
            build=self._build,
            at=self._clock(),
            joined=now.joined,
            seq=now.seq,
            lease_left_s=now.lease_left_s,
            lease_s=self._desired.lease_s,
            silence_s=now.silence_s,
            pending=now.pending,
            runtime=self._runtime,
            disks=disks,
            delays=now.delays[:_MOST_DELAYS],
            processes_free=max(0, left.free) if left is not None else 0,
            processes=left.most if left is not None else 0,
            processes_of=left.of if left is not None else "",
            gpus=self._gpus.troubles,
            detected=self._detected,
        )
        yield msgspec.json.encode(status)


async def answer_if_allowed(bus: Bus, subject: str, answerer: StatusAnswerer) -> None:
    """Serve questions until cancelled.  A server that forbids it, whose permissions are older, or a lost connection, ends
    nothing but this."""
    try:
        await bus.answer_all(subject, answerer)
    except LogError as error:
        _log.warning("questions how this agent is are not answered", reason=str(error))


async def disks_of(folders: Sequence[Path]) -> list[Disk]:
    """Return the file systems of these folders; without those that do not answer in time."""
    return [disk for disk in await asyncio.gather(*map(_disk, folders)) if disk is not None]


async def _disk(folder: Path) -> Disk | None:
    try:
        async with asyncio.timeout(_DISKS_S):
            return await asyncio.to_thread(disk_of, folder)
    except (OSError, TimeoutError):
        return None


def disk_of(folder: Path) -> Disk:
    """Look at the file system of a folder.  Raises OSError."""
    found = os.statvfs(folder)
    return Disk(
        str(folder),
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        inodes_free=found.f_favail,
        inodes=found.f_files,
        read_only=bool(found.f_flag & os.ST_RDONLY),
    )
